"""The results of a run (an answer's trajectory, a table, an execution, a conversation), and the
events that it emits.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec
from msgspec.structs import replace

from router.frozen import Frozen
from router.models import Completion, Message
from router.protocol import Passage, Report
from router.protocol.prompts import shown_turn
from router.protocol.style import AnswerStyle
from router.trace.citation import Citation, cite
from router.trace.declining import declines
from router.trace.table import (
    Ask,
    Column,
    Condition,
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
"""Outcome of the work on a sub-query. `reported`: with a report. `escalated`: a manager passed the
sub-query on, but no other manager took it. `no_report`: the last output of the model was no report.
`timed_out`: the time ran out. `model_failed`, `retrieval_failed`: a model or the retrieval failed.
`budget_exhausted`: the request's budget or the tenant's quota was used up.
"""


class Conversation(Frozen, gc=False, tag=True):
    """All messages that a model was shown, and all outputs that it wrote, including reasoning."""

    messages: tuple[Message, ...]
    outputs: tuple[Completion, ...] = ()

    def with_output(self, output: Completion) -> "Conversation":
        """Return the conversation, extended by the model's turn `output`."""
        message = Message("assistant", shown_turn(output.text))
        return Conversation((*self.messages, message), (*self.outputs, output))

    def with_user_turn(self, text: str) -> "Conversation":
        """Return the conversation, extended by a user message with `text`."""
        return Conversation((*self.messages, Message("user", text)), self.outputs)


class ToolCall(Frozen):
    """A model's call of a tool, with its success or error."""

    server: str
    """Name of the tool's server; empty if the model named an unknown tool or wrote invalid
    arguments.
    """
    tool: str
    arguments: str
    """The arguments as the model wrote them, which may be invalid JSON."""
    duration_s: float = 0.0
    error: str | None = None
    """Why the call failed; None if it succeeded."""


class Reranking(Frozen):
    """A call of the reranker for one search, with its success or error."""

    model: str
    tokens: int | None = None
    """Tokens that the call spent; None if its endpoint did not report them, or if it failed."""
    error: str | None = None
    """Why the call failed; None if it succeeded. After a failure, the passages keep the order of
    the search.
    """


class SearchRecord(Frozen, gc=False):
    """A search with its result. Opened documents and tool calls are recorded as searches too."""

    query: str
    """The query; for an opened document, the text to look for and the document's name; for a tool
    call, the tool's name and the arguments.
    """
    passages: tuple[Passage, ...]
    ignored_queries: int = 0
    """Number of further search blocks in the same turn. They were ignored."""
    dropped_passages: int = 0
    """Number of passages that were dropped from the prompt because the model's context had no room.
    They are the last ones in `passages`.
    """
    call: ToolCall | msgspec.UnsetType = msgspec.UNSET
    """The tool call; unset for searches and opened documents."""
    reranking: Reranking | msgspec.UnsetType = msgspec.UNSET
    """The call of the reranker; unset if none was made."""

    @property
    def shown(self) -> tuple[Passage, ...]:
        """The passages that the model was shown: all except the dropped ones."""
        return self.passages[: len(self.passages) - self.dropped_passages]

    def event(self, index: int) -> "SearchDone":
        """Return the event of this search. `index`: the number of the sub-query."""
        return SearchDone(index, self.query, tuple(passage.title for passage in self.passages))


class Execution(Frozen, gc=False, tag=True):
    """Record of the work on one sub-query. An executor in a fresh context works on it, or a manager
    with its workers.
    """

    sub_query: str
    report: Report
    """The report; `NO_EVIDENCE` if none was written. If the outcome is `escalated`, the report
    contains the name of another manager to ask, and the findings so far or a description of what is
    missing.
    """
    outcome: ExecutionOutcome
    searches: tuple[SearchRecord, ...] = ()
    """The executor's searches; empty for a manager."""
    conversation: Conversation = Conversation(())
    """The executor's conversation; empty for a manager, whose conversation is in `work`."""
    executor: str = ""
    """Name of the executor version that worked on the sub-query; empty if it was not recorded."""
    shared_from: tuple[str, ...] = ()
    """Ids of the other runs that made and paid for this execution. Its calls are recorded in those
    runs only.
    """
    manager: str = ""
    """Name of the manager that worked on the sub-query; empty for an executor."""
    work: "Trajectory | None" = None
    """For a manager: its conversation, with the executions of its workers. None for an executor."""
    before: "Execution | None" = None
    """The execution of another manager that had the sub-query before and passed it on to this
    manager. None if there was no such manager.
    """

    @property
    def failed(self) -> bool:
        """True if the outcome is not `reported`."""
        return self.outcome != "reported"

    @property
    def looked(self) -> bool:
        """True if the execution was completed: it ended with a report, or it searched and ended
        without one. False if it was interrupted by a failure or a limit.
        """
        return self.outcome == "reported" or (
            self.outcome == "no_report" and bool(self.every_search)
        )

    @property
    def every_search(self) -> tuple[SearchRecord, ...]:
        """The executor's searches, or for a manager, the searches of all its workers."""
        if self.work is None:
            return self.searches
        return sum((execution.every_search for execution in self.work.executions), ())

    def citations(self, points: Iterable[str]) -> list[list[Citation]]:
        """Return a list for each statement in `points`: citations of the sentences that support the
        statement, from passages that were shown to the executor. A list is empty if a sentence of
        its statement has no support.
        """
        return cite(points, (passage for search in self.every_search for passage in search.shown))


