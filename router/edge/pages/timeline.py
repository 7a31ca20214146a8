"""A run as its page shows it: the lanes of its agents in time, and what each was shown and
wrote.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from router.models import Completion, Message
from router.protocol import Passage
from router.trace import Call, Conversation, Execution, Run, Trajectory
from router.trace.call import UsageSums, sums_of
from router.trace.citation import Citation
from router.trace.turns import DELEGATOR, Agent, work_of
from router.trace.values import SearchRecord, SubQueryDispatched

SCALE = 1000
"""Of a lane: the units of its length."""
_NAMES = {
    "delegation": "Delegator",
    "execution": "Executor",
    "answer": "Answerer",
    "judge": "Judge",
}
_LEAST = 3.0
"""The shortest bar that is seen."""


class Bar(msgspec.Struct, frozen=True):
    """A call on its lane."""

    call: Call
    start: float
    width: float
    """Both of `SCALE`."""
    early: bool
    """True where it began before the turn of whoever leads it had ended."""

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
    conversation: Conversation | None = None
    searches: tuple[SearchRecord, ...] = ()

    @property
    def name(self) -> str:
        """Its name for people: `Executor 2`, `Manager 2, browser`, `Worker 2.1, browser`."""
        role, number, manager, worker = self.agent
        if number is None:
            return _NAMES[role]
        if not manager:
            return f"{_NAMES[role]} {number + 1}"
        return (
            f"Manager {number + 1}, {manager}"
            if worker is None
            else f"Worker {number + 1}.{worker + 1}, {manager}"
        )

    @property
    def spent(self) -> UsageSums:
        """Sums over its calls."""
        return UsageSums(**sums_of([bar.call for bar in self.bars]))

    @property
    def retries(self) -> int:
        """Calls beside the first ones."""
        return sum(bar.call.purpose not in ("first", "shadow") for bar in self.bars)


class Turn(msgspec.Struct, frozen=True):
    """A turn of an agent: what it was shown since its last one, what it wrote, and the call
    behind it.
    """

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
    """The lanes of a run: the delegator's, those of each sub-query by number, managers before their
    workers, and then the others'.
    """
    asked = {event.index: event for event in run.events if isinstance(event, SubQueryDispatched)}
    known = {work.agent: work for work in work_of(run)}
    calls = dict[Agent, list[Call]]()
    for call in run.calls:
        calls.setdefault(Agent(call.role, call.sub_query, call.manager, call.worker), []).append(
            call
        )
    begun = {agent.sub_query for agent in (*known, *calls)}
    waiting = (Agent("execution", number) for number in asked if number not in begun)
    length = _length(run)
    found = list[Lane]()
    for agent in sorted(dict.fromkeys((*known, *calls, *waiting)), key=_rank):
        _, execution, conversation = known.get(agent, (agent, None, None))
        own = calls.get(agent, [])
        dispatched = None if agent.worker is not None else asked.get(_number(agent))
        lead = Agent("delegation", *agent[1:3]) if agent.worker is not None else DELEGATOR
        decisions = calls.get(lead, []) if run.kind == "answer" else []
        searches = execution.searches if execution else ()
        if agent == DELEGATOR and isinstance(run.result, Trajectory):
            searches = run.result.searches
        if own or execution or conversation or dispatched:
            found.append(
                Lane(
                    agent,
                    tuple(
                        _bar(run, call, length, decisions if agent != lead else ()) for call in own
                    ),
                    tuple(_pauses(run, own, length)),
                    execution.sub_query
                    if execution
                    else dispatched.sub_query
                    if dispatched
                    else "",
                    dispatched.round if dispatched else 0,
                    execution,
                    conversation,
                    searches,
                )
            )
    return tuple(found)


def ticks(run: Run) -> tuple[float, ...]:
    """Times along the lanes, in seconds from the beginning."""
    return tuple(_length(run) * part / 4 for part in range(5))


def turns(conversation: Conversation | None, calls: Sequence[Call]) -> tuple[Turn, ...]:
    """The turns of an agent with their calls, in order; those that another run paid for stand
    first. Of a run whose texts are not kept, or that goes on, there are calls alone.
    """
    outputs = conversation.outputs if conversation else ()
    shown: list[list[Message]] = [[]]
    for message in conversation.messages if conversation else ():
        if message.role == "assistant" and len(shown) <= len(outputs):
            shown.append([])
        else:
            shown[-1].append(message)
    taken = (
        [call for call in calls if call.outcome == "completed"][-len(outputs) :] if outputs else []
    )
    unpaid = len(outputs) - len(taken)
    found = list[Turn]()
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


def passages_of(run: Run) -> Mapping[str, Passage]:
    """All passages that were found in a run, by their identifiers."""
    main = run.result.searches if isinstance(run.result, Trajectory) else ()
    found = (
        search for _, execution, _ in work_of(run) if execution for search in execution.searches
    )
    return {passage.id: passage for search in (*main, *found) for passage in search.passages}


def sources(citations: Iterable[Citation], passages: Mapping[str, Passage]) -> tuple[Source, ...]:
    """Citations with their passages."""
    return tuple(source(at, passages.get(at.passage_id)) for at in citations)


def source(at: Citation, passage: Passage | None) -> Source:
    """A citation in its passage; alone where that is not at hand."""
    if passage is None:
        return Source(at, "", at.quote, "")
    words = at.quote.strip("…").split()
    sentence = re.search(r"\s+".join(map(re.escape, words)), passage.text) if words else None
    if sentence is None:
        return Source(at, passage.text, "", "")
    return Source(at, passage.text[: sentence.start()], sentence[0], passage.text[sentence.end() :])


def _number(agent: Agent) -> int:
    return -1 if agent.sub_query is None else agent.sub_query


def _rank(agent: Agent) -> tuple[bool, int]:
    return agent.role in ("answer", "judge"), _number(agent)


def _length(run: Run) -> float:
    ends = (call.started_at + call.duration_s - run.started_at for call in run.calls)
    return max(run.duration_s, *ends, 1e-3)


def _bar(run: Run, call: Call, length: float, decisions: Sequence[Call]) -> Bar:
    start = min(max(0.0, call.started_at - run.started_at) / length * SCALE, SCALE - _LEAST)
    width = min(max(call.duration_s / length * SCALE, _LEAST), SCALE - start)
    early = any(
        each.started_at < call.started_at < each.started_at + each.duration_s for each in decisions
    )
    return Bar(call, round(start, 1), round(width, 1), early)


def _pauses(run: Run, calls: Sequence[Call], length: float) -> Iterable[tuple[float, float]]:
    for before, after in pairwise(calls):
        start = (before.started_at + before.duration_s - run.started_at) / length * SCALE
        width = (after.started_at - run.started_at) / length * SCALE - start
        if before.outcome == "completed" and width > 0:
            yield round(start, 1), round(width, 1)
