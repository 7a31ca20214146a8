"""What passages are made of: sentences and headings."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from router.trace.citation import sentences
from serving.documents.document import Block

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
