"""Cut a document into passages at the ends of sentences. The tokens of a passage are limited.

Each sentence or heading of the document is a unit. Units are added to the current passage until the
next unit does not fit. Then the passage is yielded. The next passage begins with the same heading
and repeats the last sentences of the previous passage, up to 15 % of the max tokens. A new page
ends a passage, and so does a new section, unless the passage is short. A heading at the beginning
of a passage becomes a part of the passage's title.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from router.errors import BadDocument
from router.frozen import Frozen
from router.trace.citation import sentences
from serving.documents.document import (
    CorpusRow,
    Document,
    Part,
    TextBlock,
    Title,
    batches,
    cleaned,
)
from serving.documents.metadata import MAX_CHARS, StoredPassage
from serving.documents.source import SourceFile

_OVERLAP = 0.15
"""A passage may repeat sentences of the previous passage, up to this share of the max tokens."""
_SHORT = 1 / 3
"""A passage with less than this share of the max tokens does not end at a heading."""
_TITLE = 1 / 4
"""A title is shortened if it takes more than this share of the max tokens of a passage. A heading
that takes more is treated as a sentence.
"""
_CHARS_PER_TOKEN = 16
"""At least one token is counted for this number of characters, because some tokenizers encode a
long unknown word as one token.
"""
_CHUNK_CHARS = 100_000
_LINE = re.compile(r"\s*\S[^\n]*")
_WORD = re.compile(r"\s*\S+")


class Piece(NamedTuple):
    """A part of a document that becomes a passage, with the title, page and location of that
    passage.
    """

    title: str
    text: str
    page: int | None
    location: str = ""


class _Unit(NamedTuple):
    """A sentence with the white space before it, or a heading."""

    text: str
    place: tuple[int | None, str]
    """Page and location of the unit."""
    is_heading: bool = False
    tokens: int = 0


class Cutter(Frozen):
    """Limits of passages, and the function that counts tokens. `cut` cuts a document into
    passages.
    """

    max_tokens: int
    """Max tokens of a passage, including its title."""
    row_tokens: int
    """Max tokens of a row of a corpus file. A longer row is cut into several passages."""
    count_tokens: Callable[[Sequence[str]], list[int]]
    """Function that returns the number of tokens of each text; see `Embedder.count_tokens`."""

    def cut(self, document: Document) -> Iterator[Piece]:
        """Yield the pieces of a document in order. Each has at most `max_tokens` tokens, including
        its title.
        """
        title = " ".join(cleaned(document.title).split())
        while len(title) > 1 and self.count([title])[0] > _TITLE * self.max_tokens:
            title = title[: len(title) * 3 // 4].rstrip()

        passage = _Passage(self, title)
        blocks = (block for block in document.blocks if isinstance(block, TextBlock))
        for batch in batches(_units(blocks), lambda unit: len(unit.text)):
            for unit, tokens in zip(batch, self.count([unit.text for unit in batch]), strict=True):
                yield from passage.add(unit._replace(tokens=tokens))
        yield from passage.end()

    def fit(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether it has at most `row_tokens` tokens."""
        # A character has at most four bytes, and therefore at most four tokens, so short texts
        # always fit
        long = [text for text in texts if 4 * len(text) > self.row_tokens]
        counts = dict(zip(long, self.count(long), strict=True))
        return [counts.get(text, 0) <= self.row_tokens for text in texts]

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, at least 1. If a text is certainly longer than
        `max_tokens` and `row_tokens`, only its beginning is tokenized. The number for such a text
        exceeds both limits, but is not exact.
        """
        max_chars = _CHARS_PER_TOKEN * (max(self.max_tokens, self.row_tokens) + 1)
        counts = self.count_tokens([text[:max_chars] for text in texts]) if texts else []
        return [
            max(1, count, len(text) // _CHARS_PER_TOKEN)
            for count, text in zip(counts, texts, strict=True)
        ]


class _Passage:
    """The passage that is being filled."""

    def __init__(self, cutter: Cutter, title: str) -> None:
        self._title = title
        self._max_tokens = cutter.max_tokens
        self._count = cutter.count
        self._title_tokens = cutter.count([f"{title} ›\n"])[0]
        self._place: tuple[int | None, str] = (None, "")
        self._heading: _Unit | None = None
        self._units = list[_Unit]()
        self._repeated = 0
        """Number of units at the beginning of the passage that repeat units of the previous
        passage.
        """

    def add(self, unit: _Unit) -> Iterator[Piece]:
        """Add the next sentence or heading. Yield the passages that are full."""
        if unit.place != self._place:
            yield from self.end()
            self._place = unit.place
            if unit.place[1] and self._heading and not unit.is_heading:
                self._units = [self._heading]
                self._repeated = 1
        if unit.is_heading and unit.tokens <= _TITLE * self._max_tokens:
            yield from self._begin_section(unit)
            return

        headings = [self._heading] if self._heading else []
        room = self._max_tokens - self._title_tokens
        limit = max(1, room - _tokens(headings))
        parts = [unit] if unit.tokens <= limit else self._split(unit, limit)
        for part in parts:
            if _tokens(self._units) + part.tokens > room:
                overlap = self._overlap(limit - part.tokens)
                yield from self.end()
                self._units = [*headings, *overlap]
                self._repeated = len(self._units)
            self._units.append(part._replace(is_heading=False))

    def end(self) -> Iterator[Piece]:
        """Yield the current passage, unless it only repeats text of the previous passage. Then
        begin an empty passage.
        """
        if len(self._units) > self._repeated:
            title = self._title
            units = self._units
            if units[0].is_heading and len(units) > 1:
                heading = units[0].text.strip()
                units = units[1:]
                title = title if heading == title else f"{title} › {heading}"
            yield Piece(title, "".join(unit.text for unit in units).strip(), *self._place)
        self._units = []
        self._repeated = 0

    def _begin_section(self, heading: _Unit) -> Iterator[Piece]:
        is_title = heading.text.strip() == self._title
        has_title_only = [unit.text.strip() for unit in self._units] == [self._title]
        if len(self._units) == self._repeated or has_title_only:
            self._units = []
            self._repeated = 0
        elif self._title_tokens + _tokens(self._units) >= _SHORT * self._max_tokens:
            yield from self.end()

        self._heading = None if is_title else heading
        # The title already contains the heading's text
        is_free = is_title and not self._units
        self._units.append(heading._replace(tokens=0) if is_free else heading)

    def _overlap(self, room: float) -> list[_Unit]:
        """Return the last sentences of the passage, to repeat them in the next passage. Together,
        they have at most `room` tokens, and at most the share `_OVERLAP` of the max tokens.
        """
        left = min(_OVERLAP * self._max_tokens, room)
        overlap = list[_Unit]()
        for unit in reversed(self._units):
            left -= unit.tokens
            if unit.is_heading or left < 0:
                break
            overlap.insert(0, unit)
        return overlap

    def _split(self, unit: _Unit, limit: int) -> Iterator[_Unit]:
        """Split a sentence of more than `limit` tokens into lines, a longer line into words, and a
        longer word into halves.
        """
        parts = _LINE.findall(unit.text)
        if len(parts) == 1:
            parts = _WORD.findall(unit.text)
        is_word = len(parts) == 1
        if is_word:
            middle = (len(unit.text) + 1) // 2
            parts = [unit.text[:middle], unit.text[middle:]]
        for part, tokens in zip(parts, self._count(parts), strict=True):
            if tokens > limit and len(part.strip()) > 1:
                yield from self._split(unit._replace(text=part), limit)
            elif part.strip():
                yield unit._replace(text=part, tokens=limit if is_word else tokens)


def _tokens(units: Iterable[_Unit]) -> int:
    return sum(unit.tokens for unit in units)


def _units(blocks: Iterable[TextBlock]) -> Iterator[_Unit]:
    """Yield the headings and sentences in order."""
    heading: str | None = None
    for block in blocks:
        place = (block.page, block.location)
        if block.heading != heading:
            heading = block.heading
            if text := " ".join(cleaned(heading or "").split()):
                yield _Unit(f"\n\n{text}", place, is_heading=True)

        gap = "\n\n"
        for chunk in _chunks(cleaned(block.text)):
            end = 0
            for sentence in sentences(chunk):
                start = chunk.index(sentence, end)
                yield _Unit(_space(gap or chunk[end:start]) + sentence, place)
                gap = ""
                end = start + len(sentence)


def _space(space: str) -> str:
    """Reduce white space to a blank line, a line break or one space. Return "" if `space` is
    empty.
    """
    newlines = space.count("\n")
    if newlines:
        return "\n\n"[:newlines]
    return " " if space else ""


def _chunks(text: str) -> Iterator[str]:
    """Yield the text in parts of at most `_CHUNK_CHARS` characters, cut at a blank line if
    possible, else at a line break or a space.
    """
    start = 0
    while len(text) - start > _CHUNK_CHARS:
        ends = (text.rfind(space, start + 1, start + _CHUNK_CHARS) for space in ("\n\n", "\n", " "))
        end = next((end for end in ends if end > 0), start + _CHUNK_CHARS)
        yield text[start:end]
        start = end
    yield text[start:]


def read_passages(
    source: SourceFile, cutter: Cutter, read: Callable[[Path], Iterator[Part]]
) -> Iterator[tuple[str, StoredPassage]]:
    """Yield (place, passage) for each passage of a file, in order. The place is for error messages:
    the file's path, or `FILE:LINE` for a row.

    `read`: returns the parts of a file, as `DocumentReader.read` does. Passages of a document have
    the ids `NAME#N`, where NAME is the file's name, and N counts from 1. Rows of a corpus file keep
    their ids, and have `NAME#ID` as `document`. Raises the errors of `read` and
    `cutter.count_tokens`, and `BadDocument` for a file without text.
    """
    path = Path(source.path)
    parts = read(path)
    title = next(parts)
    if not isinstance(title, Title):
        rows = (part for part in chain((title,), parts) if isinstance(part, CorpusRow))
        yield from _rows(source.name, cutter, rows)
        return

    document = Document(title.text, (part for part in parts if isinstance(part, TextBlock)))
    about = replace(title.metadata, title=title.text[:MAX_CHARS], path=source.name)
    number = 0
    for number, piece in enumerate(cutter.cut(document), 1):
        passage_id = f"{source.name}#{number}"
        passage = StoredPassage(
            passage_id,
            piece.title,
            piece.text,
            document=source.name,
            page=piece.page,
            location=piece.location,
            metadata=about,
        )
        yield source.path, passage
    if not number:
        raise BadDocument(f"{path}: contains no text; leave it out.")


def _rows(
    name: str, cutter: Cutter, rows: Iterable[CorpusRow]
) -> Iterator[tuple[str, StoredPassage]]:
    """Yield (place, passage) for each row. A row of more than `row_tokens` tokens is cut into
    several passages.
    """
    for batch in batches(rows, lambda row: len(row.passage.text)):
        fits = cutter.fit([f"{row.passage.title}\n{row.passage.text}" for row in batch])
        for row, fit in zip(batch, fits, strict=True):
            about = row.passage.metadata
            about = replace(about, path=about.path or name)
            passage = replace(row.passage, document=f"{name}#{row.passage.id}", metadata=about)
            for part in [passage] if fit else _cut_row(passage, cutter):
                yield row.where, part


def _cut_row(row: StoredPassage, cutter: Cutter) -> Iterator[StoredPassage]:
    pieces = cutter.cut(Document(row.title, [TextBlock(row.text)]))
    for number, piece in enumerate(pieces, 1):
        yield replace(row, id=f"{row.id}#{number}", title=piece.title, text=piece.text)
