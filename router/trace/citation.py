"""The place where a point of evidence stands: passage, document, page, and the sentence that says it."""

import re
from collections.abc import Iterable
from functools import cached_property
from threading import Lock

import msgspec
from cachetools import LRUCache, cached

from router.folding import apart, fold, sought, terms
from router.protocol import Passage

_END = re.compile(
    r"[.!?…][\"'”’)\]]*(?=\s+[\"'“‘(\[]*(?:[^\W_a-z]|$))"  # a full stop, and then no small letter
    r"|[。！？]+[」』”’）]*"
    r"|(?<=\S)(?=\s*\n\s*\n)"
)
_ABBREVIATION = re.compile(r"(?:^|[\s(])(?:[^\W\d_]|Mrs?|Ms|Dr|St|Prof|Jr|vs|e\.g|i\.e|cf|Fig|No|approx)\.\Z")


def sentences(text: str) -> list[str]:
    """The sentences of a text, in order, without the white space between them; blank lines end one too."""
    found: list[str] = []
    start = 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text, max(start, end.start() - 8), end.start() + 1):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in (*found, text[start:].strip()) if sentence]


_CITED_SHARE = 0.75
"""Executors copy or closely reword; a point with fewer of its terms in a passage does not rest on it."""
_CACHED_CHARS, _FIXED_CHARS = 1_000_000, 500
"""The size of the cache of readings, and what each counts besides its text."""


class Citation(msgspec.Struct, frozen=True, gc=False):
    """One sentence of one retrieved passage."""

    passage_id: str
    title: str
    document: str
    page: int | None
    quote: str
    """Word for word; lines are joined."""


class Reading:
    """The sentences of a text, as they stand and folded."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sentences = sentences(text)
        self.folded = list(map(fold, self.sentences))

    @cached_property
    def whole(self) -> str:
        """The whole text, folded."""
        return f" {' '.join(' '.join(self.folded).split())} "

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
    """Return the reading of a passage's text or title, which many searches, points and cells look through."""
    return Reading(text)


def cite(points: Iterable[str], passages: Iterable[Passage]) -> list[list[Citation]]:
    """The sentences that each of `points` may rest on: one of each passage that holds its names and numbers and the
    most of its terms, if that is most of them; in the order of the passages, each passage once.
    """
    shown = list(_different(passages))
    return [_cited(point, shown) for point in points]


def cite_answer(answer: str, passages: Iterable[Passage]) -> list[Citation]:
    """The first sentence of each passage that holds `answer`; in the order of the passages, each passage once."""
    wanted = sought(answer)
    found = []
    for passage in _different(passages) if wanted else ():
        reading = read(passage.text)
        for sentence, folded in zip(reading.sentences, reading.folded, strict=True):
            if wanted in folded:
                found.append(citation(passage, sentence))
                break
    return found


def _different(passages: Iterable[Passage]) -> Iterable[Passage]:
    return {passage.id: passage for passage in passages}.values()


def _cited(point: str, shown: Iterable[Passage]) -> list[Citation]:
    folded = fold(point)
    wanted = set(terms(folded))
    if not wanted:
        return []
    # Names and numbers; the first word has its capital for its place.
    named = {term for word in apart(point).split()[1:] if word[0].isupper() for term in fold(word).split()}
    named.update(term for term in wanted if term[0].isdigit())

    shares = list[tuple[Passage, int]]()
    for passage in shown:
        inside, title = read(passage.text).all_terms, read(passage.title).all_terms
        if all(term in inside or term in title for term in named):
            shares.append((passage, sum(term in inside or term in title for term in wanted)))
    best = max((share for _, share in shares), default=0)
    if best < _CITED_SHARE * len(wanted):
        return []
    return [citation(passage, _nearest(wanted, read(passage.text))) for passage, share in shares if share == best]


def _nearest(wanted: set[str], reading: Reading) -> str:
    """The sentence that has the most of these terms."""
    pairs = zip(reading.sentences, reading.terms, strict=True)
    return max(pairs, key=lambda pair: len(wanted & pair[1]), default=("", frozenset()))[0]


def citation(passage: Passage, sentence: str) -> Citation:
    """The citation of a sentence of a passage."""
    return Citation(passage.id, passage.title, passage.document, passage.page, " ".join(sentence.split()))
