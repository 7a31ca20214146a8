"""The support of a value in the very passages that its executor was shown, and names that these
tie together.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache
from itertools import accumulate, chain, islice
from typing import NamedTuple

from router.folding import fold, sought
from router.protocol import Passage
from router.table.cell_value import values_in
from router.trace.citation import MOST_CITED, Citation, citation, read
from router.trace.table import Column, Support

"""`stated`: a sentence says the value, and it, one beside it or the title names the row;
`value_only`: none does; best first.
"""

_BE = r"(?:is|was|are|were|has been|had been)"
_OFTEN = (
    r"(?:also|formerly|previously|originally|officially|commonly|better|once|first|now|later|then)"
)
_TIE = re.compile(
    rf"(?<= )(?:(?:{_BE} )?(?:{_OFTEN} ){{0,3}}(?:became )?(?:known|abbreviated|written|"
    rf"spelled|spelt) as"
    rf"|(?:{_BE} (?:{_OFTEN} ){{0,3}}|(?:{_OFTEN} ){{1,3}})(?:called|named|renamed)(?: as| to)?"
    rf"|(?:{_BE} )?(?:formerly|previously|originally|officially|now|alias|aka|née|nee)"
    rf"|{_BE} (?:\w+ ){{0,3}}(?:name|title|alias|pseudonym|abbreviation) (?:of|for)"
    r"|(?:writes|wrote|published) (?:as|under (?:a )?(?:pen )?name(?: of)?)|changed its name to"
    r"|(?:又|亦|也|旧|古|原|简|全|别|俗|曾|现|更|改) (?:用 )?"
    r"(?:称|名|叫)(?: (?:为|是|作))?|即)(?= )"
)
_MOST_WORDS = 12
_MOST_CHARS = 200
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


def tied(
    found: Iterable[Tie], known: Collection[str], documents: int = 2
) -> Iterator[tuple[str, str]]:
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
        if (
            min(len({tie.document for tie in saying}), len({tie.sentence for tie in saying}))
            >= documents
        ):
            yield pair


@lru_cache(256)
def _ties_of(text: str, document: str) -> tuple[Tie, ...]:
    """Return the first ties of a passage."""
    found = (tie for sentence in read(text).folded for tie in ties(sentence, document))
    return tuple(islice(found, _MOST_TIES))


class Shown:
    """The passages that an executor was shown, each once."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages = list({passage.id: passage for passage in passages}.values())
        self._readings = [read(passage.text) for passage in self._passages]
        self._titles = [fold(passage.title) for passage in self._passages]
        self.ties = tuple(
            tie
            for passage in self._passages
            for tie in _ties_of(passage.text, passage.document or passage.title)
        )
        self._values = cache(self._by_value)

    def also_named(self, names: Collection[str]) -> set[str]:
        """Folded names with those titles of passages that passages say are names of the same."""
        known = {*names, *self._titles}
        return {
            *names,
            *(
                name
                for pair in tied(self.ties, known, 1)
                if set(pair) & set(names)
                for name in pair
            ),
        }

    def support(
        self, column: Column, value: str, form: str, names: Collection[str]
    ) -> tuple[Support, tuple[Citation, ...]]:
        """The support of a value, with a sentence of each passage that gives it. `form`: its
        canonical form; `names`: folded names of its row.
        """
        wanted = sought(value)
        kind = Column("", column.type, unit=column.unit)
        typed = self._values(kind)

        def worth(excerpt: str, folded: str) -> int:
            said = wanted in folded or any(
                found.startswith(form) for found in values_in(kind, excerpt)
            )
            return 2 * said + any(name in folded for name in names)

        stated = list[Citation]()
        held = list[Citation]()
        for passage, reading, title, values in zip(
            self._passages, self._readings, self._titles, typed, strict=True
        ):
            places = [*reading.places(wanted), *values.get(form, ())]
            if not places:
                continue
            named = {at for name in names for at in reading.places(name)}
            titled = any(name in title for name in names)
            beside = (at for at in places if titled or not named.isdisjoint((at - 1, at + 1)))
            at = next(chain(filter(named.__contains__, places), beside), None)
            cited = citation(passage, reading.sentences[places[0] if at is None else at], worth)
            (held if at is None else stated).append(cited)
        if stated or not held:
            return ("stated", tuple(stated[:MOST_CITED])) if stated else ("unsupported", ())
        return "value_only", tuple(held[:MOST_CITED])

    def _by_value(self, column: Column) -> list[dict[str, list[int]]]:
        """Return for each passage its sentences by their numbers or dates, a date also by its
        year and month.
        """
        found = list[dict[str, list[int]]]()
        for reading in self._readings:
            places: dict[str, list[int]] = {}
            for at, sentence in enumerate(reading.sentences):
                for form in values_in(column, sentence):
                    for part in accumulate(form.split("-"), "{}-{}".format):
                        places.setdefault(part, []).append(at)
            found.append(places)
        return found
