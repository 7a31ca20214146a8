"""Cutting a document into passages, by tokens, at the ends of sentences."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from router.errors import BadDocument
from router.protocol.evidence import Passage
from serving.documents.document import Block, Document, Part, Row, Title, Unit, batches, cleaned, units
from serving.documents.source import Source
from serving.documents.title import kind_of

_OVERLAP = 0.15
"""The share of a passage that may repeat the end of the one before."""
_SHORT = 1 / 3
"""A passage with less than this share of its tokens goes on past a heading."""
_TITLE = 1 / 4
"""The share that a title may take, and a heading as well."""
_CHARS_A_TOKEN = 16
"""Tokenizers make one token of a long word that they do not know; it counts as its length does."""
_LINE, _WORD = re.compile(r"\s*\S[^\n]*"), re.compile(r"\s*\S+")


@dataclass(frozen=True, slots=True)
class Piece:
    """What becomes a passage."""

    title: str
    text: str
    page: int | None


@dataclass(frozen=True, slots=True)
class Cutter:
    """How passages are cut."""

    max_tokens: int
    """Of a passage, its title included."""
    row_tokens: int
    """A row of a corpus that has no more is left as it is."""
    count_tokens: Callable[[Sequence[str]], list[int]]
    """The tokens of each text, as `Embedder.count_tokens`."""

    def cut(self, document: Document) -> Iterator[Piece]:
        """The pieces in order, at most `max_tokens` each as they are embedded; each begins with the last sentences of
        the one before, unless a page or a section ends there.
        """
        passage = _Passage(self, self._short_title(document.title))
        for unit in self._counted(units(document.blocks)):
            yield from passage.add(unit)
        yield from passage.end()

    def fit(self, texts: Sequence[str]) -> list[bool]:
        """Which of the texts have no more than `row_tokens`."""
        uncertain = [text for text in texts if 4 * len(text) > self.row_tokens]  # a letter has at most four bytes
        counts = dict(zip(uncertain, self.count(uncertain), strict=True))
        return [counts.get(text, 0) <= self.row_tokens for text in texts]

    def count(self, texts: Sequence[str]) -> list[int]:
        """The tokens of each text, at least one; of one that is far too long, a number that is too large as well."""
        most = _CHARS_A_TOKEN * (max(self.max_tokens, self.row_tokens) + 1)
        counts = self.count_tokens([text[:most] for text in texts]) if texts else []
        return [max(1, count, len(text) // _CHARS_A_TOKEN) for count, text in zip(counts, texts, strict=True)]

    def _counted(self, uncounted: Iterable[Unit]) -> Iterator[Unit]:
        for batch in batches(uncounted, lambda unit: len(unit.text)):
            counts = self.count([unit.text for unit in batch])
            yield from (replace(unit, tokens=tokens) for unit, tokens in zip(batch, counts, strict=True))

    def _short_title(self, title: str) -> str:
        title = " ".join(cleaned(title).split())
        while len(title) > 1 and self.count([title])[0] > _TITLE * self.max_tokens:
            title = title[: len(title) * 3 // 4].rstrip()
        return title


class _Passage:
    """The passage that is being filled, of one document."""

    def __init__(self, cutter: Cutter, title: str) -> None:
        self._cutter, self._title = cutter, title
        self._room = cutter.max_tokens - cutter.count([f"{title} ›\n"])[0]
        self._page: int | None = None
        self._heading: Unit | None = None
        self._units: list[Unit] = []
        self._repeated = 0
        """How many of the units, at its beginning, the passage before has as well."""

    def add(self, unit: Unit) -> Iterator[Piece]:
        """Take in the next sentence or heading; gives the passages that are full."""
        if unit.page != self._page:
            yield from self.end()
            self._page = unit.page
        if unit.is_heading and unit.tokens <= _TITLE * self._cutter.max_tokens:
            yield from self._turn_to(unit)
        else:
            limit = max(1, self._room - (self._heading.tokens if self._heading else 0))
            for part in [unit] if unit.tokens <= limit else self._parts(unit, limit):
                yield from self._put(replace(part, is_heading=False))

    def end(self) -> Iterator[Piece]:
        """Give what there is, and begin anew."""
        if len(self._units) > self._repeated:
            yield self._piece()
        self._units, self._repeated = [], 0

    def _turn_to(self, heading: Unit) -> Iterator[Piece]:
        is_title = heading.text.strip() == self._title
        taken = self._cutter.max_tokens - self._room + self._tokens()
        if len(self._units) == self._repeated or [unit.text.strip() for unit in self._units] == [self._title]:
            self._units, self._repeated = [], 0
        elif taken >= _SHORT * self._cutter.max_tokens:
            yield from self.end()
        self._heading = None if is_title else heading
        costless = is_title and not self._units  # the title says it already
        self._units.append(replace(heading, tokens=0) if costless else heading)

    def _put(self, unit: Unit) -> Iterator[Piece]:
        if self._tokens() + unit.tokens > self._room:
            if len(self._units) > self._repeated:
                yield self._piece()
            headings = [self._heading] if self._heading else []
            left = min(_OVERLAP * self._cutter.max_tokens, self._room - unit.tokens - sum(h.tokens for h in headings))
            self._units = [*headings, *self._last(left)]
            self._repeated = len(self._units)
        self._units.append(unit)

    def _last(self, tokens: float) -> list[Unit]:
        """The last sentences, as many as have no more than so many tokens."""
        last: list[Unit] = []
        for unit in reversed(self._units):
            tokens -= unit.tokens
            if unit.is_heading or tokens < 0:
                break
            last.insert(0, unit)
        return last

    def _tokens(self) -> int:
        return sum(unit.tokens for unit in self._units)

    def _piece(self) -> Piece:
        """A heading at the very beginning is a part of the title, unless there is nothing else."""
        title, shown = self._title, self._units
        if shown[0].is_heading and len(shown) > 1:
            heading, shown = shown[0].text.strip(), shown[1:]
            title = title if heading == title else f"{title} › {heading}"
        return Piece(title, "".join(unit.text for unit in shown).strip(), self._page)

    def _parts(self, unit: Unit, limit: int) -> Iterator[Unit]:
        """Lines of a sentence that is too long; words of such a line; and halves of such a word, each on its own."""
        parts = _LINE.findall(unit.text)
        if len(parts) == 1:
            parts = _WORD.findall(unit.text)
        if is_word := len(parts) == 1:
            middle = (len(unit.text) + 1) // 2
            parts = [unit.text[:middle], unit.text[middle:]]
        for part, tokens in zip(parts, self._cutter.count(parts), strict=True):
            if tokens > limit and len(part.strip()) > 1:
                yield from self._parts(replace(unit, text=part), limit)
            elif part.strip():
                yield replace(unit, text=part, tokens=limit if is_word else tokens)


def read_passages(
    source: Source, cutter: Cutter, read: Callable[[Path], Iterator[Part]]
) -> Iterator[tuple[str, Passage]]:
    """The passages of what `read` (`Reader.read`) gives, in order, each with the place that an error would name: its
    file and, where it is of a row, the line. They are read as they are asked for; memory does not grow with the number
    of rows or pages.

    Ids are `name#n`, n from 1, and those of rows their own, whose `document` is `name#id`. Raises what `read` raises,
    `BadDocument` where it gives no text, and what `cutter.count_tokens` raises.
    """
    path = Path(source.path)
    if kind_of(path) == "rows":
        for batch in batches((part for part in read(path) if isinstance(part, Row)), lambda row: row.chars):
            fits = cutter.fit([f"{row.passage.title}\n{row.passage.text}" for row in batch])
            for row, whole in zip(batch, fits, strict=True):
                named = msgspec.structs.replace(row.passage, document=f"{source.name}#{row.passage.id}")
                yield from ((row.where, passage) for passage in ([named] if whole else _cut_row(named, cutter)))
        return
    parts = read(path)
    title, number = next(parts), 0
    assert isinstance(title, Title)
    document = Document(title.text, (part for part in parts if isinstance(part, Block)))
    for number, piece in enumerate(cutter.cut(document), 1):
        passage_id = f"{source.name}#{number}"
        yield source.path, Passage(passage_id, piece.title, piece.text, document=source.name, page=piece.page)
    if not number:
        raise BadDocument(f"{path}: holds no text; leave it out.")


def _cut_row(row: Passage, cutter: Cutter) -> Iterator[Passage]:
    pieces = cutter.cut(Document(row.title, [Block(row.text)]))
    for number, piece in enumerate(pieces, 1):
        yield msgspec.structs.replace(row, id=f"{row.id}#{number}", title=piece.title, text=piece.text)
