"""Citations of the evidence in reports. A report's evidence is a list of short statements, called
points. A citation is a sentence of a passage that supports a point, with the passage's document and
page.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from threading import Lock

from cachetools import LRUCache, cached

from router.folding import (
    apart,
    fold,
    terms,
)
from router.frozen import Frozen
from router.protocol import Passage

_END = re.compile(
    r"[.!?…][\"'”’)\]]*(?=\s+[\"'“‘(\[]*(?:[^\W_a-z]|$))"  # not before a lower-case letter
    r"|[。！？｡।॥။។៕۔؟]+[」』”’）]*"
    r"|(?<=\S)(?=\s*\n\s*\n)"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|Mrs?|Ms|Dr|St|Prof|Jr|vs|e\.g|i\.e|cf|Fig|No|approx)\.\Z"
    r"|\.[ก-ฮ]\.\Z"  # Thai abbreviations, as before a year
)


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, each without surrounding white space. A blank line
    also ends a sentence.
    """
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and the end of each sentence of a text, in characters; see `sentences`."""
    ends = list[int]()
    start = 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text, max(start, end.start() - 8), end.start() + 1):
            start = end.end()
            ends.append(start)

    spans = list[tuple[int, int]]()
    for before, after in pairwise((0, *ends, len(text))):
        if sentence := text[before:after].lstrip():
            start = after - len(sentence)
            spans.append((start, start + len(sentence.rstrip())))
    return spans


_GOES_ON = re.compile(
    r"(?:he|she|it|they|his|her|its|their|this|these|both)\b|[他她它其该此这]", re.IGNORECASE
)
"""Matches the beginning of a sentence that has the same subject as the previous sentence."""
_FUNCTION_WORDS = frozenset(
    "is was are were be been has had have in on at of by to for from with and or as that".split()
)
"""Words that are ignored when a point is compared with a passage, because rows of tables lack such
words, and paraphrases replace them.
"""
_CITED_SHARE = 0.75
"""A passage is cited for a sentence of a point only if it contains at least this share of the
sentence's terms, from 0 to 1. The share is high because executors copy sentences or reword them
only slightly.
"""
_MAX_CHARS = 300
"""Max characters of a quote."""
_MAX_DOCUMENT_CHARS = 1000
"""Max characters of a document's name."""
MAX_CITED = 8
"""Max citations for one sentence of a point."""
_MAX_SENTENCES = 64
"""A point with more sentences than this gets no citation. This limits the time of `cite`."""
_MAX_OF_ALL = 256
"""Max sentences that one call of `cite` looks for, counted over all its points. Further points get
no citation.
"""
_CACHED_CHARS = 1_000_000
"""Max size of the cache of `read`, in characters of the cached texts."""
_FIXED_CHARS = 500
"""Overhead of each text in the cache, in characters. It is added to the text's own length."""


class Citation(Frozen, gc=False):
    """A quote of one sentence from one retrieved passage."""

    passage_id: str
    title: str
    document: str
    page: int | None
    quote: str
    """The sentence verbatim, with its lines joined. A long sentence is cut to an excerpt, with `…`
    where text is missing.
    """
    location: str = ""
    """Place of the passage in a file without pages, such as `slide 3`; empty if unknown."""


class Reading:
    """The sentences of a text, verbatim and folded (normalised for comparison, see
    `router.folding`).

    Many readings are cached. They hold only strings and tuples of strings, which the garbage
    collector does not have to track, unlike lists and sets.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.sentences = tuple(sentences(text))
        self.folded = tuple(map(fold, self.sentences))

    @cached_property
    def _in_one(self) -> tuple[str, tuple[int, ...]]:
        """All folded sentences in one folded text, and the position at which each starts."""
        parts = [sentence.rstrip() for sentence in self.folded]
        return f"{''.join(parts)} ", tuple(accumulate(map(len, parts), initial=0))

    def places(self, wanted: str) -> list[int]:
        """Return the numbers of the sentences that contain the folded text `wanted`. If no single
        sentence contains it, return the numbers of the sentences in which it begins.
        """
        text, starts = self._in_one
        whole = list[int]()
        begun = list[int]()
        start = text.find(wanted) if wanted else -1
        while start >= 0:
            number = bisect_right(starts, start) - 1
            end = starts[number + 1]
            is_whole = start + len(wanted) <= end + 1
            (whole if is_whole else begun).append(number)
            start = text.find(wanted, end)
        return whole or begun

    @cached_property
    def terms(self) -> tuple[tuple[str, ...], ...]:
        """The search terms of each sentence (see `router.folding.terms`)."""
        return tuple(tuple(terms(sentence)) for sentence in self.folded)


@cached(
    LRUCache(_CACHED_CHARS, getsizeof=lambda reading: len(reading.text) + _FIXED_CHARS), lock=Lock()
)
def read(text: str) -> Reading:
    """Return the sentences of a passage's text or title as a `Reading`. Readings are cached,
    because many points are compared with the same passage.
    """
    return Reading(text)


def cite(points: Iterable[str], passages: Iterable[Passage]) -> list[list[Citation]]:
    """Return a list of citations for each of `points`. A list has the sentences of passages that
    support the point, in the order of the passages. It is empty if a sentence of the point is not
    supported.

    Each sentence of a point is compared with each passage. The passages with the most terms of the
    sentence are cited, if they contain at least the share `_CITED_SHARE` of its terms. From each of
    these passages, one sentence is cited. It must contain all names and numbers of the point's
    sentence, so a table row does not support a point that mixes two rows. Words of the passage's
    title count as contained. So do words of the previous sentence, if the cited sentence has the
    same subject.

    To limit the time, a point gets no citation if it has more than `_MAX_SENTENCES` sentences, or
    if it and the points before it have more than `_MAX_OF_ALL` sentences together.
    """
    shown = list({passage.id: passage for passage in passages}.values())
    citations = list[list[Citation]]()
    looked_for = 0
    for point in points:
        parts = list[list[Citation]]()
        stated = sentences(point)
        looked_for += len(stated)
        if len(stated) <= _MAX_SENTENCES and looked_for <= _MAX_OF_ALL:
            parts = [_cited(sentence, shown) for sentence in stated]
        citations.append(list(dict.fromkeys(chain(*parts))) if all(parts) else [])
    return citations


def _cited(point: str, shown: Iterable[Passage]) -> list[Citation]:
    folded = fold(point)
    wanted = set(terms(folded)) - _FUNCTION_WORDS
    if not wanted:
        return []
    first, *words = apart(point).split()
    names = [word for word in words if word[0].isupper()]
    # The first word has a capital letter in any case, so it is a name only if a passage has it.
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
    """Return the sentence to cite, and the terms of `wanted` that occur anywhere in the text.

    The sentence has the most terms of `wanted` among the sentences that contain all of `named`. If
    no sentence contains them all, an empty text is returned. A table row also contains the words of
    the table's header, which is the first row without numbers.
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
    """Return the citation of `sentence` in `passage`. If the sentence is long, the citation quotes
    only an excerpt: the one with the highest worth.

    `worth`: returns the worth of an excerpt. Arguments: the excerpt, and its folded form (see
    `router.folding`).
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
    """Return overlapping excerpts of a text, cut between words where possible, each with its folded
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
