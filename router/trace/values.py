"""What happens in a run, and what it comes to: executions, trajectories, events."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from router.models import Completion, Message
from router.protocol import Passage, Report
from router.trace.citation import Citation, cite
from router.trace.table import Ask, Column, Row, RowKey, Schema, TableOutcome, TableTopologyName

ExecutionOutcome = Literal[
    "reported",
    "escalated",
    "no_report",
    "timed_out",
    "model_failed",
    "retrieval_failed",
    "budget_exhausted",
]


class Conversation(msgspec.Struct, frozen=True, gc=False, tag=True):
    """All that a model was shown, and everything it wrote, reasoning included."""

    messages: tuple[Message, ...]
    outputs: tuple[Completion, ...] = ()


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    server: str
    """Empty where there is no such tool."""
    tool: str
    arguments: str
    """Text of the model's, not always JSON."""
    duration_s: float = 0.0
    error: str | None = None
    """The reason why it failed; None where it did not."""


class SearchRecord(msgspec.Struct, frozen=True, gc=False):
    """One search and what it found; or a document that was opened, or a tool that was called."""

    query: str
    """What was looked for; of a document, with its name, and of a tool, the call."""
    passages: tuple[Passage, ...]
    ignored_queries: int = 0
    """Further search blocks of the same turn, which were not run."""
    dropped_passages: int = 0
    """The number of `passages`, the last ones, not shown to the model, because its context has
    no room for them.
    """
    call: ToolCall | msgspec.UnsetType = msgspec.UNSET
    """Set for a tool."""

    @property
    def shown(self) -> tuple[Passage, ...]:
        """The passages that the model was shown."""
        return self.passages[: len(self.passages) - self.dropped_passages]


class Execution(msgspec.Struct, frozen=True, gc=False, tag=True):
    """One sub-query, worked on by one executor in a context of its own, or by a manager and its
    workers.
    """

    sub_query: str
    report: Report
    """`NO_EVIDENCE` where there is none; of an `escalated` execution, what was found or else
    why, and to whom.
    """
    outcome: ExecutionOutcome
    searches: tuple[SearchRecord, ...]
    """Its own; a manager has none."""
    conversation: Conversation
    """Its own; empty for a manager, whose `work` holds it."""
    executor: str = ""
    """The version that worked on it; empty where that was not noted."""
    shared_from: tuple[str, ...] = ()
    """The other runs that paid for it, or for its first turns; their calls are booked there,
    and not in this run.
    """
    manager: str = ""
    """The manager that worked on it; empty for an executor."""
    work: "Trajectory | None" = None
    """Of a manager, its delegation to its workers, and their executions."""
    before: "Execution | None" = None
    """The work of the manager that was asked first, and named this one."""

    @property
    def failed(self) -> bool:
        """True where there is no report."""
        return self.outcome != "reported"

    @property
    def looked(self) -> bool:
        """True where it came to an end of its own, with a report, or without one after a search."""
        return self.outcome == "reported" or (
            self.outcome == "no_report" and bool(self.every_search)
        )

    @property
    def every_search(self) -> tuple[SearchRecord, ...]:
        """Its searches, or those of its workers."""
        return (
            sum((one.every_search for one in self.work.executions), ())
            if self.work
            else self.searches
        )

    def citations(self, points: Iterable[str]) -> list[list[Citation]]:
        """The sentences of the passages shown that each of `points` may rest on; none where no
        passage holds it.
        """
        return cite(points, (passage for search in self.every_search for passage in search.shown))


def by_executors(executions: Iterable[Execution]) -> Iterator[Execution]:
    """The executions of executors among these, and inside of managers' ones."""
    for one in executions:
        yield from by_executors((one.before,) if one.before else ())
        yield from by_executors(one.work.executions) if one.work else (one,)


class RunStarted(msgspec.Struct, frozen=True, tag=True):
    """The run is on record."""

    run_id: str


class RoundStarted(msgspec.Struct, frozen=True, tag=True):
    """The delegator begins a decision."""

    round: int
    """From 1."""


