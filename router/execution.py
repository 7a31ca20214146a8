"""One executor run, as the trace keeps it."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from router.citation import Citation, cite
from router.model import Completion, Message
from router.passage import Passage
from router.report import Report

ExecutionOutcome = Literal["reported", "no_report", "timed_out", "model_failed", "retrieval_failed", "budget_exhausted"]


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
    dropped_passages: int = 0
    """How many of `passages`, the last ones, the model was not shown, because its context has no room for them."""

    @property
    def shown(self) -> tuple[Passage, ...]:
        """The passages that the model was shown."""
        return self.passages[: len(self.passages) - self.dropped_passages]


class Execution(msgspec.Struct, frozen=True, tag=True):
    """One sub-query, worked on by one executor in a context of its own."""

    sub_query: str
    report: Report
    """`NO_EVIDENCE` unless `outcome` is `reported`."""
    outcome: ExecutionOutcome
    searches: tuple[SearchRecord, ...]
    conversation: Conversation
    executor: str = ""
    """The version that worked on it; empty where that was not noted."""
    shared_from: tuple[str, ...] = ()
    """The other runs that paid for it, or for its first turns; their calls are booked there, and not in this run."""

    @property
    def failed(self) -> bool:
        """Whether there is no report."""
        return self.outcome != "reported"

    def citations(self, points: Iterable[str]) -> list[list[Citation]]:
        """The sentences of the passages shown that each of `points` may rest on; none where no passage holds it."""
        return cite(points, (passage for search in self.searches for passage in search.shown))