def by_executors(executions: Iterable[Execution]) -> Iterator[Execution]:
    """Yield the executions of executors. In place of a manager's execution, yield those of its
    workers.
    """
    for execution in executions:
        if execution.before:
            yield from by_executors((execution.before,))
        if execution.work:
            yield from by_executors(execution.work.executions)
        else:
            yield execution


class RunStarted(Frozen, tag=True):
    """The run was admitted and recorded."""

    run_id: str


class RoundStarted(Frozen, tag=True):
    """The delegator began to write a decision."""

    round: int
    """Number of the round, from 1."""


class SubQueryDispatched(Frozen, gc=False, tag=True, omit_defaults=True):
    """A sub-query was dispatched to an executor or a manager."""

    index: int
    """The number of the sub-query in its run, from 0."""
    round: int
    sub_query: str
    ask: Ask | None = None
    """In the run of a table, the piece of work that the sub-query expresses; None in other runs."""
    manager: str = ""
    """Name of the manager that the sub-query is for; empty if the delegator named none."""


class SearchDone(Frozen, gc=False, tag=True):
    """A search returned its passages."""

    index: int
    """The number of the sub-query that the search was for."""
    query: str
    titles: tuple[str, ...]
    """Titles of the passages, best first."""


class Reported(Frozen, gc=False, tag=True):
    """The work on a sub-query ended, with or without a report."""

    index: int
    """The number of the sub-query."""
    execution: Execution | None
    """The record of the work. None in the events of a stored run, because the run's result contains
    this record.
    """


class AnswerDelta(Frozen, gc=False, tag=True):
    """The answerer wrote a further part of the answer. Only runs whose answer is streamed have such
    events.
    """

    kept_chars: int
    """Number of characters to keep at the start of the answer so far. Usually, all characters are
    kept. If a failed call was repeated, fewer may be kept; the rest of the answer is replaced.
    """
    text: str
    """Text to append to the kept characters."""


class AnswerWritten(Frozen, tag=True):
    """The answer is complete, but not stored yet."""

    answer: str


class Planned(Frozen, tag=True):
    """The delegator has planned a table: its columns now have question templates."""

    columns: tuple[Column, ...]
    """The columns of the table, without hidden ones."""
    conditions: tuple[Condition, ...] = ()


class RowChanged(Frozen, gc=False, tag=True):
    """A row of a table was found, or one of its cells changed."""

    key: RowKey
    row: Row | None
    """The row after the change. None in the events of a stored run, because the row can be computed
    from the run's result.
    """


Event = (
    RunStarted
    | RoundStarted
    | SubQueryDispatched
    | SearchDone
    | Reported
    | AnswerDelta
    | AnswerWritten
    | Planned
    | RowChanged
)
OnEvent = Callable[[Event], None]


