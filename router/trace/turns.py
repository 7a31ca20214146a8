"""The turns and searches of a run, recorded one by one. The conversations of a run's agents are the
fold of these records.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from router.models import Completion, Message
from router.protocol.decision import agreeing
from router.trace.call import RoleName
from router.trace.run import Run
from router.trace.table import Ask
from router.trace.values import (
    Conversation,
    Execution,
    Reported,
    Result,
    SearchRecord,
    TableRun,
    ToolCall,
    Trajectory,
    brief,
    with_executions,
)


class AgentId(NamedTuple):
    """Identity of an agent, a model with its own context, within a run."""

    role: RoleName
    sub_query_index: int | None = None
    """The number of its sub-query; None for the question itself."""
    manager: str = ""
    """The manager that the sub-query went to; empty for an executor without one."""
    worker: int | None = None
    """The number of the worker within its manager; None for the manager itself."""

    @property
    def path(self) -> str:
        """Its name in exports and URLs: `execution-0`; a manager's worker is
        `execution-0-browser-0`.
        """
        return "-".join(str(part) for part in self if part not in ("", None))

    def within(self, lead: "AgentId") -> "AgentId":
        """Return the agent as the run knows it, given that `lead`, the delegator or a manager,
        leads it.
        """
        if lead.sub_query_index is None:
            return self
        return AgentId(
            self.role,
            lead.sub_query_index,
            lead.manager,
            self.sub_query_index,
        )


DELEGATOR = AgentId("delegation")


class AgentWork(NamedTuple):
    """An agent of a run with its execution and its conversation."""

    agent: AgentId
    execution: Execution | None
    """None for the delegator and the answerer."""
    conversation: Conversation | None


def work_of(run: Run) -> Iterator[AgentWork]:
    """Yield the known agents of a run, managers' workers included; each leader comes before its
    agents.
    """
    match run.result:
        case Trajectory() | TableRun() as result:
            yield from _led(result)
        case Execution() as execution:
            yield from _worked(0, execution)
        case Conversation() as conversation:
            role = run.calls[0].role if run.calls else "answer"
            yield AgentWork(AgentId(role), None, conversation)
        case None:
            for event in run.events:
                if isinstance(event, Reported) and event.execution:
                    yield from _worked(event.index, event.execution)


def _led(
    result: Trajectory | TableRun,
    lead: AgentId = DELEGATOR,
    own: Execution | None = None,
) -> Iterator[AgentWork]:
    yield AgentWork(lead, own, result.delegation)
    for number, execution in enumerate(result.executions):
        yield from _worked(number, execution, lead)
    if isinstance(result, Trajectory) and result.answering:
        yield AgentWork(AgentId("answer"), None, result.answering)


def _worked(
    number: int,
    execution: Execution,
    lead: AgentId = DELEGATOR,
) -> Iterator[AgentWork]:
    if execution.before:
        yield from _worked(number, execution.before, lead)
    if execution.work:
        manager = AgentId("delegation", number, execution.manager)
        yield from _led(execution.work, manager, execution)
    else:
        agent = AgentId("execution", number).within(lead)
        yield AgentWork(agent, execution, execution.conversation)


class ToolSums(NamedTuple):
    """Sums over the calls of one tool in a run."""

    server: str
    tool: str
    calls: int
    duration_s: float
    failures: int


def tool_sums(run: Run) -> list[ToolSums]:
    """Return sums by server and tool, sorted by name. Calls that no tool takes are left out."""
    groups: dict[tuple[str, str], list[ToolCall]] = {}
    for _, execution, _ in work_of(run):
        for search in execution.searches if execution else ():
            if isinstance(call := search.call, ToolCall) and call.server:
                groups.setdefault((call.server, call.tool), []).append(call)
    return [
        ToolSums(
            *names,
            len(calls),
            sum(call.duration_s for call in calls),
            sum(call.error is not None for call in calls),
        )
        for names, calls in sorted(groups.items())
    ]


class Turn(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A completed turn of an agent."""

    agent: AgentId
    kept: int
    """The number of leading messages that are equal to those of its previous turn."""
    messages: tuple[Message, ...]
    """The further messages that it was shown."""
    output: Completion


