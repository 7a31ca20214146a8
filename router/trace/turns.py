"""Records of a run's turns and searches. They are written one by one during the run. From the
records, in order, the conversations of the run's agents can be rebuilt.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from router.frozen import Frozen
from router.models import Completion, Message
from router.protocol.decision import agreeing
from router.trace.call import AgentRole, OpenedCall
from router.trace.run import Run
from router.trace.table import Ask
from router.trace.values import (
    Conversation,
    Execution,
    Reported,
    Result,
    SearchRecord,
    TableRun,
    Trajectory,
    brief,
    with_executions,
)


class AgentId(NamedTuple):
    """Identity of an agent within a run. An agent is a model with its own context: the
    delegator, a manager, an executor or the answerer.
    """

    role: AgentRole
    sub_query_index: int | None = None
    """The number of the agent's sub-query; None for the delegator and the answerer."""
    manager: str = ""
    """Name of the manager that the sub-query went to; empty if there is none."""
    worker: int | None = None
    """The number of the worker among its manager's workers; None if the agent is not a worker."""

    @property
    def path(self) -> str:
        """Name of the agent in exports and URLs, such as `execution-0`, or `execution-0-browser-0`
        for a worker of the manager `browser`.
        """
        return "-".join(str(part) for part in self if part not in ("", None))

    def within(self, lead: "AgentId") -> "AgentId":
        """Return the identity within the run of an agent that `lead` dispatched. `lead`: the
        delegator or a manager. In `self`, `sub_query_index` counts only the sub-queries of `lead`.
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
CONDENSER = AgentId("condense")


def agent_of(call: OpenedCall) -> AgentId:
    """Return the identity of the agent that made a call."""
    if call.purpose == "condense":
        return CONDENSER
    role: AgentRole = "rerank" if call.purpose == "rerank" else call.role
    return AgentId(role, call.sub_query_index, call.manager, call.worker)


class AgentWork(NamedTuple):
    """An agent of a run, with the record of its work on a sub-query, and its conversation."""

    agent: AgentId
    execution: Execution | None
    """The record of the work on the agent's sub-query; None for the delegator and the answerer."""
    conversation: Conversation | None


_Searches = tuple[SearchRecord, ...]
_Changed = tuple[Conversation | None, _Searches]
_Change = Callable[[AgentWork, _Searches], _Changed]
"""Function that takes an agent's work and searches. It returns the conversation and the searches
that replace those of the agent.
"""
_Led = TypeVar("_Led", bound=Trajectory | TableRun)


def work_of(run: Run) -> list[AgentWork]:
    """Return the agents of a run, including the workers of managers, as far as their work is known.
    An agent comes before the agents that it dispatched.
    """
    works = list[AgentWork]()

    def note(work: AgentWork, searches: _Searches) -> _Changed:
        works.append(work)
        return work.conversation, searches

    if run.result is None:
        for event in run.events:
            if isinstance(event, Reported) and event.execution:
                _changed_execution(event.index, event.execution, DELEGATOR, note)
    _changed(run.result, note, AgentId(run.calls[0].role if run.calls else "answer"))
    return works


def _changed(result: Result | None, change: _Change, alone: AgentId) -> Result | None:
    """Return `result` with `change` applied to each agent's work. `alone`: the agent that had the
    conversation, if the result is a single conversation.
    """
    match result:
        case Trajectory() | TableRun():
            return _changed_lead(result, change)
        case Execution():
            return _changed_execution(0, result, DELEGATOR, change)
        case Conversation():
            return change(AgentWork(alone, None, result), ())[0]
    return None


def _changed_lead(
    led: _Led,
    change: _Change,
    lead: AgentId = DELEGATOR,
    own: Execution | None = None,
) -> _Led:
    fields = dict[str, object]()
    fields["delegation"], _ = change(AgentWork(lead, own, led.delegation), ())
    fields["executions"] = tuple(
        _changed_execution(number, execution, lead, change)
        for number, execution in enumerate(led.executions)
    )
    if isinstance(led, Trajectory) and led.condensing:
        own_work = AgentWork(CONDENSER, None, led.condensing.conversation)
        conversation, _ = change(own_work, ())
        fields["condensing"] = replace(led.condensing, conversation=conversation)
    if isinstance(led, Trajectory) and led.answering:
        fields["answering"], _ = change(AgentWork(AgentId("answer"), None, led.answering), ())
    return replace(led, **fields)


