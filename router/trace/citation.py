"""Citations: the passage, document, page and sentence that a point of evidence rests on."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from threading import Lock

import msgspec
from cachetools import LRUCache, cached

from router.folding import (
    apart,
    fold,
    terms,
)
from router.protocol import Passage

_END = re.compile(
    r"[.!?…][\"'”’)\]]*(?=\s+[\"'“‘(\[]*(?:[^\W_a-z]|$))"  # a full stop, and then no small letter
    r"|[。！？｡।॥။។៕۔؟]+[」』”’）]*"
    r"|(?<=\S)(?=\s*\n\s*\n)"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|Mrs?|Ms|Dr|St|Prof|Jr|vs|e\.g|i\.e|cf|Fig|No|approx)\.\Z"
    r"|\.[ก-ฮ]\.\Z"  # as before a year
)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, without white space between them. A blank line also
    ends a sentence.
    """
    ended: list[str] = []
    start = 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text, max(start, end.start() - 8), end.start() + 1):
            ended.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in (*ended, text[start:].strip()) if sentence]


_GOES_ON = re.compile(
    r"(?:he|she|it|they|his|her|its|their|this|these|both)\b|[他她它其该此这]", re.IGNORECASE
)
"""The beginning of a sentence that continues the subject of the previous one."""
_FUNCTION_WORDS = frozenset(
    "is was are were be been has had have in on at of by to for from with and or as that".split()
)
"""Table rows lack them, and paraphrases use others."""
_CITED_SHARE = 0.75
"""Min share of a point's terms in a passage; executors copy or reword closely."""
_MAX_CHARS = 300
_MAX_DOCUMENT_CHARS = 1000
MAX_CITED = 8
"""Max characters of a quote and of a document's name, and max passages cited for one point."""
_MAX_SENTENCES = 64
_MAX_OF_ALL = 256
"""Max sentences of one point, and of all points together, that are looked up in the passages."""
_CACHED_CHARS = 1_000_000
_FIXED_CHARS = 500
"""Size of the cache of readings, and the overhead of each reading in it."""


class Citation(msgspec.Struct, frozen=True, gc=False):
    """One sentence of one retrieved passage."""

    passage_id: str
    title: str
    document: str
    page: int | None
    quote: str
    """Verbatim, with lines joined; a long sentence is cut at its ends, marked by `…`."""
    location: str = ""
    """As in `Passage`."""


