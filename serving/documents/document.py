"""A document as it is read: a title, and blocks of text that know their heading and page."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, a row of a table, a page, or a whole text."""

    text: str
    """White space in it is the document's own; empty under a heading that has no text."""
    heading: str | None = None
    """The heading that it stands under."""
    page: int | None = None
    """Its page, from 1."""


@dataclass(frozen=True, slots=True)
class Document:
    """What a reader makes of a file."""

    title: str
    blocks: Iterable[Block]
    """In order; may be read as they are asked for, and only once."""
