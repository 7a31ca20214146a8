"""The place where a point of evidence stands: passage, document, page, and the sentence that
says it.
"""

import re
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from itertools import chain
from threading import Lock

import msgspec
from cachetools import LRUCache, cached

from router.folding import apart, fold, sought, terms
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
    """The sentences of a text, in order, without the white space between them; blank lines end
    one too.
    """
    found: list[str] = []
    start = 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text, max(start, end.start() - 8), end.start() + 1):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in (*found, text[start:].strip()) if sentence]


_GOES_ON = re.compile(
    r"(?:he|she|it|they|his|her|its|their|this|these|both)\b|[他她它其该此这]", re.IGNORECASE
)
"""The beginning of a sentence that says more of what the one before is about."""
_FUNCTION_WORDS = frozenset(
    "is was are were be been has had have in on at of by to for from with and or as that".split()
)
"""Rows of tables have none, and sentences that say the same have others."""
_CITED_SHARE = 0.75
"""Executors copy or closely reword; a point with fewer of its terms in a passage does not rest
on it.
"""
_MOST_CHARS = 300
MOST_CITED = 8
"""The size of a quote, and the number of passages that are cited for one thing."""
_MOST_SENTENCES = 64
_MOST_OF_ALL = 256
"""Sentences of one point, and of all points together, that are looked for in the passages."""
_CACHED_CHARS = 1_000_000
_FIXED_CHARS = 500
"""The size of the cache of readings, and what each counts besides its text."""


class Citation(msgspec.Struct, frozen=True, gc=False):
    """One sentence of one retrieved passage."""

    passage_id: str
    title: str
    document: str
    page: int | None
    quote: str
    """Word for word; lines are joined, and of a long sentence `…` stands for what is left out
    at its ends.
    """


