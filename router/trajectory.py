"""Everything that was said in answering one question."""

from typing import Literal

import msgspec

from router.citation import Citation
from router.execution import Conversation, Execution

AnswerOutcome = Literal[
    "answered", "rounds_exhausted", "no_search", "time_exhausted", "out_of_scope", "not_found", "budget_exhausted"
]


class Trajectory(msgspec.Struct, frozen=True, tag=True):
    """A question's way to its answer, whole or as far as it has come."""

    answer: str
    outcome: AnswerOutcome
    executions: tuple[Execution, ...] = ()
    """In order of dispatch."""
    rounds: tuple[int, ...] = ()
    """How many sub-queries each dispatching round sent out."""
    delegation: Conversation | None = None
    answering: Conversation | None = None

    @property
    def citations(self) -> list[Citation]:
        """What the answer rests on: every sentence that a report's evidence was found in, each once."""
        found = (
            citation
            for execution in self.executions
            for point in execution.report.evidence
            for citation in execution.citations(point)
        )
        return list(dict.fromkeys(found))
