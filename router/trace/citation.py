"""Where a point of evidence stands: passage, document, page, and the sentence that says it."""

import re
from collections.abc import Iterable
from functools import cached_property

import msgspec

from router.protocol.evidence import Passage
from router.protocol.scoring import normal_answer
from router.protocol.vocabulary import words

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
"""Executors copy or closely reword; a point with fewer of its words in a passage does not rest on it."""


class Citation(msgspec.Struct, frozen=True):
    """One sentence of one retrieved passage."""

    passage_id: str
    title: str
    document: str
    page: int | None
    quote: str
    """Word for word; lines are joined."""


def cite(points: Iterable[str], passages: Iterable[Passage]) -> list[list[Citation]]:
    """The sentences that each of `points` may rest on: one of each passage that holds its names and numbers and the
    most of its words, if that is most of them; in the order of the passages, each passage once.
    """
    shown = [_Shown(passage) for passage in {passage.id: passage for passage in passages}.values()]
    return [_cited(point, shown) for point in points]


def cite_answer(answer: str, passages: Iterable[Passage]) -> list[Citation]:
    """The first sentence of each passage that holds `answer` as the official scripts compare answers; in the order of
    the passages, each passage once.
    """
    wanted = f" {normal_answer(answer)} "
    found = []
    for passage in {passage.id: passage for passage in passages}.values() if wanted.strip() else ():
        held = next((said for said in sentences(passage.text) if wanted in f" {normal_answer(said)} "), None)
        if held is not None:
            quote = " ".join(held.split())
            found.append(Citation(passage.id, passage.title, passage.document, passage.page, quote))
    return found


class _Shown:
    """A passage with its words, and those of each of its sentences; told apart once, as passages may be long."""

    def __init__(self, passage: Passage) -> None:
        self.passage, self.words = passage, words(f"{passage.title} {passage.text}")

    @cached_property
    def sentences(self) -> list[tuple[str, set[str]]]:
        return [(sentence, words(sentence)) for sentence in sentences(self.passage.text)]

    def share(self, wanted: set[str], named: set[str]) -> float:
        """The share of `wanted` that stands in it; 0 where a name or number is missing."""
        return len(wanted & self.words) / len(wanted) if wanted and named <= self.words else 0.0

    def citation(self, wanted: set[str]) -> Citation:
        quote, _ = max(self.sentences, key=lambda sentence: len(wanted & sentence[1]), default=("", set()))
        at = self.passage
        return Citation(at.id, at.title, at.document, at.page, " ".join(quote.split()))


def _cited(point: str, shown: list[_Shown]) -> list[Citation]:
    wanted, named = words(point), _named(point)
    shares = [each.share(wanted, named) for each in shown]
    best = max(shares, default=0.0)
    if best < _CITED_SHARE:
        return []
    return [each.citation(wanted) for each, share in zip(shown, shares, strict=True) if share == best]


def _named(point: str) -> set[str]:
    """Names and numbers: words that begin with a capital or a digit; the first word has its capital for its place."""
    return words(" ".join(word for word in point.split()[1:] if word[0].isupper() or word[0].isdigit()))
