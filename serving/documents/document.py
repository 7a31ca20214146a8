"""A document as it is read: a title, and blocks of text that know their heading and page; or the rows of a corpus."""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import TypeVar

import msgspec

from router.errors import BadDocument
from router.protocol.evidence import Passage
from router.trace.citation import sentences


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


T = TypeVar("T")

_ITEMS = 256
_CHARS = 1_000_000


def batches(items: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in lists short enough to be held in memory; `length` tells the characters of one."""
    batch: list[T] = []
    chars = 0
    for item in items:
        batch.append(item)
        chars += length(item)
        if len(batch) == _ITEMS or chars > _CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


_CHUNK_CHARS = 100_000
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\u00ad\ufeff\ufffe\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Unit:
    """A sentence, with the white space before it, or a heading."""

    text: str
    page: int | None
    is_heading: bool = False
    tokens: int = 0


def units(blocks: Iterable[Block]) -> Iterator[Unit]:
    """The units in order, not counted yet."""
    heading: str | None = None
    for block in blocks:
        if block.heading != heading and (shown := " ".join(cleaned(block.heading or "").split())):
            yield Unit(f"\n\n{shown}", block.page, is_heading=True)
        heading = block.heading
        yield from (Unit(text, block.page) for text in _sentences(cleaned(block.text)))


def _sentences(text: str) -> Iterator[str]:
    """The sentences, each with the white space before it, of which a blank line is kept, or a new line, or a space."""
    gap = "\n\n"
    for chunk in _chunks(text):
        at = 0
        for sentence in sentences(chunk):
            start = chunk.index(sentence, at)
            space = gap or chunk[at:start]
            yield ("\n\n" if space.count("\n") > 1 else "\n" if "\n" in space else " " if space else "") + sentence
            gap, at = "", start + len(sentence)


def _chunks(text: str) -> Iterator[str]:
    """The text in parts that are worked on at once, cut at a blank line if there is one, else at a line or a word."""
    start = 0
    while len(text) - start > _CHUNK_CHARS:
        ends = (text.rfind(space, start + 1, start + _CHUNK_CHARS) for space in ("\n\n", "\n", " "))
        end = next((end for end in ends if end > 0), start + _CHUNK_CHARS)
        yield text[start:end]
        start = end
    yield text[start:]


def cleaned(text: str) -> str:
    """Without control characters; new lines and new pages in one way."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n\n"))


MAX_BYTES = 256 << 20
"""The largest file that is read at once, unpacked."""
MAX_MARKUP_BYTES = 32 << 20
"""The same for markup, whose tree takes many times its size."""


def read_content(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The whole file; `.gz` is unpacked. Raises `BadDocument` where it is too large, and `OSError`."""
    size = path.stat().st_size
    if size <= max_bytes:
        with open_content(path) as file:
            content = file.read(max_bytes + 1)
        if len(content) <= max_bytes:
            return content
    raise BadDocument(f"{path}: larger than {max_bytes >> 20} MB; split it, or leave it out.")


def open_content(path: Path) -> BufferedIOBase:
    """The file, open; what is read of `.gz` is unpacked."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