def _changed_execution(
    number: int,
    execution: Execution,
    lead: AgentId,
    change: _Change,
) -> Execution:
    before = execution.before and _changed_execution(number, execution.before, lead, change)
    if execution.work:
        manager = AgentId("delegation", number, execution.manager)
        work = _changed_lead(execution.work, change, manager, execution)
        return replace(execution, before=before, work=work)
    agent = AgentId("execution", number).within(lead)
    own = AgentWork(agent, execution, execution.conversation)
    conversation, searches = change(own, execution.searches)
    return replace(execution, before=before, conversation=conversation, searches=searches)


class Turn(Frozen, array_like=True, tag=1):
    """Record of a completed turn of an agent: its output, and the difference between its prompt and
    the prompt of the agent's previous turn.
    """

    agent: AgentId
    kept: int
    """Number of messages with which both this prompt and the agent's previous prompt begin."""
    messages: tuple[Message, ...]
    """The other messages of the prompt."""
    output: Completion


class Searched(Frozen, array_like=True, tag=2):
    """Record of a completed search of an agent."""

    agent: AgentId
    search: SearchRecord


class Decided(Frozen, array_like=True, tag=3):
    """Record that a delegator's turn has ended. Executors may have started on sub-queries before
    that. Their work on sub-queries with the number `below` or higher is discarded.
    """

    below: int


class Asked(Frozen, array_like=True, tag=4):
    """Record that an ask (a piece of work on a table) is expressed by the sub-query with this
    number.
    """

    number: int
    ask: Ask


TraceRecord = Turn | Searched | Decided | Asked
_RECORDED = Completion("", "told by the turns")
"""Placeholder in a stored conversation. It stands for the messages and outputs in the run's
records.
"""


class Turns:
    """The conversations and searches of a run's agents, rebuilt from the records so far. When the
    run is resumed after an interruption, its recorded turns and searches are replayed from here.
    """

    def __init__(self) -> None:
        self._turns = dict[AgentId, list[tuple[tuple[Message, ...], Completion]]]()
        """For each agent, its turns: all messages of the prompt, and the output."""
        self._searches = dict[AgentId, list[SearchRecord]]()
        self.asks = dict[Ask, int]()
        """For each ask of a table, the number of its sub-query."""

    def copy(self) -> "Turns":
        """Return a copy to replay. A replay removes turns and searches, and the originals may be
        needed again, if the resumed run is interrupted, too.
        """
        turns = Turns()
        turns._turns = dict(self._turns)
        turns._searches = dict(self._searches)
        turns.asks = self.asks
        return turns

    def turn(
        self,
        agent: AgentId,
        messages: tuple[Message, ...],
        output: Completion,
    ) -> Turn:
        """Return the record of an agent's next turn. `messages`: all messages of the prompt."""
        kept = agreeing(self._shown(agent), messages)
        return Turn(
            agent,
            kept,
            messages[kept:],
            output,
        )

    def apply(self, record: TraceRecord) -> None:
        """Add the next record to the conversations and searches."""
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
        """Remove the agent's next recorded turn and return its output, if its prompt was exactly
        `messages`. Otherwise return None, and discard all remaining turns of the agent.
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
        """Remove and return the agent's next recorded search, if its query was `query`. Otherwise
        return None, and discard all remaining searches of the agent.
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
        """Return the run without the messages, outputs and searches that the records contain, so
        that they are not stored twice.
        """
        result = _changed(run.result, self._left_out, self._alone)
        return replace(run, result=result, events=brief(run.events))

    def within(self, run: Run) -> Run:
        """Undo `without`: return the run with the content of the records put in again."""
        result = _changed(run.result, self._put_in, self._alone)
        return replace(run, result=result, events=with_executions(run.events, result))

    @property
    def _alone(self) -> AgentId:
        """The agent of a run whose result is a single conversation."""
        return next(iter(self._turns), DELEGATOR)

    def _recorded(self, agent: AgentId) -> tuple[Conversation, _Searches]:
        outputs = tuple(output for _, output in self._turns.get(agent, ()))
        searches = tuple(self._searches.get(agent, ()))
        return Conversation(self._shown(agent), outputs), searches

    def _left_out(self, work: AgentWork, searches: _Searches) -> _Changed:
        conversation = work.conversation
        recorded, recorded_searches = self._recorded(work.agent)
        count = len(recorded.messages)
        if (
            conversation
            and count
            and conversation.messages[:count] == recorded.messages
            and (conversation.outputs, searches) == (recorded.outputs, recorded_searches)
        ):
            return Conversation(conversation.messages[count:], (_RECORDED,)), ()
        return conversation, searches

    def _put_in(self, work: AgentWork, searches: _Searches) -> _Changed:
        conversation = work.conversation
        if conversation is None or conversation.outputs != (_RECORDED,):
            return conversation, searches
        recorded, recorded_searches = self._recorded(work.agent)
        messages = recorded.messages + conversation.messages
        return Conversation(messages, recorded.outputs), recorded_searches