class SubQueryDispatched(msgspec.Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A sub-query went to an executor."""

    index: int
    """The number of the sub-query in its run, from 0."""
    round: int
    sub_query: str
    ask: Ask | None = None
    """In the words of a table's run, what it is to fill; None elsewhere."""
    manager: str = ""
    """The manager that it is meant for; empty where none is named."""


class SearchDone(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A search returned."""

    index: int
    """That of the sub-query; -1 where the main agent itself searched."""
    query: str
    titles: tuple[str, ...]
    """Best first."""


class Reported(msgspec.Struct, frozen=True, gc=False, tag=True):
    """An executor ended."""

    index: int
    execution: Execution | None
    """None in a stored run, whose result holds it."""


class AnswerWritten(msgspec.Struct, frozen=True, tag=True):
    """The answer is there, not yet stored."""

    answer: str


class Planned(msgspec.Struct, frozen=True, tag=True):
    """It is known how a table's cells are asked for."""

    columns: tuple[Column, ...]


class RowChanged(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A row of a table is there, or has changed."""

    key: RowKey
    row: Row | None
    """None in a stored run, whose result makes it."""


Event = (
    RunStarted
    | RoundStarted
    | SubQueryDispatched
    | SearchDone
    | Reported
    | AnswerWritten
    | Planned
    | RowChanged
)
OnEvent = Callable[[Event], None]


def brief(events: Iterable[Event]) -> tuple[Event, ...]:
    """The same without executions and rows, for where the run's result is beside them."""
    return tuple(map(_brief, events))


def _brief(event: Event) -> Event:
    match event:
        case Reported(index=index):
            return Reported(index, None)
        case RowChanged(key=key):
            return RowChanged(key, None)
    return event


def whole(events: Iterable[Event], result: "Result | None") -> tuple[Event, ...]:
    """The events that `brief` has made these of, with the executions of the run's result, but
    without rows.
    """
    executions = (
        dict(enumerate(result.executions)) if isinstance(result, Trajectory | TableRun) else {}
    )
    return tuple(
        Reported(one.index, executions.get(one.index)) if isinstance(one, Reported) else one
        for one in events
    )


NOT_FOUND = "not found in your documents"


def says_not_found(answer: str) -> bool:
    """True for an answer, or a report's, that only says that there is none."""
    return answer.casefold().rstrip(" .!") in ("", "not found", NOT_FOUND)


TopologyName = Literal[
    "factorized", "host", "single_agent", "homogeneous", "searcher", "no_retrieval"
]

AnswerOutcome = Literal[
    "answered",
    "rounds_exhausted",
    "no_search",
    "time_exhausted",
    "out_of_scope",
    "not_found",
    "budget_exhausted",
]


class Trajectory(msgspec.Struct, frozen=True, tag=True):
    """A question's way to its answer, whole or as far as it has come."""

    answer: str
    outcome: AnswerOutcome
    executions: tuple[Execution, ...] = ()
    """In order of dispatch."""
    rounds: tuple[int, ...] = ()
    """The number of sub-queries of each dispatching round."""
    told: tuple[int, ...] = ()
    """For each of `rounds`, how many messages of `delegation` stand before its reports."""
    delegation: Conversation | None = None
    answering: Conversation | None = None
    topology: TopologyName = "factorized"
    """The way to the answer; without executors, `delegation` is the whole conversation of the
    main agent.
    """
    searches: tuple[SearchRecord, ...] = ()
    """Searches of the main agent itself."""
    unsupported: bool = False
    """True where names or numbers of the answer stand in no evidence that a passage holds."""

    def answered(self, answer: str) -> "Trajectory":
        """The same with this answer; one that only says that there is none becomes `NOT_FOUND`."""
        if not says_not_found(answer):
            return msgspec.structs.replace(self, answer=answer)
        cut = self.outcome in ("budget_exhausted", "time_exhausted")
        return msgspec.structs.replace(
            self, answer=NOT_FOUND, outcome=self.outcome if cut else "not_found"
        )

    def block(self, number: int) -> tuple[Execution, ...]:
        """The executions of round `number`, from 0."""
        first = sum(self.rounds[:number])
        return self.executions[first : first + self.rounds[number]]

    def before(self, number: int) -> "Trajectory":
        """The way up to the decision that dispatched round `number`, from 0, that decision
        included.
        """
        assert self.delegation is not None
        messages = self.delegation.messages[: self.told[number]]
        outputs = self.delegation.outputs[
            : sum(message.role == "assistant" for message in messages)
        ]
        return Trajectory(
            "",
            "rounds_exhausted",
            self.executions[: sum(self.rounds[:number])],
            self.rounds[:number],
            self.told[:number],
            Conversation(messages, outputs),
            topology=self.topology,
        )


class TableRun(msgspec.Struct, frozen=True, tag=True):
    """All that a table is made of, whole or as far as it has come; the table itself is the fold
    of it.
    """

    schema: Schema
    """With the wordings of the delegator."""
    given: tuple[tuple[str, ...], ...] = ()
    """Rows that were known, a value for each column, empty where one was wanted."""
    asks: tuple[Ask, ...] = ()
    """By the numbers of their sub-queries."""
    executions: tuple[Execution, ...] = ()
    """For each of `asks`."""
    delegation: Conversation | None = None
    outcome: TableOutcome = "filled"
    topology: TableTopologyName = "wide"
    asks_per_cell: int = 2
    """The number of executors that look for a cell, at most."""
    max_rows: int = 2000
    """Rows of the table, at most."""


Result = Trajectory | TableRun | Execution | Conversation
