"""The turns and searches of a run, one record each as they come; what the agents of a run said
is the fold of these.
"""

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from router.models import Completion, Message
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
    whole,
)


class Agent(NamedTuple):
    """A model with a context of its own."""

    role: RoleName
    sub_query: int | None = None
    """The number of the one it works on; None for the question itself."""
    manager: str = ""
    """The manager that the sub-query went to; empty for an executor that works on it itself."""
    worker: int | None = None
    """The number of the worker among those of the manager; None for the manager itself."""

    @property
    def path(self) -> str:
        """Its name in exports and addresses: `execution-0`; of a manager's worker,
        `execution-0-browser-0`.
        """
        return "-".join(str(part) for part in self if part not in ("", None))

    def within(self, lead: "Agent") -> "Agent":
        """The agent as the run knows it, where it is one of those whom `lead` leads: the
        delegator, or a manager.
        """
        return (
            self
            if lead.sub_query is None
            else Agent(self.role, lead.sub_query, lead.manager, self.sub_query)
        )


DELEGATOR = Agent("delegation")


class AgentWork(NamedTuple):
    """An agent of a run, what it came to, and what it said."""

    agent: Agent
    execution: Execution | None
    """None for the delegator and the answerer."""
    conversation: Conversation | None


def work_of(run: Run) -> Iterator[AgentWork]:
    """The agents of a run, as far as it tells, managers' workers included: each before those
    whom it leads.
    """
    match run.result:
        case Trajectory() | TableRun() as found:
            yield from _led(found)
        case Execution() as one:
            yield from _worked(0, one)
        case Conversation() as said:
            yield AgentWork(Agent(run.calls[0].role if run.calls else "answer"), None, said)
        case None:
            for event in run.events:
                if isinstance(event, Reported) and event.execution:
                    yield from _worked(event.index, event.execution)


def _led(
    found: Trajectory | TableRun, lead: Agent = DELEGATOR, own: Execution | None = None
) -> Iterator[AgentWork]:
    yield AgentWork(lead, own, found.delegation)
    for number, execution in enumerate(found.executions):
        yield from _worked(number, execution, lead)
    if isinstance(found, Trajectory) and found.answering:
        yield AgentWork(Agent("answer"), None, found.answering)


def _worked(number: int, execution: Execution, lead: Agent = DELEGATOR) -> Iterator[AgentWork]:
    for one in (execution.before, execution):
        if one and one.work:
            yield from _led(one.work, Agent("delegation", number, one.manager), one)
        elif one:
            yield AgentWork(Agent("execution", number).within(lead), one, one.conversation)


class ToolSums(NamedTuple):
    """Calls of one tool in a run."""

    server: str
    tool: str
    calls: int
    duration_s: float
    failures: int


def tool_sums(run: Run) -> list[ToolSums]:
    """Sums by server and tool, as far as the run tells, in the order of their names; of a call that
    no tool takes there is none.
    """
    searches = (search for _, one, _ in work_of(run) if one for search in one.searches)
    groups: dict[tuple[str, str], list[ToolCall]] = {}
    for search in searches:
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

    agent: Agent
    kept: int
    """The number of messages, from the first on, that are those of its turn before."""
    messages: tuple[Message, ...]
    """The messages after these that it was shown."""
    output: Completion


