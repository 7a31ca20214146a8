"""Cutting a document into passages, by tokens, at the ends of sentences."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from router.errors import BadDocument
from router.protocol import Passage
from router.trace.citation import sentences
from serving.documents.document import Block, Document, Part, Row, Title, batches, cleaned, kind_of
from serving.documents.source import Source

_OVERLAP = 0.15
"""The share of a passage that may repeat the end of the one before."""
_SHORT = 1 / 3
"""A passage with less than this share of its tokens goes on past a heading."""
_TITLE = 1 / 4
"""The share that a title may take, and a heading as well."""
_CHARS_A_TOKEN = 16
"""Tokenizers make one token of a long word that they do not know; it counts as its length does."""
_CHUNK_CHARS = 100_000
_LINE = re.compile(r"\s*\S[^\n]*")
_WORD = re.compile(r"\s*\S+")


class Piece(NamedTuple):
    """A part of a document that becomes a passage."""

    title: str
    text: str
    page: int | None


class _Unit(NamedTuple):
    """A sentence, with the white space before it, or a heading."""

    text: str
    page: int | None
    is_heading: bool = False
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Cutter:
    """Limits of passages, and the counter of their tokens."""

    max_tokens: int
    """Of a passage, its title included."""
    row_tokens: int
    """A row of a corpus that has no more is left as it is."""
    count_tokens: Callable[[Sequence[str]], list[int]]
    """The tokens of each text, as `Embedder.count_tokens`."""

    def cut(self, document: Document) -> Iterator[Piece]:
        """The pieces in order, at most `max_tokens` each as they are embedded; each begins with the
        last sentences of the one before, unless a page or a section ends there.
        """
        title = " ".join(cleaned(document.title).split())
        while len(title) > 1 and self.count([title])[0] > _TITLE * self.max_tokens:
            title = title[: len(title) * 3 // 4].rstrip()
        passage = _Passage(self, title)
        blocks = (block for block in document.blocks if isinstance(block, Block))
        for batch in batches(_units(blocks), lambda unit: len(unit.text)):
            for unit, tokens in zip(batch, self.count([unit.text for unit in batch]), strict=True):
                yield from passage.add(unit._replace(tokens=tokens))
        yield from passage.end()

    def fit(self, texts: Sequence[str]) -> list[bool]:
        """Tell which of the texts have no more than `row_tokens`."""
        # A letter has at most four bytes
        uncertain = [text for text in texts if 4 * len(text) > self.row_tokens]
        counts = dict(zip(uncertain, self.count(uncertain), strict=True))
        return [counts.get(text, 0) <= self.row_tokens for text in texts]

    def count(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, at least one; of one that is far too long, a number that is
        too large as well.
        """
        most = _CHARS_A_TOKEN * (max(self.max_tokens, self.row_tokens) + 1)
        counts = self.count_tokens([text[:most] for text in texts]) if texts else []
        return [
            max(1, count, len(text) // _CHARS_A_TOKEN)
            for count, text in zip(counts, texts, strict=True)
        ]


class _Passage:
    """The passage that is being filled, of one document."""

    def __init__(self, cutter: Cutter, title: str) -> None:
        self._title = title
        self._most = cutter.max_tokens
        self._count = cutter.count
        self._room = cutter.max_tokens - cutter.count([f"{title} ›\n"])[0]
        self._page: int | None = None
        self._heading: _Unit | None = None
        self._units: list[_Unit] = []
        self._repeated = 0
        """The number of units, at its beginning, that the passage before has as well."""

    def add(self, unit: _Unit) -> Iterator[Piece]:
        """Take in the next sentence or heading; gives the passages that are full."""
        if unit.page != self._page:
            yield from self.end()
            self._page = unit.page
        if unit.is_heading and unit.tokens <= _TITLE * self._most:
            yield from self._begin_section(unit)
            return
        limit = max(1, self._room - (self._heading.tokens if self._heading else 0))
        for part in [unit] if unit.tokens <= limit else self._parts(unit, limit):
            if _tokens(self._units) + part.tokens > self._room:
                headings = [self._heading] if self._heading else []
                left = min(_OVERLAP * self._most, self._room - part.tokens - _tokens(headings))
                overlap = self._last(left)
                yield from self.end()
                self._units = [*headings, *overlap]
                self._repeated = len(headings) + len(overlap)
            self._units.append(part._replace(is_heading=False))

    def end(self) -> Iterator[Piece]:
        """Give what there is, and begin anew. A heading at the very beginning becomes a part of
        the title.
        """
        if len(self._units) > self._repeated:
            title = self._title
            units = self._units
            if units[0].is_heading and len(units) > 1:
                heading = units[0].text.strip()
                units = units[1:]
                title = title if heading == title else f"{title} › {heading}"
            yield Piece(title, "".join(unit.text for unit in units).strip(), self._page)
        self._units = []
        self._repeated = 0

    def _begin_section(self, heading: _Unit) -> Iterator[Piece]:
        is_title = heading.text.strip() == self._title
        if len(self._units) == self._repeated or [unit.text.strip() for unit in self._units] == [
            self._title
        ]:
            self._units = []
            self._repeated = 0
        elif self._most - self._room + _tokens(self._units) >= _SHORT * self._most:
            yield from self.end()
        self._heading = None if is_title else heading
        costless = is_title and not self._units  # the title says it already
        self._units.append(heading._replace(tokens=0) if costless else heading)

    def _last(self, tokens: float) -> list[_Unit]:
        """The last sentences, as many as have no more than so many tokens."""
        last: list[_Unit] = []
        for unit in reversed(self._units):
            tokens -= unit.tokens
            if unit.is_heading or tokens < 0:
                break
            last.insert(0, unit)
        return last

    def _parts(self, unit: _Unit, limit: int) -> Iterator[_Unit]:
        """Lines of a sentence that is too long; words of such a line; and halves of such a
        word, each on its own.
        """
        parts = _LINE.findall(unit.text)
        if len(parts) == 1:
            parts = _WORD.findall(unit.text)
        if is_word := len(parts) == 1:
            middle = (len(unit.text) + 1) // 2
            parts = [unit.text[:middle], unit.text[middle:]]
        for part, tokens in zip(parts, self._count(parts), strict=True):
            if tokens > limit and len(part.strip()) > 1:
                yield from self._parts(unit._replace(text=part), limit)
            elif part.strip():
                yield unit._replace(text=part, tokens=limit if is_word else tokens)


def _tokens(units: Iterable[_Unit]) -> int:
    return sum(unit.tokens for unit in units)


def _units(blocks: Iterable[Block]) -> Iterator[_Unit]:
    """The headings and sentences in order. Of the white space before a sentence a blank line is
    kept, or a new line, or a space.
    """
    heading: str | None = None
    for block in blocks:
        if block.heading != heading and (shown := " ".join(cleaned(block.heading or "").split())):
            yield _Unit(f"\n\n{shown}", block.page, is_heading=True)
        heading = block.heading
        gap = "\n\n"
        for chunk in _chunks(cleaned(block.text)):
            at = 0
            for sentence in sentences(chunk):
                start = chunk.index(sentence, at)
                space = gap or chunk[at:start]
                kept = (
                    "\n\n"
                    if space.count("\n") > 1
                    else "\n"
                    if "\n" in space
                    else " "
                    if space
                    else ""
                )
                yield _Unit(kept + sentence, block.page)
                gap = ""
                at = start + len(sentence)


def _chunks(text: str) -> Iterator[str]:
    """The text in parts that are worked on at once, cut at a blank line if there is one, else
    at a line or a word.
    """
    start = 0
    while len(text) - start > _CHUNK_CHARS:
        ends = (text.rfind(space, start + 1, start + _CHUNK_CHARS) for space in ("\n\n", "\n", " "))
        end = next((end for end in ends if end > 0), start + _CHUNK_CHARS)
        yield text[start:end]
        start = end
    yield text[start:]


def read_passages(
    source: Source, cutter: Cutter, read: Callable[[Path], Iterator[Part]]
) -> Iterator[tuple[str, Passage]]:
    """The passages of what `read` (`Reader.read`) gives, in order, each with the place that an
    error would name: its file and, where it is of a row, the line. They are read as they are asked
    for.

    Ids are `name#n`, n from 1, and those of rows their own, whose `document` is `name#id`. Raises
    what `read` raises, `BadDocument` where it gives no text, and what `cutter.count_tokens` raises.
    """
    path = Path(source.path)
    parts = read(Path(source.path))
    number = 0
    if kind_of(path) == "rows":
        rows = (part for part in parts if isinstance(part, Row))
        for batch in batches(rows, lambda row: len(row.passage.text)):
            fits = cutter.fit([f"{row.passage.title}\n{row.passage.text}" for row in batch])
            for row, fit in zip(batch, fits, strict=True):
                passage = replace(row.passage, document=f"{source.name}#{row.passage.id}")
                yield from (
                    (row.where, each) for each in ([passage] if fit else _cut_row(passage, cutter))
                )
        return
    title = next(parts)
    assert isinstance(title, Title)
    document = Document(title.text, (part for part in parts if isinstance(part, Block)))
    for number, piece in enumerate(cutter.cut(document), 1):
        passage_id = f"{source.name}#{number}"
        yield (
            source.path,
            Passage(passage_id, piece.title, piece.text, document=source.name, page=piece.page),
        )
    if not number:
        raise BadDocument(f"{path}: holds no text; leave it out.")


def _cut_row(row: Passage, cutter: Cutter) -> Iterator[Passage]:
    pieces = cutter.cut(Document(row.title, [Block(row.text)]))
    for number, piece in enumerate(pieces, 1):
        yield replace(row, id=f"{row.id}#{number}", title=piece.title, text=piece.text)
