"""The results and events of a run: executions, trajectories, events."""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from router.models import Completion, Message
from router.protocol import Passage, Report
from router.trace.citation import Citation, cite
from router.trace.table import (
    Ask,
    Column,
    Row,
    RowKey,
    Schema,
    TableOutcome,
)

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
    """All messages that a model was shown, and everything it wrote, reasoning included."""

    messages: tuple[Message, ...]
    outputs: tuple[Completion, ...] = ()


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool."""

    server: str
    """Empty if there is no such tool."""
    tool: str
    arguments: str
    """The model's text, which may be no JSON."""
    duration_s: float = 0.0
    error: str | None = None
    """Why it failed; None if it succeeded."""


class SearchRecord(msgspec.Struct, frozen=True, gc=False):
    """A search with its result; also an opened document, or a tool call."""

    query: str
    """The query; with the document's name if one was opened; for a tool, the call."""
    passages: tuple[Passage, ...]
    ignored_queries: int = 0
    """Further search blocks of the same turn, which were not run."""
    dropped_passages: int = 0
    """The number of passages at the end of `passages` that were not shown, as the model's context
    has no room for them.
    """
    call: ToolCall | msgspec.UnsetType = msgspec.UNSET
    """Set for a tool call."""

    @property
    def shown(self) -> tuple[Passage, ...]:
        """The passages that the model was shown."""
        return self.passages[: len(self.passages) - self.dropped_passages]


class Execution(msgspec.Struct, frozen=True, gc=False, tag=True):
    """One sub-query, with the work of an executor in a fresh context, or of a manager with its
    workers.
    """

    sub_query: str
    report: Report
    """`NO_EVIDENCE` if there is none. An `escalated` one holds the findings or the reason, and the
    manager to ask.
    """
    outcome: ExecutionOutcome
    searches: tuple[SearchRecord, ...]
    """The executor's searches; empty for a manager."""
    conversation: Conversation
    """The executor's conversation; empty for a manager, whose `work` holds it."""
    executor: str = ""
    """The version that worked on it; empty if it was not recorded."""
    shared_from: tuple[str, ...] = ()
    """The other runs that paid for it; their calls are booked there, and not in this run."""
    manager: str = ""
    """The manager that worked on it; empty for an executor."""
    work: "Trajectory | None" = None
    """A manager's delegation to its workers, with their executions."""
    before: "Execution | None" = None
    """The execution of the manager that was asked first, and that named this one."""

    @property
    def failed(self) -> bool:
        """True if there is no report."""
        return self.outcome != "reported"

    @property
    def looked(self) -> bool:
        """True if it ended by itself: with a report, or without one after a search."""
        return self.outcome == "reported" or (
            self.outcome == "no_report" and bool(self.every_search)
        )

    @property
    def every_search(self) -> tuple[SearchRecord, ...]:
        """Its searches, or those of its workers."""
        if self.work is None:
            return self.searches
        return sum((execution.every_search for execution in self.work.executions), ())

    def citations(self, points: Iterable[str]) -> list[list[Citation]]:
        """Return the sentences of shown passages that each of `points` may rest on; none if no
        passage contains it.
        """
        return cite(points, (passage for search in self.every_search for passage in search.shown))


def by_executors(executions: Iterable[Execution]) -> Iterator[Execution]:
    """Yield the executions of executors among these, including those inside of managers'
    executions.
    """
    for execution in executions:
        if execution.before:
            yield from by_executors((execution.before,))
        if execution.work:
            yield from by_executors(execution.work.executions)
        else:
            yield execution


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
    """The cells that a table's sub-query is to fill; None elsewhere."""
    manager: str = ""
    """The manager that it is for; empty where none is named."""