class Searched(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A search that returned."""

    agent: Agent
    search: SearchRecord


class Decided(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The end of a delegator's turn: of what was begun before, sub-queries with numbers from
    here on are not wanted.
    """

    below: int


class Asked(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A sub-query of a table's run has this number."""

    number: int
    ask: Ask


TraceRecord = Turn | Searched | Decided | Asked
_TOLD = Completion("", "told by the turns")
"""Stands in a conversation for the messages and outputs that its agent's turns tell."""
_Said = tuple[Conversation, tuple[SearchRecord, ...]]


class Turns:
    """The agents of a run, as far as their records tell."""

    def __init__(self) -> None:
        self._turns: dict[Agent, list[tuple[tuple[Message, ...], Completion]]] = {}
        """Of each agent, what it was shown and what it wrote."""
        self._searches: dict[Agent, list[SearchRecord]] = {}
        self.asks: dict[Ask, int] = {}
        """Numbers of sub-queries by what they ask for."""

    def turn(self, agent: Agent, messages: tuple[Message, ...], output: Completion) -> Turn:
        """The record of a turn that comes next. `messages`: all that the agent was shown."""
        pairs = zip(self._shown(agent), messages, strict=False)
        kept = sum(
            1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs)
        )
        return Turn(agent, kept, messages[kept:], output)

    def apply(self, record: TraceRecord) -> None:
        """Take the next record."""
        match record:
            case Turn(agent=agent):
                before = self._shown(agent)
                shown = before[: record.kept] + record.messages
                if len(shown) <= len(before):  # another one has begun anew in its place
                    self._turns.pop(agent, None)
                    self._searches.pop(agent, None)
                self._turns.setdefault(agent, []).append((shown, record.output))
            case Searched(agent=agent):
                self._searches.setdefault(agent, []).append(record.search)
            case Decided(below=below):
                for known in (self._turns, self._searches):
                    for agent in [
                        one for one in known if one.sub_query is not None and one.sub_query >= below
                    ]:
                        del known[agent]
            case Asked(number, ask):
                self.asks[ask] = number

    def next_turn(self, agent: Agent, messages: tuple[Message, ...]) -> Completion | None:
        """Take out the first turn of an agent that is left, if it was shown just this; None where
        it was not, and then nothing of it is left.
        """
        turns = self._turns.pop(agent, [])
        if not turns or turns[0][0] != messages:
            return None
        self._turns[agent] = turns[1:]
        return turns[0][1]

    def next_search(self, agent: Agent, query: str) -> SearchRecord | None:
        """Take out the first search of an agent that is left, if it was this; None where it was
        not.
        """
        searches = self._searches.pop(agent, [])
        if not searches or searches[0].query != query:
            return None
        self._searches[agent] = searches[1:]
        return searches[0]

    def _shown(self, agent: Agent) -> tuple[Message, ...]:
        turns = self._turns.get(agent)
        return turns[-1][0] if turns else ()

    def without(self, run: Run) -> Run:
        """The run without what the records tell as well."""
        return replace(
            run, result=self._mapped(run.result, self._left_out), events=brief(run.events)
        )

    def within(self, run: Run) -> Run:
        """The run that `without` has made this of."""
        result = self._mapped(run.result, self._put_in)
        return replace(run, result=result, events=whole(run.events, result))

    def _left_out(
        self, agent: Agent, conversation: Conversation, searches: tuple[SearchRecord, ...]
    ) -> _Said:
        shown = self._shown(agent)
        outputs = tuple(output for _, output in self._turns.get(agent, ()))
        if (
            not shown
            or conversation.messages[: len(shown)] != shown
            or conversation.outputs != outputs
        ):
            return conversation, searches
        if searches != tuple(self._searches.get(agent, ())):
            return conversation, searches
        return Conversation(conversation.messages[len(shown) :], (_TOLD,)), ()

    def _put_in(
        self, agent: Agent, conversation: Conversation, searches: tuple[SearchRecord, ...]
    ) -> _Said:
        if conversation.outputs != (_TOLD,):
            return conversation, searches
        outputs = tuple(output for _, output in self._turns.get(agent, ()))
        return Conversation(self._shown(agent) + conversation.messages, outputs), tuple(
            self._searches.get(agent, ())
        )

    def _mapped(self, result: Result | None, change: Callable[..., _Said]) -> Result | None:
        def execution(number: int, one: Execution, lead: Agent = DELEGATOR) -> Execution:
            agent = Agent("execution", number).within(lead)
            conversation, searches = change(agent, one.conversation, one.searches)
            work = one.work and trajectory(one.work, Agent("delegation", number, one.manager))
            before = one.before and execution(number, one.before)
            return replace(
                one, conversation=conversation, searches=searches, work=work, before=before
            )

        def trajectory(one: Trajectory, lead: Agent = DELEGATOR) -> Trajectory:
            main = one.delegation
            answering = one.answering
            searches = one.searches
            if main:
                main, searches = change(lead, main, searches)
            if answering:
                answering, _ = change(Agent("answer"), answering, ())
            executions = tuple(
                execution(number, each, lead) for number, each in enumerate(one.executions)
            )
            return replace(
                one, executions=executions, delegation=main, answering=answering, searches=searches
            )

        match result:
            case Trajectory():
                return trajectory(result)
            case TableRun(delegation=main):
                main = main and change(Agent("delegation"), main, ())[0]
                executions = tuple(
                    execution(number, one) for number, one in enumerate(result.executions)
                )
                return replace(result, executions=executions, delegation=main)
            case Execution():
                return execution(0, result)
            case Conversation() if len(self._turns) == 1:
                return change(*self._turns, result, ())[0]
        return result
