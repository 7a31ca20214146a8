"""View of a run for its page: a lane per agent, with its calls over time."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from router.protocol import Passage
from router.trace import Call, Conversation, Execution, Run
from router.trace.call import UsageSums, sums_of
from router.trace.citation import Citation
from router.trace.turns import DELEGATOR, AgentId, work_of
from router.trace.values import SubQueryDispatched

SCALE = 1000
"""Length of a lane, in its units."""
_NAMES = {
    "delegation": "Delegator",
    "execution": "Executor",
    "answer": "Answerer",
    "judge": "Judge",
}
_MIN_WIDTH = 3.0
"""Min width of a bar, to be visible."""


class Bar(msgspec.Struct, frozen=True, gc=False):
    """Call on a lane."""

    call: Call
    start: float
    width: float
    """Start and width are in units of `SCALE`."""
    early: bool
    """True if dispatched before the delegator (or manager) finished its turn."""


class Lane(msgspec.Struct, frozen=True, gc=False):
    """Agent of the run, with its calls over time."""

    agent: AgentId
    bars: tuple[Bar, ...]
    sub_query: str = ""
    round: int = 0
    """Round that dispatched it; 0 for none."""
    execution: Execution | None = None
    """Its execution; None for other roles, and while it works."""
    conversation: Conversation | None = None

    @property
    def name(self) -> str:
        """Display name: `Executor 2`, `Manager 2, browser`, `Worker 2.1, browser`."""
        role, number, manager, worker = self.agent
        if number is None:
            return _NAMES[role]
        if not manager:
            return f"{_NAMES[role]} {number + 1}"
        if worker is None:
            return f"Manager {number + 1}, {manager}"
        return f"Worker {number + 1}.{worker + 1}, {manager}"

    @property
    def spent(self) -> UsageSums:
        """Usage of its calls."""
        return UsageSums(**sums_of([bar.call for bar in self.bars]))


class QuotedPassage(msgspec.Struct, frozen=True):
    """Citation with its passage, split at the quoted sentence."""

    at: Citation
    before: str
    quote: str
    after: str


def lanes(run: Run) -> tuple[Lane, ...]:
    """Return the lanes of a run: the delegator's, then by sub-query number, managers before their
    workers, then other roles.
    """
    asked = {event.index: event for event in run.events if isinstance(event, SubQueryDispatched)}
    known = {work.agent: work for work in work_of(run)}
    calls = dict[AgentId, list[Call]]()
    for call in run.calls:
        calls.setdefault(
            AgentId(call.role, call.sub_query_index, call.manager, call.worker), []
        ).append(call)
    begun = {agent.sub_query_index for agent in (*known, *calls)}
    waiting = (AgentId("execution", number) for number in asked if number not in begun)
    length = length_s(run)
    run_lanes = list[Lane]()
    for agent in sorted(dict.fromkeys((*known, *calls, *waiting)), key=_rank):
        _, execution, conversation = known.get(agent, (agent, None, None))
        own = calls.get(agent, [])
        dispatched = None if agent.worker is not None else asked.get(_number(agent))
        lead = AgentId("delegation", *agent[1:3]) if agent.worker is not None else DELEGATOR
        decisions = calls.get(lead, []) if run.kind == "answer" else []
        if own or execution or conversation or dispatched:
            source = execution or dispatched
            sub_query = source.sub_query if source else ""
            run_lanes.append(
                Lane(
                    agent,
                    tuple(
                        _bar(run, call, length, decisions if agent != lead else ()) for call in own
                    ),
                    sub_query,
                    dispatched.round if dispatched else 0,
                    execution,
                    conversation,
                )
            )
    return tuple(run_lanes)


def length_s(run: Run) -> float:
    """Return the duration of a run with all its calls, in seconds."""
    ends = (call.started_at + call.duration_s - run.started_at for call in run.calls)
    return max(run.duration_s, *ends, 1e-3)


def passages_of(run: Run) -> Mapping[str, Passage]:
    """Return all passages retrieved in a run, by identifier."""
    executions = (execution for _, execution, _ in work_of(run) if execution)
    searches = chain.from_iterable(execution.searches for execution in executions)
    return {passage.id: passage for search in searches for passage in search.passages}


def sources(
    citations: Iterable[Citation], passages: Mapping[str, Passage]
) -> tuple[QuotedPassage, ...]:
    """Return citations with their passages."""
    return tuple(source(at, passages.get(at.passage_id)) for at in citations)


def source(at: Citation, passage: Passage | None) -> QuotedPassage:
    """Split a passage at its citation; without the passage, only the quote is shown."""
    if passage is None:
        return QuotedPassage(at, "", at.quote, "")
    words = at.quote.strip("…").split()
    sentence = re.search(r"\s+".join(map(re.escape, words)), passage.text) if words else None
    if sentence is None:
        return QuotedPassage(at, passage.text, "", "")
    return QuotedPassage(
        at, passage.text[: sentence.start()], sentence[0], passage.text[sentence.end() :]
    )


def _number(agent: AgentId) -> int:
    return -1 if agent.sub_query_index is None else agent.sub_query_index


def _rank(agent: AgentId) -> tuple[bool, int]:
    return agent.role in ("answer", "judge"), _number(agent)


def _bar(
    run: Run,
    call: Call,
    length: float,
    decisions: Sequence[Call],
) -> Bar:
    start = min(max(0.0, call.started_at - run.started_at) / length * SCALE, SCALE - _MIN_WIDTH)
    width = min(max(call.duration_s / length * SCALE, _MIN_WIDTH), SCALE - start)
    early = any(
        decision.started_at < call.started_at < decision.started_at + decision.duration_s
        for decision in decisions
    )
    return Bar(call, round(start, 1), round(width, 1), early)