class SearchDone(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A search returned."""

    index: int
    """The number of the sub-query."""
    query: str
    titles: tuple[str, ...]
    """Best first."""


class Reported(msgspec.Struct, frozen=True, gc=False, tag=True):
    """An executor ended."""

    index: int
    execution: Execution | None
    """None in a stored run, whose result holds it."""


class AnswerWritten(msgspec.Struct, frozen=True, tag=True):
    """The answer exists, but is not stored yet."""

    answer: str


class Planned(msgspec.Struct, frozen=True, tag=True):
    """The questions for a table's cells are known."""

    columns: tuple[Column, ...]


class RowChanged(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A row of a table was found, or has changed."""

    key: RowKey
    row: Row | None
    """None in a stored run, whose result it follows from."""


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
    """Return the events without executions and rows, which the run's result holds."""
    return tuple(map(_brief, events))


def _brief(event: Event) -> Event:
    match event:
        case Reported(index=index):
            return Reported(index, None)
        case RowChanged(key=key):
            return RowChanged(key, None)
    return event


def with_executions(events: Iterable[Event], result: "Result | None") -> tuple[Event, ...]:
    """Return the events with the executions of the run's result, but without rows; the inverse of
    `brief`.
    """
    executions = dict[int, Execution]()
    if isinstance(result, Trajectory | TableRun):
        executions.update(enumerate(result.executions))
    return tuple(
        Reported(event.index, executions.get(event.index)) if isinstance(event, Reported) else event
        for event in events
    )


NOT_FOUND = "not found in your documents"


def says_not_found(answer: str) -> bool:
    """Return whether an answer only says that there is none."""
    return answer.casefold().rstrip(" .!") in ("", "not found", NOT_FOUND)


TopologyName = Literal["factorized", "host"]

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
    """The way from a question to its answer, complete or so far."""

    answer: str
    outcome: AnswerOutcome
    executions: tuple[Execution, ...] = ()
    """In order of dispatch."""
    rounds: tuple[int, ...] = ()
    """The number of sub-queries of each dispatching round."""
    messages_before_reports: tuple[int, ...] = ()
    """For each of `rounds`, the number of messages of `delegation` before its reports."""
    delegation: Conversation | None = None
    answering: Conversation | None = None
    topology: TopologyName = "factorized"
    unsupported: bool = False
    """True if the answer has names or numbers that no evidence in a passage supports."""

    def answered(self, answer: str) -> "Trajectory":
        """Return the trajectory with this answer; one that only says that there is none becomes
        `NOT_FOUND`.
        """
        if not says_not_found(answer):
            return msgspec.structs.replace(self, answer=answer)
        cut = self.outcome in ("budget_exhausted", "time_exhausted")
        return msgspec.structs.replace(
            self, answer=NOT_FOUND, outcome=self.outcome if cut else "not_found"
        )

    def block(self, number: int) -> tuple[Execution, ...]:
        """Return the executions of round `number`, from 0."""
        first = sum(self.rounds[:number])
        return self.executions[first : first + self.rounds[number]]

    def before(self, number: int) -> "Trajectory":
        """Return the trajectory up to and including the decision that dispatched round `number`,
        from 0.
        """
        assert self.delegation is not None
        messages = self.delegation.messages[: self.messages_before_reports[number]]
        outputs = self.delegation.outputs[
            : sum(message.role == "assistant" for message in messages)
        ]
        return Trajectory(
            "",
            "rounds_exhausted",
            self.executions[: sum(self.rounds[:number])],
            self.rounds[:number],
            self.messages_before_reports[:number],
            Conversation(messages, outputs),
            topology=self.topology,
        )


class TableRun(msgspec.Struct, frozen=True, tag=True):
    """The parts of a table, complete or so far; the table itself is the fold of them."""

    schema: Schema
    """With the delegator's wordings."""
    given: tuple[tuple[str, ...], ...] = ()
    """Given rows with a value for each column, empty where one is wanted."""
    asks: tuple[Ask, ...] = ()
    """By the numbers of their sub-queries."""
    executions: tuple[Execution, ...] = ()
    """One for each of `asks`."""
    delegation: Conversation | None = None
    outcome: TableOutcome = "filled"
    asks_per_cell: int = 2
    """Max executors that look for a cell."""
    max_rows: int = 2000
    """Max rows of the table."""


Result = Trajectory | TableRun | Execution | Conversation
