"""The tags of the search protocol, and text that can never be mistaken for one.

Everything that goes into a prompt from outside (question, sub-query, passage, report) is escaped on
the way in, and what a model copies out of its prompt is unescaped on the way out. So no tag in a
document is ever parsed.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from router.models.thoughts import Thoughts

_LONGEST = 300_000
"""Characters of a turn that are read."""
_ENTITY = re.compile("&(?:amp|lt|gt|quot|#39|#x27);")


class Block(NamedTuple):
    """One `<tag>…</tag>` of a model's output."""

    body: str
    """The raw text between the tags."""
    start: int
    """The start of the opening tag, in characters."""
    closed: bool
    """False where the output ended before the closing tag."""
    named: str = ""
    """The value of the attribute of its opening tag; empty where it has none."""


def escape(text: str) -> str:
    """Make `text` inert: `&`, `<` and `>` become entities, control tokens such as `<|im_end|>`
    included.
    """
    return html.escape(text, quote=False)


def unescape(text: str) -> str:
    """Undo `escape`, and the entities for quotes that models add; all else stays, such as
    `&copy=` in an address.
    """
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def readable(text: str) -> str:
    """Unescaped text, which every encoding of Unicode can hold."""
    return encodable(unescape(text))


def encodable(text: str) -> str:
    """The same without halves of surrogate pairs, which no encoding can hold."""
    return (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )


def one_line(text: str) -> str:
    """The same with single spaces."""
    return " ".join(readable(text).split())


def without_thinking(text: str) -> str:
    """Drop all reasoning; a thought that is not closed goes on to the end."""
    thoughts = Thoughts()
    visible, _ = thoughts.feed(text[:_LONGEST])
    return visible + thoughts.end()[0]


def blocks(text: str, tag: str, attribute: str = "") -> Iterator[Block]:
    """Every block of `tag`, in order and in linear time; a second opening tag ends an unclosed
    block. `attribute`: the one that an opening tag may have; with any other one, and where this is
    empty with any, it is none.
    """
    opening, closing = _tags(tag, attribute)
    start = opening.search(text)
    while start is not None:
        following = opening.search(text, start.end())
        limit = following.start() if following else len(text)
        end = closing.search(text, start.end(), limit)
        body = text[start.end() : end.start() if end else limit]
        yield Block(body.strip(), start.start(), end is not None, one_line(start["named"] or ""))
        start = following


@cache
def _tags(tag: str, attribute: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The opening and the closing one."""
    may = (
        rf"""(?:\s{{1,9}}{attribute}\s{{0,9}}=\s{{0,9}}["'“]?(?P<named>[^"'”<>]{{0,100}})["'”]?)?"""
    )
    if not attribute:
        may = "(?P<named>)"
    return re.compile(rf"<\s*{tag}{may}\s*>", re.IGNORECASE), re.compile(
        rf"<\s*/\s*{tag}\s*>", re.IGNORECASE
    )


def element(tag: str, text: str) -> str:
    """`<tag>` around escaped `text`."""
    return f"<{tag}>{escape(text)}</{tag}>"


@dataclass(frozen=True, slots=True)
class Malformed:
    """Output that cannot be read: a correction turn, or a typed failure, answers to it."""

    reason: str
    """The defect, for the trace; never a piece of the output itself."""
