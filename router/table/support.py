"""Support of the values in an executor's report by the passages that the executor was shown. Also
finds *ties*, statements that two names belong to the same thing ("A, also known as B").

- `stated`: a sentence contains the value, and the row is named in that sentence, in the sentence
  before or after it, or in the passage's title.
- `value_only`: a sentence contains the value, but the row is not named nearby.
- `unsupported`: no sentence contains the value.

A key is also stated if it is in a passage's title. For values of boolean columns, and for choices
whose words no sentence contains, the sentences that the report cites as evidence are checked
instead.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache
from itertools import accumulate, chain, islice
from typing import NamedTuple

from router.folding import fold, sought
from router.protocol import Passage
from router.table.cell_value import canonical, is_mistyped, values_in
from router.table.numbers import signs_in, signs_of
from router.trace.citation import MAX_CITED, Citation, citation, read
from router.trace.table import Column, Support

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
"""Matches words such as "also known as" between two names of the same thing, in a folded sentence.
"""
_BREAK = re.compile(r"<br\s{0,4}/?>", re.IGNORECASE)
_MAX_WORDS = 12
_MAX_CHARS = 200
"""`_MAX_WORDS`, `_MAX_CHARS`: max words and max characters of a name."""
_MAX_TIES = 64
"""Max ties that are read from one passage."""


class Tie(NamedTuple):
    """A statement that two names belong to the same thing, as in "A, also known as B". The sentence
    does not tell where the first name begins and where the second name ends, so there are several
    candidates for each name.
    """

    before: tuple[str, ...]
    """Candidates for the first name: folded texts that end before "also known as", the longest
    first.
    """
    after: tuple[str, ...]
    """Candidates for the second name: folded texts that begin after "also known as", the longest
    first.
    """
    document: str
    sentence: str


def ties(sentence: str, document: str = "") -> Iterator[Tie]:
    """Yield the ties in the folded sentence `sentence` of a document."""
    for words in _TIE.finditer(sentence):
        left = sentence[max(0, words.start() - _MAX_CHARS) : words.start()].split()[-_MAX_WORDS:]
        right = sentence[words.end() : words.end() + _MAX_CHARS].split()[:_MAX_WORDS]
        if left and right:
            before = tuple(f" {' '.join(left[at:])} " for at in range(len(left)))
            after = tuple(f" {' '.join(right[:end])} " for end in range(len(right), 0, -1))
            yield Tie(before, after, document, sentence)


def tied(
    candidates: Iterable[Tie],
    known: Collection[str],
    documents: int = 2,
) -> Iterator[tuple[str, str]]:
    """Yield pairs of names in `known` that belong to the same thing. A pair needs ties in at least
    `documents` different documents.

    If two documents contain the same sentence, it counts only once, because one document probably
    copied it from the other.
    """
    ties_of_pairs = dict[tuple[str, str], list[Tie]]()
    for tie in candidates:
        before = next((name for name in tie.before if name in known), None)
        after = next((name for name in tie.after if name in known), None)
        if before and after and before != after:
            pair = (min(before, after), max(before, after))
            ties_of_pairs.setdefault(pair, []).append(tie)
    for pair, members in ties_of_pairs.items():
        sources = {tie.document for tie in members}
        sentences = {tie.sentence for tie in members}
        if min(len(sources), len(sentences)) >= documents:
            yield pair


@lru_cache(256)
def _ties_of(text: str, document: str) -> tuple[Tie, ...]:
    """Return the first `_MAX_TIES` ties in the text of a passage."""
    sentences = (ties(sentence, document) for sentence in read(text).folded)
    return tuple(islice(chain.from_iterable(sentences), _MAX_TIES))


def support_of(
    citations: Iterable[Citation], names: Collection[str]
) -> tuple[Support, tuple[Citation, ...]]:
    """Return the support of a value that need not occur in a passage, such as "yes", and the
    citations that support it. `citations`: the citations of the report's evidence. `names`: the
    folded names of the value's row.
    """
    cited = tuple(dict.fromkeys(citations))[:MAX_CITED]
    stated = tuple(
        at for at in cited if any(name in fold(f"{at.title}\n{at.quote}") for name in names)
    )
    if stated:
        return "stated", stated
    return "value_only" if cited else "unsupported", cited


def _words(column: Column, value: str) -> str:
    """Return the folded words of a value, to be looked for in sentences. Return an empty string for
    a number. Folded texts have no signs and no units, so a search for "5 %" would also find "-5".
    """
    is_number = column.type in ("integer", "number") and not is_mistyped(column, value)
    return "" if is_number else sought(value)


def _is_in_title(column: Column, value: str, form: str, title: str, folded: str) -> bool:
    """Return whether a title contains a value. `form`: the value's canonical form. `folded`: the
    folded title.
    """
    if wanted := _words(column, value):
        return wanted in folded
    return bool(form) and form in values_in(_kind(column), title)


def _kind(column: Column) -> Column:
    """Return a column that has only the type and the unit of `column`. It is used as a cache key,
    so that all columns of this type and unit share cached values.
    """
    return Column("", column.type, unit=column.unit)


class Shown:
    """The distinct passages that an executor was shown, prepared for looking up values."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages = list({passage.id: passage for passage in passages}.values())
        self._readings = [read(_BREAK.sub("\n", passage.text)) for passage in self._passages]
        self._titles = [fold(passage.title) for passage in self._passages]
        self.ties = tuple(
            tie
            for passage in self._passages
            for tie in _ties_of(passage.text, passage.document or passage.title)
        )
        self._values = cache(self._by_value)
        self._signs = cache(lambda passage: signs_in(f"{passage.title}\n{passage.text}"))

    def also_named(self, names: Collection[str]) -> set[str]:
        """Return `names`, and each passage title that a tie equates with one of these names. All
        names and titles are folded.
        """
        wanted = set(names)
        also = set(names)
        for pair in tied(self.ties, {*names, *self._titles}, 1):
            if not wanted.isdisjoint(pair):
                also.update(pair)
        return also

    def support(
        self,
        column: Column,
        value: str,
        form: str,
        names: Collection[str],
    ) -> tuple[Support, tuple[Citation, ...]]:
        """Return how well the passages support `value`, and one citation from each passage that
        contains it. A citation quotes one sentence.

        `form`: the value's canonical form. `names`: the folded names of the value's row.
        """
        wanted = _words(column, value)
        kind = _kind(column)

        def worth(excerpt: str, folded: str) -> int:
            holds = (wanted and wanted in folded) or any(
                value.startswith(form) for value in values_in(kind, excerpt)
            )
            return 2 * bool(holds) + any(name in folded for name in names)

        stated = list[Citation]()
        unnamed = list[Citation]()
        titles = list[Citation]()
        for passage, reading, title, places in zip(
            self._passages,
            self._readings,
            self._titles,
            self._places(column, value, form),
            strict=True,
        ):
            if not places:
                if column.key and _is_in_title(column, value, form, passage.title, title):
                    titles.append(citation(passage, passage.title))
                continue
            named = set(chain.from_iterable(map(reading.places, names)))
            titled = any(name in title for name in names)
            near = [at for at in places if titled or not named.isdisjoint((at - 1, at + 1))]
            best = [at for at in places if at in named] or near
            sentence = reading.sentences[(best or places)[0]]
            (stated if best else unnamed).append(citation(passage, sentence, worth))

        if stated or titles:
            return "stated", tuple((stated or titles)[:MAX_CITED])
        return "value_only" if unnamed else "unsupported", tuple(unnamed[:MAX_CITED])

    def holds(self, column: Column, value: str) -> bool:
        """Return whether any passage, or the title of any passage, contains `value`."""
        form = canonical(column, value)
        titles = zip(self._passages, self._titles, strict=True)
        return any(
            _is_in_title(column, value, form, passage.title, folded) for passage, folded in titles
        ) or any(self._places(column, value, form))

    def _places(self, column: Column, value: str, form: str) -> Iterator[list[int]]:
        """Yield, for each passage, the numbers of the sentences that contain a value."""
        wanted = _words(column, value)
        signs = signs_of(value)
        for passage, reading, values in zip(
            self._passages, self._readings, self._values(_kind(column)), strict=True
        ):
            if wanted or not signs or signs <= self._signs(passage):
                yield [*reading.places(wanted), *values.get(form, ())]
            else:
                yield []

    def _by_value(self, column: Column) -> list[dict[str, list[int]]]:
        """Return, for each passage, a mapping from the canonical form of each number or date to the
        numbers of the sentences that contain it. A date is also listed under its year and under its
        year and month.
        """
        places_of_passages = list[dict[str, list[int]]]()
        for reading in self._readings:
            places = dict[str, list[int]]()
            for at, sentence in enumerate(reading.sentences):
                for form in values_in(column, sentence):
                    for part in accumulate(form.split("-"), "{}-{}".format):
                        places.setdefault(part, []).append(at)
            places_of_passages.append(places)
        return places_of_passages
