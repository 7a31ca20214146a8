"""A run as its page shows it: the lanes of its agents in time, and what each was shown and wrote."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from router.models import Completion, Message
from router.protocol import Passage
from router.trace import Call, Conversation, Execution, Run, Trajectory
from router.trace.call import UsageSums, sums_of
from router.trace.citation import Citation
from router.trace.turns import Agent
from router.trace.values import Reported, SearchRecord, SubQueryDispatched, TableRun

SCALE = 1000
"""Of a lane: the units of its length."""
_NAMES = {"delegation": "Delegator", "execution": "Executor", "answer": "Answerer", "judge": "Judge"}
_ORDER = tuple(_NAMES)
_LEAST = 3.0
"""The shortest bar that is seen."""


class Bar(msgspec.Struct, frozen=True):
    """A call on its lane."""

    call: Call
    start: float
    width: float
    """Both of `SCALE`."""
    early: bool
    """True where it began before the delegator's turn had ended."""

    @property
    def kind(self) -> str:
        """`completed`, `wasted`, or `failed`."""
        return self.call.outcome if self.call.outcome in ("completed", "wasted") else "failed"


class Lane(msgspec.Struct, frozen=True):
    """An agent of the run, with its calls in time."""

    agent: Agent
    bars: tuple[Bar, ...]
    pauses: tuple[tuple[float, float], ...] = ()
    """Between a turn and the next one: where an agent searched, or waited for its place."""
    sub_query: str = ""
    round: int = 0
    """The round that dispatched it; 0 for none."""
    execution: Execution | None = None
    """What it came to; None for other agents, and while it works."""

    @property
    def name(self) -> str:
        """Its name for people: `Executor 2`."""
        role, number = self.agent
        return _NAMES.get(role, role) + ("" if number is None else f" {number + 1}")

    @property
    def path(self) -> str:
        """Its name in addresses, as in exports: `execution-1`."""
        role, number = self.agent
        return role if number is None else f"{role}-{number}"

    @property
    def spent(self) -> UsageSums:
        """Sums over its calls."""
        return UsageSums(**sums_of([bar.call for bar in self.bars]))

    @property
    def retries(self) -> int:
        """Calls beside the first ones."""
        return sum(bar.call.purpose not in ("first", "shadow") for bar in self.bars)


class Turn(msgspec.Struct, frozen=True):
    """A turn of an agent: what it was shown since its last one, what it wrote, and the call behind it."""

    shown: tuple[Message, ...]
    output: Completion | None
    """None of a call whose output nobody took."""
    call: Call | None
    """None where another run paid for it."""


class Source(msgspec.Struct, frozen=True):
    """A citation with its passage, cut where the sentence stands."""

    at: Citation
    before: str
    quote: str
    after: str


def lanes(run: Run) -> tuple[Lane, ...]:
    """The lanes of a run, the delegator's first, then the executors' by number, then the others'."""
    asked = {event.index: event for event in run.events if isinstance(event, SubQueryDispatched)}
    executions, calls = executions_of(run), dict[Agent, list[Call]]()
    for call in run.calls:
        calls.setdefault(Agent(call.role, call.sub_query), []).append(call)
    agents = {*calls, *(Agent("execution", number) for number in (*asked, *executions))}
    agents.update(Agent(role) for role in ("delegation", "answer") if conversation_of(run, Agent(role)))
    decisions = [call for call in run.calls if call.role == "delegation"] if run.kind == "answer" else []
    length = _length(run)
    found = []
    for agent in sorted(agents, key=_rank):
        number = -1 if agent.sub_query is None else agent.sub_query
        execution, own = executions.get(number), calls.get(agent, [])
        dispatched = asked.get(number)
        found.append(
            Lane(
                agent,
                tuple(_bar(run, call, length, decisions) for call in own),
                tuple(_pauses(run, own, length)),
                dispatched.sub_query if dispatched else execution.sub_query if execution else "",
                dispatched.round if dispatched else 0,
                execution,
            )
        )
    return tuple(found)


def ticks(run: Run) -> tuple[float, ...]:
    """Times along the lanes, in seconds from the beginning."""
    return tuple(_length(run) * part / 4 for part in range(5))