class Reading:
    """The sentences of a text, as they stand and folded."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sentences = sentences(text)
        self.folded = list(map(fold, self.sentences))

    @cached_property
    def _by_word(self) -> dict[str, list[int]]:
        """The numbers of the sentences that have each word, so that a search costs what these
        cost.
        """
        found: dict[str, list[int]] = {}
        for at, sentence in enumerate(self.folded):
            for word in set(sentence.split()):
                found.setdefault(word, []).append(at)
        return found

    def places(self, wanted: str) -> list[int]:
        """Return the numbers of the sentences that hold a folded text."""
        rarest = min((self._by_word.get(word, []) for word in wanted.split()), key=len, default=[])
        return [at for at in rarest if wanted in self.folded[at]]

    @cached_property
    def terms(self) -> list[frozenset[str]]:
        """The terms of each sentence."""
        return [frozenset(terms(sentence)) for sentence in self.folded]

    @cached_property
    def all_terms(self) -> frozenset[str]:
        """The terms of all sentences."""
        return frozenset().union(*self.terms)


def _size(reading: Reading) -> int:
    return len(reading.text) + _FIXED_CHARS


@cached(LRUCache(_CACHED_CHARS, getsizeof=_size), lock=Lock())
def read(text: str) -> Reading:
    """Return the reading of a passage's text or title, which many searches, points and cells
    look through.
    """
    return Reading(text)


def cite(points: Iterable[str], passages: Iterable[Passage]) -> list[list[Citation]]:
    """The sentences that each of `points` may rest on, in the order of the passages.

    For each sentence of a point, they are one of each passage that has the most of its terms, if
    that is most of them. Such a sentence holds all of its names and numbers, with the passage's
    title, or with the sentence before where it goes on from that: one row of a table does not
    support what mixes two. A point of more than `_MOST_SENTENCES` sentences has no citation, nor
    has what comes after `_MOST_OF_ALL` of them, as each is held against each passage.
    """
    shown = list(_different(passages))
    found = list[list[Citation]]()
    looked_for = 0
    for point in points:
        parts: list[list[Citation]] = []
        stated = sentences(point)
        looked_for += len(stated)
        if len(stated) <= _MOST_SENTENCES and looked_for <= _MOST_OF_ALL:
            parts = [_cited(sentence, shown) for sentence in stated]
        found.append(list(dict.fromkeys(chain(*parts))) if all(parts) else [])
    return found


def cite_answer(answer: str, passages: Iterable[Passage]) -> list[Citation]:
    """The first sentence of each passage that holds `answer`; in the order of the passages,
    each passage once.
    """
    wanted = sought(answer)
    found = list[Citation]()
    for passage in _different(passages):
        reading = read(passage.text)
        for at in reading.places(wanted)[:1]:
            found.append(
                citation(passage, reading.sentences[at], lambda _, folded: wanted in folded)
            )
    return found[:MOST_CITED]


def _different(passages: Iterable[Passage]) -> Iterable[Passage]:
    return {passage.id: passage for passage in passages}.values()


def _cited(point: str, shown: Iterable[Passage]) -> list[Citation]:
    folded = fold(point)
    wanted = set(terms(folded)) - _FUNCTION_WORDS
    if not wanted:
        return []
    first, *words = apart(point).split()
    names = [word for word in words if word[0].isupper()]
    # The first word may have its capital for its place.
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
        inside = read(passage.text).all_terms
        title = read(passage.title).all_terms
        nearest = _nearest(wanted, named - title, read(passage.text))
        if nearest:
            cited = citation(passage, nearest, lambda _, folded: len(wanted & {*terms(folded)}))
            shares.append((cited, sum(term in inside or term in title for term in wanted)))
    best = max((share for _, share in shares), default=0)
    if best < _CITED_SHARE * len(wanted):
        return []
    return [at for at, share in shares if share == best][:MOST_CITED]


def _nearest(wanted: set[str], named: set[str], reading: Reading) -> str:
    """The sentence that has the most of `wanted` among those that hold all of `named`; empty where
    none does. Rows of a table go with its header, the first one that has no numbers.
    """
    nearest = ""
    most = 0
    header = frozenset[str]()
    before = set[str]()
    for sentence, inside in zip(reading.sentences, reading.terms, strict=True):
        if "|" not in sentence:
            header = frozenset()
        elif not header and not re.search(r"\d", sentence):
            header = inside
        if not _GOES_ON.match(sentence):
            before = set()
        before |= inside
        common = len(wanted & inside)
        if common > most and named - header <= before:
            nearest = sentence
            most = common
    return nearest


def citation(
    passage: Passage, sentence: str, worth: Callable[[str, str], int] = lambda *_: 0
) -> Citation:
    """Return the citation of a sentence, or of the excerpt of a long one that is worth the most.

    `worth`: the worth of an excerpt, by it and by its folded text.
    """
    if len(sentence) <= _MOST_CHARS:
        quote = " ".join(sentence.split())
    else:
        quote = max(_excerpts(sentence), key=lambda excerpt: worth(*excerpt))[0]
    return Citation(passage.id, passage.title[:_MOST_CHARS], passage.document, passage.page, quote)


@lru_cache(256)
def _excerpts(text: str) -> list[tuple[str, str]]:
    """Return overlapping pieces that cover a text, cut between words where there are any, each
    with its folded text.
    """
    text = " ".join(text.split())
    pieces = list[tuple[str, str]]()
    for start in range(0, max(1, len(text) - _MOST_CHARS // 2), _MOST_CHARS // 2):
        piece = text[start : start + _MOST_CHARS - 2]
        whole = start + len(piece) == len(text)
        if start:
            piece = "…" + _FIRST_WORD.sub("", piece)
        if not whole:
            piece = _LAST_WORD.sub("", piece) + "…"
        pieces.append((piece, fold(piece)))
    return pieces


_FIRST_WORD = re.compile(r"\A\S{0,40}\s")
_LAST_WORD = re.compile(r"\s\S{0,40}\Z")