class Searched(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A completed search."""

    agent: AgentId
    search: SearchRecord


class Decided(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The end of a delegator's turn: sub-queries that were started early with numbers from here on
    are discarded.
    """

    below: int


class Asked(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The number of a table's ask."""

    number: int
    ask: Ask


TraceRecord = Turn | Searched | Decided | Asked
_RECORDED = Completion("", "told by the turns")
"""A placeholder in a conversation for the messages and outputs that the turn records hold."""
_Work = tuple[Conversation, tuple[SearchRecord, ...]]
_Led = TypeVar("_Led", Trajectory, TableRun)


class Turns:
    """The conversations of a run's agents, as far as they are recorded."""

    def __init__(self) -> None:
        self._turns: dict[AgentId, list[tuple[tuple[Message, ...], Completion]]] = {}
        """For each agent, the messages that it was shown and the output that it wrote."""
        self._searches: dict[AgentId, list[SearchRecord]] = {}
        self.asks: dict[Ask, int] = {}
        """The numbers of sub-queries by their asks."""

    def turn(
        self,
        agent: AgentId,
        messages: tuple[Message, ...],
        output: Completion,
    ) -> Turn:
        """Return the record of an agent's next turn. `messages`: all messages that the agent was
        shown.
        """
        kept = agreeing(self._shown(agent), messages)
        return Turn(
            agent,
            kept,
            messages[kept:],
            output,
        )

    def apply(self, record: TraceRecord) -> None:
        """Apply the next record."""
        match record:
            case Turn(agent=agent):
                before = self._shown(agent)
                shown = before[: record.kept] + record.messages
                if len(shown) <= len(before):  # the call was repeated
                    self._turns.pop(agent, None)
                    self._searches.pop(agent, None)
                self._turns.setdefault(agent, []).append((shown, record.output))
            case Searched(agent=agent):
                self._searches.setdefault(agent, []).append(record.search)
            case Decided(below=below):
                for agent in (*self._turns, *self._searches):
                    if agent.sub_query_index is not None and agent.sub_query_index >= below:
                        self._turns.pop(agent, None)
                        self._searches.pop(agent, None)
            case Asked(number, ask):
                self.asks[ask] = number

    def next_turn(
        self,
        agent: AgentId,
        messages: tuple[Message, ...],
    ) -> Completion | None:
        """Remove and return the agent's next recorded turn, if its prompt was exactly `messages`.
        Otherwise return None, and discard the agent's further turns.
        """
        turns = self._turns.pop(agent, [])
        if not turns or turns[0][0] != messages:
            return None
        self._turns[agent] = turns[1:]
        return turns[0][1]

    def next_search(
        self,
        agent: AgentId,
        query: str,
    ) -> SearchRecord | None:
        """Remove and return the agent's next recorded search, if it was this query. Otherwise
        return None, and discard the agent's further searches.
        """
        searches = self._searches.pop(agent, [])
        if not searches or searches[0].query != query:
            return None
        self._searches[agent] = searches[1:]
        return searches[0]

    def _shown(self, agent: AgentId) -> tuple[Message, ...]:
        turns = self._turns.get(agent)
        return turns[-1][0] if turns else ()

    def without(self, run: Run) -> Run:
        """Return the run without what the records hold."""
        return replace(
            run, result=self._mapped(run.result, self._left_out), events=brief(run.events)
        )

    def within(self, run: Run) -> Run:
        """Return the complete run; the inverse of `without`."""
        result = self._mapped(run.result, self._put_in)
        return replace(run, result=result, events=with_executions(run.events, result))

    def _recorded(self, agent: AgentId) -> _Work:
        outputs = tuple(output for _, output in self._turns.get(agent, ()))
        searches = tuple(self._searches.get(agent, ()))
        return Conversation(self._shown(agent), outputs), searches

    def _left_out(
        self,
        agent: AgentId,
        work: _Work,
    ) -> _Work:
        conversation, searches = work
        recorded, recorded_searches = self._recorded(agent)
        count = len(recorded.messages)
        complete = count and conversation.messages[:count] == recorded.messages
        if complete and (conversation.outputs, searches) == (recorded.outputs, recorded_searches):
            return Conversation(conversation.messages[count:], (_RECORDED,)), ()
        return work

    def _put_in(
        self,
        agent: AgentId,
        work: _Work,
    ) -> _Work:
        conversation, _ = work
        if conversation.outputs != (_RECORDED,):
            return work
        recorded, searches = self._recorded(agent)
        messages = recorded.messages + conversation.messages
        return Conversation(messages, recorded.outputs), searches

    def _mapped(
        self,
        result: Result | None,
        change: Callable[[AgentId, _Work], _Work],
    ) -> Result | None:
        """Return the result with the conversation and the searches of each agent changed."""

        def mapped_execution(
            number: int,
            execution: Execution,
            lead: AgentId,
        ) -> Execution:
            agent = AgentId("execution", number).within(lead)
            conversation, searches = change(agent, (execution.conversation, execution.searches))
            manager = AgentId("delegation", number, execution.manager)
            return replace(
                execution,
                conversation=conversation,
                searches=searches,
                work=execution.work and mapped(execution.work, manager),
                before=execution.before and mapped_execution(number, execution.before, lead),
            )

        def mapped(led: _Led, lead: AgentId) -> _Led:
            fields = dict[str, object]()
            fields["executions"] = tuple(
                mapped_execution(number, execution, lead)
                for number, execution in enumerate(led.executions)
            )
            searches: tuple[SearchRecord, ...] = ()
            if isinstance(led, Trajectory):
                searches = led.searches
            if led.delegation:
                fields["delegation"], searches = change(lead, (led.delegation, searches))
            if isinstance(led, Trajectory):
                fields["searches"] = searches
                if led.answering:
                    fields["answering"], _ = change(AgentId("answer"), (led.answering, ()))
            return replace(led, **fields)

        match result:
            case Trajectory():
                return mapped(result, DELEGATOR)
            case TableRun():
                return mapped(result, DELEGATOR)
            case Execution():
                return mapped_execution(0, result, DELEGATOR)
            case Conversation() if len(self._turns) == 1:
                (agent,) = self._turns
                return change(agent, (result, ()))[0]
        return result