def executions_of(run: Run) -> Mapping[int, Execution]:
    """The executions by number, as far as they have ended."""
    match run.result:
        case Trajectory(executions=executions) | TableRun(executions=executions):
            return dict(enumerate(executions))
        case Execution() as one:
            return {0: one}
    return {one.index: one.execution for one in run.events if isinstance(one, Reported) and one.execution}


def conversation_of(run: Run, agent: Agent) -> Conversation | None:
    """All that an agent was shown and wrote, so far as it is known."""
    match run.result:
        case Trajectory(answering=Conversation() as answering) if agent.role == "answer":
            return answering
        case Trajectory(delegation=main) | TableRun(delegation=main) if agent.role == "delegation":
            return main
        case Conversation() as whole:
            return whole
    execution = executions_of(run).get(-1 if agent.sub_query is None else agent.sub_query)
    return execution.conversation if execution and agent.role == "execution" else None


def searches_of(run: Run) -> tuple[SearchRecord, ...]:
    """All searches: those of a main agent, then the executors'."""
    own = run.result.searches if isinstance(run.result, Trajectory) else ()
    return (*own, *(search for execution in executions_of(run).values() for search in execution.searches))


def turns(conversation: Conversation | None, calls: Sequence[Call]) -> tuple[Turn, ...]:
    """The turns of an agent with their calls, in order; those that another run paid for stand first. Of a run whose
    texts are not kept, or that goes on, there are calls alone.
    """
    outputs = conversation.outputs if conversation else ()
    shown: list[list[Message]] = [[]]
    for message in conversation.messages if conversation else ():
        if message.role == "assistant" and len(shown) <= len(outputs):
            shown.append([])
        else:
            shown[-1].append(message)
    taken = [call for call in calls if call.outcome == "completed"][-len(outputs) :] if outputs else []
    unpaid, found = len(outputs) - len(taken), list[Turn]()
    written = zip(shown, outputs, strict=False)
    for _ in range(unpaid):
        messages, output = next(written)
        found.append(Turn(tuple(messages), output, None))
    for call in calls:
        if any(call is one for one in taken):
            messages, output = next(written)
            found.append(Turn(tuple(messages), output, call))
        else:
            found.append(Turn((), None, call))
    if rest := [message for messages in shown[len(outputs) :] for message in messages]:
        found.append(Turn(tuple(rest), None, None))
    return tuple(found)


def sources(citations: Iterable[Citation], searches: Iterable[SearchRecord]) -> tuple[Source, ...]:
    """Citations with their passages."""
    passages = {passage.id: passage for search in searches for passage in search.passages}
    return tuple(source(at, passages.get(at.passage_id)) for at in citations)


def source(at: Citation, passage: Passage | None) -> Source:
    """A citation in its passage; alone where that is not at hand."""
    if passage is None:
        return Source(at, "", at.quote, "")
    sentence = re.search(r"\s+".join(map(re.escape, at.quote.split())), passage.text) if at.quote.strip() else None
    if sentence is None:
        return Source(at, passage.text, "", "")
    return Source(at, passage.text[: sentence.start()], sentence[0], passage.text[sentence.end() :])


def _rank(agent: Agent) -> tuple[int, int]:
    return _ORDER.index(agent.role), -1 if agent.sub_query is None else agent.sub_query


def _length(run: Run) -> float:
    ends = (call.started_at + call.duration_s - run.started_at for call in run.calls)
    return max(run.duration_s, *ends, 1e-3)


def _bar(run: Run, call: Call, length: float, decisions: Sequence[Call]) -> Bar:
    start = min(max(0.0, call.started_at - run.started_at) / length * SCALE, SCALE - _LEAST)
    width = min(max(call.duration_s / length * SCALE, _LEAST), SCALE - start)
    early = call.role == "execution" and any(
        each.started_at < call.started_at < each.started_at + each.duration_s for each in decisions
    )
    return Bar(call, round(start, 1), round(width, 1), early)


def _pauses(run: Run, calls: Sequence[Call], length: float) -> Iterable[tuple[float, float]]:
    for before, after in pairwise(calls):
        start = (before.started_at + before.duration_s - run.started_at) / length * SCALE
        width = (after.started_at - run.started_at) / length * SCALE - start
        if before.outcome == "completed" and width > 0:
            yield round(start, 1), round(width, 1)
