"""The support of a value in the very passages that its executor was shown, and names that these tie together."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache
from itertools import islice
from typing import NamedTuple

from router.folding import fold, sought
from router.protocol import Passage
from router.table.cell_value import values_in
from router.trace.citation import Citation, citation, read
from router.trace.table import Column, Support

"""`stated`: a sentence says the value, and it, one beside it or the title names the row; `value_only`: none does; best
first.
"""

_BE = r"(?:is|was|are|were|has been|had been)"
_OFTEN = r"(?:also|formerly|previously|originally|officially|commonly|better|once|first|now|later|then)"
_TIE = re.compile(
    rf"(?<= )(?:(?:{_BE} )?(?:{_OFTEN} ){{0,3}}(?:became )?(?:known|abbreviated|written|spelled|spelt) as"
    rf"|(?:{_BE} (?:{_OFTEN} ){{0,3}}|(?:{_OFTEN} ){{1,3}})(?:called|named|renamed)(?: as| to)?"
    rf"|(?:{_BE} )?(?:formerly|previously|originally|officially|now|alias|aka|née|nee)"
    rf"|{_BE} (?:\w+ ){{0,3}}(?:name|title|alias|pseudonym|abbreviation) (?:of|for)"
    r"|(?:writes|wrote|published) (?:as|under (?:a )?(?:pen )?name(?: of)?)|changed its name to"
    r"|(?:又|亦|也|旧|古|原|简|全|别|俗|曾|现|更|改) (?:用 )?(?:称|名|叫)(?: (?:为|是|作))?|即)(?= )"
)
_MOST_WORDS, _MOST_CHARS = 12, 200
"""Of a name."""
_MOST_TIES = 64
"""Of a passage."""


class Tie(NamedTuple):
    """Words that say that what stands before them and what follows are names of the same."""

    before: tuple[str, ...]
    """All that may be the name, the longest first, folded."""
    after: tuple[str, ...]
    document: str
    sentence: str


def ties(sentence: str, document: str = "") -> Iterator[Tie]:
    """Return the ties in a folded sentence of a document."""
    for found in _TIE.finditer(sentence):
        left = sentence[max(0, found.start() - _MOST_CHARS) : found.start()].split()[-_MOST_WORDS:]
        right = sentence[found.end() : found.end() + _MOST_CHARS].split()[:_MOST_WORDS]
        if left and right:
            before = tuple(f" {' '.join(left[at:])} " for at in range(len(left)))
            after = tuple(f" {' '.join(right[:end])} " for end in range(len(right), 0, -1))
            yield Tie(before, after, document, sentence)


def tied(found: Iterable[Tie], known: Collection[str], documents: int = 2) -> Iterator[tuple[str, str]]:
    """Return the pairs of known names that so many documents tie, each in a sentence of its own.

    A sentence that two documents have in common counts once, as one of them is a copy.
    """
    said: dict[tuple[str, str], list[Tie]] = {}
    for tie in found:
        before = next((name for name in tie.before if name in known), None)
        after = next((name for name in tie.after if name in known), None)
        if before and after and before != after:
            said.setdefault((min(before, after), max(before, after)), []).append(tie)
    for pair, saying in said.items():
        if min(len({tie.document for tie in saying}), len({tie.sentence for tie in saying})) >= documents:
            yield pair


@lru_cache(256)
def _ties_of(text: str, document: str) -> tuple[Tie, ...]:
    """Return the first ties of a passage."""
    found = (tie for sentence in read(text).folded for tie in ties(sentence, document))
    return tuple(islice(found, _MOST_TIES))


class _Line(NamedTuple):
    """A passage's title, or one of its sentences."""

    passage: int
    sentence: str
    """Empty for a title."""
    folded: str


class Shown:
    """The passages that an executor was shown, each once.

    All their lines stand in one list, title first, with an empty one between passages, so that neighbours in the list
    are neighbours in a passage. An index of their words keeps the cost of a cell to the lines that hold it.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages = list({passage.id: passage for passage in passages}.values())
        self._lines = list[_Line]()
        self._index = defaultdict[str, list[int]](list)
        self._tied = defaultdict[str, dict[Tie, None]](dict)
        """Ties by the names that they may be about."""
        for number, passage in enumerate(self._passages):
            reading = read(passage.text)
            self._lines.append(_Line(number, "", fold(passage.title)))
            lines = zip(reading.sentences, reading.folded, strict=True)
            self._lines.extend(_Line(number, sentence, folded) for sentence, folded in lines)
            self._lines.append(_Line(number, "", ""))
        for at, line in enumerate(self._lines):
            for word in dict.fromkeys(line.folded.split()):
                self._index[word].append(at)

        placed = ((passage.text, passage.document or passage.title) for passage in self._passages)
        self.ties = tuple(tie for text, document in placed for tie in _ties_of(text, document))
        for tie in self.ties:
            for name in (*tie.before, *tie.after):
                self._tied[name][tie] = None
        self._holding = cache(self._lines_that_hold)
        self._naming = cache(self._lines_that_name)
        self._values = cache(self._lines_by_value)

    def also_named(self, names: Collection[str]) -> set[str]:
        """Folded names with those titles of passages that passages say are names of the same."""
        about = {tie: None for name in names for tie in self._tied.get(name, ())}
        if not about:
            return {*names}
        known = {*names, *(sought(passage.title) for passage in self._passages)}
        return {*names, *(name for pair in tied(about, known, 1) if set(pair) & set(names) for name in pair)}

    def support(
        self, column: Column, value: str, form: str, names: Collection[str]
    ) -> tuple[Support, tuple[Citation, ...]]:
        """The support of a value, with a sentence of each passage that gives it. `form`: its canonical form; `names`:
        folded names of its row.
        """
        places = [at for at in self._holding(sought(value)) if self._lines[at].sentence]
        if column.type in ("integer", "number", "date"):
            places += self._values(Column("", column.type, unit=column.unit)).get(form, ())
        if not places:
            return "unsupported", ()

        named = self._naming(frozenset(names))
        by_passage = defaultdict[int, list[int]](list)
        for at in places:
            by_passage[self._lines[at].passage].append(at)
        stated, held = list[Citation](), list[Citation]()
        for number, own in sorted(by_passage.items()):
            at = next((at for at in own if at in named), None)
            if at is None:
                at = next((at for at in own if not named.isdisjoint((-1 - number, at - 1, at + 1))), None)
            cited = citation(self._passages[number], self._lines[own[0] if at is None else at].sentence)
            (held if at is None else stated).append(cited)
        return ("stated", tuple(stated)) if stated else ("value_only", tuple(held))

    def _lines_that_hold(self, wanted: str) -> list[int]:
        """Return the lines that hold a folded text."""
        if not wanted:
            return []
        rarest = min((self._index.get(word, []) for word in wanted.split()), key=len)
        return [at for at in rarest if wanted in self._lines[at].folded]

    def _lines_that_name(self, names: frozenset[str]) -> set[int]:
        """Return the lines that hold one of these names; for a title, -1 less the number of its passage."""
        places = {at for name in names for at in self._holding(name)}
        return {at if self._lines[at].sentence else -1 - self._lines[at].passage for at in places}

    def _lines_by_value(self, column: Column) -> dict[str, list[int]]:
        """Return the sentences by the canonical forms of their numbers or dates; a date also by its year and month."""
        found = defaultdict[str, list[int]](list)
        for at, line in enumerate(self._lines):
            for form in dict.fromkeys(values_in(column, line.sentence)):
                parts = form.split("-")
                for end in range(1, len(parts) + 1):
                    found["-".join(parts[:end])].append(at)
        return found
