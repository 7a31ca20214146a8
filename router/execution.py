"""One executor run, as the trace keeps it."""

from typing import Literal

import msgspec

from router.model import Completion, Message
from router.passage import Passage
from router.report import Report
from router.scope import words

_CITED_SHARE = 0.75
"""Executors copy or closely reword; a point with fewer of its words in a passage does not rest on it."""

ExecutionOutcome = Literal["reported", "no_report", "timed_out", "model_failed", "retrieval_failed"]


class Conversation(msgspec.Struct, frozen=True, tag=True):
    """What a model was shown, and everything it wrote, reasoning included."""

    messages: tuple[Message, ...]
    outputs: tuple[Completion, ...] = ()


class SearchRecord(msgspec.Struct, frozen=True):
    """One search and what it found."""

    query: str
    passages: tuple[Passage, ...]
    ignored_queries: int = 0
    """Further search blocks of the same turn, which were not run."""


class Execution(msgspec.Struct, frozen=True, tag=True):
    """One sub-query, worked on by one executor in a context of its own."""

    sub_query: str
    report: Report
    """`NO_EVIDENCE` unless `outcome` is `reported`."""
    outcome: ExecutionOutcome
    searches: tuple[SearchRecord, ...]
    conversation: Conversation

    def citations(self, point: str) -> list[Passage]:
        """The retrieved passages that `point` may rest on: those that hold its names and numbers and the most of its
        words, if that is most of them; in the order in which they were found, each once.
        """
        wanted, named = words(point), _named(point)
        shown = {passage.id: passage for search in self.searches for passage in search.passages}
        shares = {key: _share(wanted, named, passage) for key, passage in shown.items()}
        best = max(shares.values(), default=0.0)
        return [passage for key, passage in shown.items() if shares[key] == best] if best >= _CITED_SHARE else []


def _named(point: str) -> set[str]:
    """Names and numbers: words that begin with a capital or a digit; the first word has its capital for its place."""
    return words(" ".join(word for word in point.split()[1:] if word[0].isupper() or word[0].isdigit()))


def _share(wanted: set[str], named: set[str], passage: Passage) -> float:
    """The share of `wanted` that stands in the passage; 0 where a name or number is missing."""
    found = words(f"{passage.title} {passage.text}")
    return len(wanted & found) / len(wanted) if wanted and named <= found else 0.0
