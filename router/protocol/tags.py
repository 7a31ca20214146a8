"""Tags of the search protocol, such as `<search>…</search>`, and escaping of all other text.

Everything that enters a prompt from outside (question, sub-query, passage, report) is escaped. Text
that a model copies from its prompt is unescaped when its output is parsed. So a tag in a document
is never mistaken for a tag that a model wrote.
"""

import html
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple

from router.frozen import Frozen
from router.models.model import encodable
from router.models.thoughts import Thoughts

_LONGEST = 300_000
"""Max characters of a turn that are parsed."""
_ENTITIES = ("&lt;", "&gt;", "&quot;", "&#39;", "&#x27;", "&amp;")
"""HTML entities that `unescape` replaces, in this order. `&amp;` must be last, because the
resulting `&` may begin another entity.
"""


class Block(NamedTuple):
    """One element `<tag>…</tag>` in a model's output."""

    body: str
    """The raw text between the tags."""
    start: int
    """Position of the opening tag, in characters."""
    closed: bool
    """False if the output ended before the closing tag."""
    named: str = ""
    """The value of the opening tag's attribute, such as a manager's name; empty if the tag has no
    attribute.
    """


def escape(text: str) -> str:
    """Replace `&`, `<` and `>` in `text` by entities, so that it contains no tags. Control tokens
    such as `<|im_end|>` become ordinary text too.
    """
    return html.escape(text, quote=False)


def unescape(text: str) -> str:
    """Undo `escape`. Also replace entities for quotes, which models add. Other entities are kept,
    as they may be ordinary text, such as `&copy=` in a URL.
    """
    if "&" in text:
        for entity in _ENTITIES:
            text = text.replace(entity, html.unescape(entity))
    return text


def readable(text: str) -> str:
    """Return `text` unescaped, in a form that every Unicode encoding can represent."""
    return encodable(unescape(text))


def one_line(text: str) -> str:
    """Return `readable(text)` on one line, with single spaces between words."""
    return " ".join(readable(text).split())


@lru_cache(64)  # the same output is parsed, and then shown in the next prompt
def without_thinking(text: str) -> str:
    """Return `text` without reasoning. Reasoning without a closing tag continues to the end."""
    thoughts = Thoughts()
    visible, _ = thoughts.feed(text[:_LONGEST])
    return visible + thoughts.end()[0]


def blocks(text: str, tag: str, attribute: str = "") -> Iterator[Block]:
    """Yield every element with the tag `tag`, in order. An element without a closing tag ends at
    the next opening tag of this kind. Takes linear time.

    `attribute`: the only attribute that an opening tag may have. An opening tag with another
    attribute is not recognised.
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
    """Return two regular expressions: for the opening tag, and for the closing tag."""
    may = (
        rf"""(?:\s{{1,9}}{attribute}\s{{0,9}}=\s{{0,9}}["'“]?(?P<named>[^"'”<>]{{0,100}})["'”]?)?"""
    )
    if not attribute:
        may = "(?P<named>)"
    return re.compile(rf"<\s*{tag}{may}\s*>", re.IGNORECASE), re.compile(
        rf"<\s*/\s*{tag}\s*>", re.IGNORECASE
    )


def element(tag: str, text: str) -> str:
    """Return the element `<tag>…</tag>` with `text` escaped in it."""
    return f"<{tag}>{escape(text)}</{tag}>"


class Malformed(Frozen):
    """Result of parsing an output that does not follow the protocol. The model is then asked for a
    correction, or the run fails.
    """

    reason: str
    """Description of the defect, for the trace. It never quotes the output."""
