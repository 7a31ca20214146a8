"""A document as it is read: a title, and blocks of text that know their heading and page; or the rows of a corpus."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from router.protocol.evidence import Passage


class Title(msgspec.Struct, frozen=True, tag=True):
    """That of a document."""

    text: str

    @property
    def chars(self) -> int:
        """Its length."""
        return len(self.text)


class Block(msgspec.Struct, frozen=True, tag=True):
    """A paragraph, a row of a table, a page, or a whole text."""

    text: str
    """White space in it is the document's own; empty under a heading that has no text."""
    heading: str | None = None
    """The heading that it stands under."""
    page: int | None = None
    """Its page, from 1."""

    @property
    def chars(self) -> int:
        """Its length."""
        return len(self.text) + len(self.heading or "")


class Row(msgspec.Struct, frozen=True, tag=True):
    """A passage that was cut already."""

    where: str
    """Its file and line."""
    passage: Passage

    @property
    def chars(self) -> int:
        """Its length."""
        return len(self.passage.text)


Part = Title | Block | Row


@dataclass(frozen=True, slots=True)
class Document:
    """What a reader makes of a file."""

    title: str
    blocks: Iterable[Block]
    """In order; may be read as they are asked for, and only once."""