class Reading:
    """The sentences of a text, verbatim and folded.

    Many readings are cached, and many lists and sets would be many objects for the garbage
    collector: texts and tuples of texts are none.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.sentences = tuple(sentences(text))
        self.folded = tuple(map(fold, self.sentences))

    @cached_property
    def _in_one(self) -> tuple[str, tuple[int, ...]]:
        """All folded sentences, a line each, and where each begins."""
        lengths = (len(sentence) + 1 for sentence in self.folded)
        return "\n".join(self.folded), tuple(accumulate(lengths, initial=0))

    def places(self, wanted: str) -> list[int]:
        """Return the numbers of the sentences that contain a folded text."""
        text, starts = self._in_one
        numbers = list[int]()
        start = text.find(wanted) if wanted else -1
        while start >= 0:
            number = bisect_right(starts, start) - 1
            numbers.append(number)
            start = text.find(wanted, starts[number + 1])
        return numbers

    @cached_property
    def terms(self) -> tuple[tuple[str, ...], ...]:
        """The terms of each sentence."""
        return tuple(tuple(terms(sentence)) for sentence in self.folded)


def _size(reading: Reading) -> int:
    return len(reading.text) + _FIXED_CHARS


@cached(LRUCache(_CACHED_CHARS, getsizeof=_size), lock=Lock())
def read(text: str) -> Reading:
    """Return the cached reading of a passage's text or title, which many points are looked up
    in.
    """
    return Reading(text)


def cite(points: Iterable[str], passages: Iterable[Passage]) -> list[list[Citation]]:
    """Return the sentences that each of `points` may rest on, in the order of the passages.

    For each sentence of a point, cite one sentence of each passage that has the most of its terms,
    if that is most of them. The cited sentence contains all names and numbers of the point,
    together with the passage's title, or with the previous sentence if it continues that one: a
    table row does not support a point that mixes two rows. A point of more than `_MAX_SENTENCES`
    sentences has no citation, and neither have points beyond `_MAX_OF_ALL` sentences, as each is
    compared with each passage.
    """
    shown = list(_different(passages))
    citations = list[list[Citation]]()
    looked_for = 0
    for point in points:
        parts: list[list[Citation]] = []
        stated = sentences(point)
        looked_for += len(stated)
        if len(stated) <= _MAX_SENTENCES and looked_for <= _MAX_OF_ALL:
            parts = [_cited(sentence, shown) for sentence in stated]
        citations.append(list(dict.fromkeys(chain(*parts))) if all(parts) else [])
    return citations


def _different(passages: Iterable[Passage]) -> Iterable[Passage]:
    return {passage.id: passage for passage in passages}.values()


def _cited(point: str, shown: Iterable[Passage]) -> list[Citation]:
    folded = fold(point)
    wanted = set(terms(folded)) - _FUNCTION_WORDS
    if not wanted:
        return []
    first, *words = apart(point).split()
    names = [word for word in words if word[0].isupper()]
    # A capital may only mark the beginning of the sentence.
    if (
        len(first) > 3
        and not _GOES_ON.match(first)
        and any(first in passage.text for passage in shown)
    ):
        names.append(first)
    named = set(fold(" ".join(names)).split())
    named.update(term for term in wanted if term[0].isdigit() or "|" in point)

    shares = list[tuple[Citation, int]]()
    for passage in shown:
        title = set(chain.from_iterable(read(passage.title).terms))
        nearest, common = _nearest(wanted, named - title, read(passage.text))
        if nearest:
            cited = citation(passage, nearest, lambda _, folded: len(wanted & {*terms(folded)}))
            shares.append((cited, len(common | (wanted & title))))
    best = max((share for _, share in shares), default=0)
    if best < _CITED_SHARE * len(wanted):
        return []
    return [at for at, share in shares if share == best][:MAX_CITED]


def _nearest(
    wanted: set[str],
    named: set[str],
    reading: Reading,
) -> tuple[str, set[str]]:
    """Return the sentence with the most terms of `wanted` among those that contain all of `named`,
    empty if none does, and the terms of `wanted` in all sentences. A table row counts with its
    header, the first row without numbers.
    """
    nearest = ""
    largest = 0
    header: tuple[str, ...] = ()
    before = set[str]()
    anywhere = set[str]()
    for sentence, inside in zip(reading.sentences, reading.terms, strict=True):
        if "|" not in sentence:
            header = ()
        elif not header and not re.search(r"\d", sentence):
            header = inside
        if not _GOES_ON.match(sentence):
            before = set()
        before.update(inside)
        common = wanted.intersection(inside)
        anywhere |= common
        if len(common) > largest and named.difference(header) <= before:
            nearest = sentence
            largest = len(common)
    return nearest, anywhere


def citation(
    passage: Passage,
    sentence: str,
    worth: Callable[[str, str], int] = lambda *_: 0,
) -> Citation:
    """Return the citation of a sentence, or of its most valuable excerpt if it is long.

    `worth`: the value of an excerpt, by its text and its folded text.
    """
    if len(sentence) <= _MAX_CHARS:
        quote = " ".join(sentence.split())
    else:
        quote = max(_excerpts(sentence), key=lambda excerpt: worth(*excerpt))[0]
    return Citation(
        passage.id,
        passage.title[:_MAX_CHARS],
        passage.document[:_MAX_DOCUMENT_CHARS],
        passage.page,
        quote,
        passage.location[:_MAX_DOCUMENT_CHARS],
    )


@lru_cache(256)
def _excerpts(text: str) -> list[tuple[str, str]]:
    """Return overlapping pieces of a text, cut between words if possible, each with its folded
    text.
    """
    text = " ".join(text.split())
    pieces = list[tuple[str, str]]()
    for start in range(0, max(1, len(text) - _MAX_CHARS // 2), _MAX_CHARS // 2):
        piece = text[start : start + _MAX_CHARS - 2]
        reaches_end = start + len(piece) == len(text)
        if start:
            piece = "…" + _FIRST_WORD.sub("", piece)
        if not reaches_end:
            piece = _LAST_WORD.sub("", piece) + "…"
        pieces.append((piece, fold(piece)))
    return pieces


_FIRST_WORD = re.compile(r"\A\S{0,40}\s")
_LAST_WORD = re.compile(r"\s\S{0,40}\Z")
