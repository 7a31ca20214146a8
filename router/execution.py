"""One executor run, as the trace keeps it."""

from typing import Literal

import msgspec

from router.model import Completion, Message
from router.passage import Passage
from router.report import Report

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
        """The retrieved passages that contain `point` word for word, best first, each once."""
        wanted = _normal(point)
        found = {
            passage.id: passage
            for search in self.searches
            for passage in search.passages
            if wanted and wanted in _normal(passage.text)
        }
        return list(found.values())


def _normal(text: str) -> str:
    return " ".join(text.casefold().split())