def brief(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events without their executions and rows, because the run's result contains them
    too.
    """
    return tuple(map(_brief, events))


def _brief(event: Event) -> Event:
    match event:
        case Reported(index=index):
            return Reported(index, None)
        case RowChanged(key=key):
            return RowChanged(key, None)
    return event


def with_executions(events: Iterable[Event], result: "Result | None") -> tuple[Event, ...]:
    """Undo `brief`: return the events with the executions of the run's `result` put in again. Rows
    are not put in.
    """
    executions = dict[int, Execution]()
    if isinstance(result, Trajectory | TableRun):
        executions.update(enumerate(result.executions))
    return tuple(
        Reported(event.index, executions.get(event.index)) if isinstance(event, Reported) else event
        for event in events
    )


NOT_FOUND = "not found in your documents"
NOT_SEARCHED = "cannot be answered, as nothing was searched for"


def says_not_found(answer: str) -> bool:
    """Return True if `answer` is empty, or only says that nothing was found."""
    return answer.casefold().rstrip(" .!") in ("", "not found", NOT_FOUND, NOT_SEARCHED)


TopologyName = Literal["factorized", "host"]

AnswerOutcome = Literal[
    "answered",
    "rounds_exhausted",
    "no_search",
    "time_exhausted",
    "out_of_scope",
    "not_found",
    "budget_exhausted",
    "clarify",
]
"""Outcome of an answer. `answered`: the delegator found the evidence sufficient and stopped.
`rounds_exhausted`, `time_exhausted`, `budget_exhausted`: a limit ended the search, and the answer
is based on the reports so far. `no_search`: the delegator dispatched no sub-query. `out_of_scope`:
the question has words that the models do not know. `not_found`: the reports do not contain an
answer. `clarify`: the history does not say what the question refers to, and the answer is a
question to the user.
"""


class Condensing(Frozen):
    """The rewriting of a question: the conversation before the question, and the new question that
    the condenser wrote from both.
    """

    history: tuple[Message, ...]
    """The messages before the question, oldest first."""
    question: str = ""
    """The rewritten question, which is searched instead of the original one. Empty if the model
    asked the user a question instead, or if the model's output was malformed.
    """
    conversation: Conversation | None = None
    """The condenser's conversation with its model, in which `question` was written."""


class Trajectory(Frozen, tag=True):
    """Record of the work on a question, either complete or up to now: the delegator's decisions,
    the work on the sub-queries, and the answer.
    """

    answer: str
    outcome: AnswerOutcome
    executions: tuple[Execution, ...] = ()
    """Records of the work on the sub-queries of all rounds, in the order of dispatch."""
    rounds: tuple[int, ...] = ()
    """For each round that dispatched sub-queries, the number of its sub-queries."""
    messages_before_reports: tuple[int, ...] = ()
    """For each of `rounds`, the number of messages in `delegation` before the message with the
    round's reports.
    """
    delegation: Conversation | None = None
    """The delegator's conversation."""
    answering: Conversation | None = None
    """The answerer's conversation; None if no answer was written."""
    topology: TopologyName = "factorized"
    unsupported: bool = False
    """True if the answer contains names or numbers that no evidence from a passage supports."""
    condensing: Condensing | None = None
    """The rewriting of the question so that it can be understood without its history; None for a
    question without history.
    """
    style: AnswerStyle | None = None
    """Style of the answer; None for the default."""

    def answered(self, answer: str) -> "Trajectory":
        """Return the trajectory with `answer`. If `answer` only says that nothing was found, it is
        replaced by `NOT_FOUND`, and the outcome becomes `not_found` unless time or budget ran out.
        If the run did not search at all, such an answer is replaced by `NOT_SEARCHED`.

        A name such as “Not Found” is an answer if evidence contains it.
        """
        name = answer.strip(' .“”"')
        stated = name[1:] != name[1:].lower() and any(
            name in point for execution in self.executions for point in execution.report.evidence
        )
        if stated or not (says_not_found(answer) or declines(answer)):
            return replace(self, answer=answer)
        if self.outcome == "no_search":
            return replace(self, answer=NOT_SEARCHED)
        cut = self.outcome in ("budget_exhausted", "time_exhausted")
        return replace(self, answer=NOT_FOUND, outcome=self.outcome if cut else "not_found")

    def block(self, number: int) -> tuple[Execution, ...]:
        """Return the executions of the round with this number, counted from 0."""
        first = sum(self.rounds[:number])
        return self.executions[first : first + self.rounds[number]]

    def before(self, number: int) -> "Trajectory":
        """Return the trajectory as it was just before the executions of round `number` (from 0).
        Its last message is the decision that dispatched these executions.
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


class TableRun(Frozen, tag=True):
    """The result of a table's run, either complete or up to now. It contains the executors'
    reports, from which `router.table.assembly` computes the table's rows.
    """

    schema: Schema
    """The columns, with the question templates that the delegator wrote and with hidden columns;
    and the conditions of the client and of the delegator.
    """
    given: tuple[tuple[str, ...], ...] = ()
    """Rows that the client gave, with a value for each column. An empty value is a cell to fill."""
    asks: tuple[Ask, ...] = ()
    """All asks; the position of an ask is the number of its sub-query."""
    executions: tuple[Execution, ...] = ()
    """The record of the work on each of `asks`, in the same order."""
    delegation: Conversation | None = None
    """The delegator's conversation."""
    outcome: TableOutcome = "filled"
    asks_per_cell: int = 2
    """Max executors that look for the value of one cell."""
    max_rows: int = 2000
    """Max rows of the table."""
    ignored: tuple[str, ...] = ()
    """Conditions that the delegator wrote but that were ignored, each with the reason."""


Result = Trajectory | TableRun | Execution | Conversation
