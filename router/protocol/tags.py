"""The tags of the search protocol, and escaping, so that other text is never mistaken for a tag.

Everything that enters a prompt from outside (question, sub-query, passage, report) is escaped, and
what a model copies from its prompt is unescaped when its output is parsed. So no tag in a document
is ever parsed.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from router.models.model import encodable
from router.models.thoughts import Thoughts

_LONGEST = 300_000
"""Max characters of a turn that are parsed."""
_ENTITIES = ("&lt;", "&gt;", "&quot;", "&#39;", "&#x27;", "&amp;")
"""Entities that are unescaped, in this order: the last one's character may begin another."""


class Block(NamedTuple):
    """One `<tag>…</tag>` of a model's output."""

    body: str
    """The raw text between the tags."""
    start: int
    """Position of the opening tag, in characters."""
    closed: bool
    """False if the output ended before the closing tag."""
    named: str = ""
    """The value of the opening tag's attribute; empty without one."""


def escape(text: str) -> str:
    """Return inert `text`: `&`, `<` and `>` become entities, in control tokens such as `<|im_end|>`
    too.
    """
    return html.escape(text, quote=False)


def unescape(text: str) -> str:
    """Undo `escape`, and the entities for quotes that models add; other entities stay, such as
    `&copy=` in a URL.
    """
    for entity in _ENTITIES:
        text = text.replace(entity, html.unescape(entity))
    return text


def readable(text: str) -> str:
    """Return unescaped text that every Unicode encoding can represent."""
    return encodable(unescape(text))


def one_line(text: str) -> str:
    """Return the readable text with single spaces."""
    return " ".join(readable(text).split())


def without_thinking(text: str) -> str:
    """Return a text without reasoning; an unclosed thought continues to the end."""
    thoughts = Thoughts()
    visible, _ = thoughts.feed(text[:_LONGEST])
    return visible + thoughts.end()[0]


def blocks(text: str, tag: str, attribute: str = "") -> Iterator[Block]:
    """Yield every block of `tag`, in order and in linear time; a second opening tag ends an
    unclosed block. `attribute`: the only attribute that an opening tag may have; a tag with another
    one is not recognised.
    """
    opening, closing = _tags(tag, attribute)
    start = opening.search(text)
    while start is not None:
        following = opening.search(text, start.end())
        limit = following.start() if following else len(text)
        end = closing.search(text, start.end(), limit)
        body = text[start.end() : end.start() if end else limit]
        yield Block(
            body.strip(),
            start.start(),
            end is not None,
            one_line(start["named"] or ""),
        )
        start = following


@cache
def _tags(tag: str, attribute: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of the opening and of the closing tag."""
    may = (
        rf"""(?:\s{{1,9}}{attribute}\s{{0,9}}=\s{{0,9}}["'“]?(?P<named>[^"'”<>]{{0,100}})["'”]?)?"""
    )
    if not attribute:
        may = "(?P<named>)"
    return re.compile(rf"<\s*{tag}{may}\s*>", re.IGNORECASE), re.compile(
        rf"<\s*/\s*{tag}\s*>", re.IGNORECASE
    )


def element(tag: str, text: str) -> str:
    """Return `<tag>` around escaped `text`."""
    return f"<{tag}>{escape(text)}</{tag}>"


@dataclass(frozen=True, slots=True)
class Malformed:
    """Output that cannot be parsed. It leads to a correction turn or a typed failure."""

    reason: str
    """The defect, for the trace; never a part of the output itself."""
