"""Where a point of evidence stands: passage, document, page, and the sentence that says it."""

from collections.abc import Iterable

import msgspec

from router.passage import Passage
from router.scope import words
from router.scoring import normal_answer
from router.sentences import sentences

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


def cite(point: str, passages: Iterable[Passage]) -> list[Citation]:
    """The sentences that `point` may rest on: one of each passage that holds its names and numbers and the most of its
    words, if that is most of them; in the order of the passages, each passage once.
    """
    wanted, named = words(point), _named(point)
    shown = {passage.id: passage for passage in passages}
    shares = {key: _share(wanted, named, passage) for key, passage in shown.items()}
    best = max(shares.values(), default=0.0)
    if best < _CITED_SHARE:
        return []
    return [_citation(wanted, passage) for key, passage in shown.items() if shares[key] == best]


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


def _citation(wanted: set[str], passage: Passage) -> Citation:
    quote = max(sentences(passage.text), key=lambda sentence: len(wanted & words(sentence)), default="")
    return Citation(passage.id, passage.title, passage.document, passage.page, " ".join(quote.split()))


def _named(point: str) -> set[str]:
    """Names and numbers: words that begin with a capital or a digit; the first word has its capital for its place."""
    return words(" ".join(word for word in point.split()[1:] if word[0].isupper() or word[0].isdigit()))


def _share(wanted: set[str], named: set[str], passage: Passage) -> float:
    """The share of `wanted` that stands in the passage; 0 where a name or number is missing."""
    found = words(f"{passage.title} {passage.text}")
    return len(wanted & found) / len(wanted) if wanted and named <= found else 0.0
