"""Everything that was said in answering one question."""

from typing import Literal

import msgspec

from router.execution import Conversation, Execution, SearchRecord

NOT_FOUND = "not found in your documents"
_SAID_NOT_FOUND = ("", "not found", NOT_FOUND)

TopologyName = Literal["factorized", "single_agent", "homogeneous", "searcher", "no_retrieval"]

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
    told: tuple[int, ...] = ()
    """For each of `rounds`, how many messages of `delegation` stand before its reports."""
    delegation: Conversation | None = None
    answering: Conversation | None = None
    topology: TopologyName = "factorized"
    """Who searched and who answered; without executors, `delegation` is the whole conversation of the main agent."""
    searches: tuple[SearchRecord, ...] = ()
    """What the main agent searched for itself."""

    def answered(self, answer: str) -> "Trajectory":
        """The same with this answer; one that only says that there is none becomes `NOT_FOUND`."""
        if answer.casefold().rstrip(" .!") not in _SAID_NOT_FOUND:
            return msgspec.structs.replace(self, answer=answer)
        cut = self.outcome in ("budget_exhausted", "time_exhausted")
        return msgspec.structs.replace(self, answer=NOT_FOUND, outcome=self.outcome if cut else "not_found")

    def block(self, number: int) -> tuple[Execution, ...]:
        """The executions of round `number`, from 0."""
        first = sum(self.rounds[:number])
        return self.executions[first : first + self.rounds[number]]

    def before(self, number: int) -> "Trajectory":
        """The way up to the decision that dispatched round `number`, from 0, that decision included."""
        assert self.delegation is not None
        messages = self.delegation.messages[: self.told[number]]
        outputs = self.delegation.outputs[: sum(message.role == "assistant" for message in messages)]
        return Trajectory(
            "",
            "rounds_exhausted",
            self.executions[: sum(self.rounds[:number])],
            self.rounds[:number],
            self.told[:number],
            Conversation(messages, outputs),
            topology=self.topology,
        )
