"""Timeline of a run, for the run's page: one lane for each agent, with the agent's model calls as
bars over time.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import chain

from router.frozen import Frozen
from router.protocol import Passage
from router.trace import Call, Conversation, Execution, Run
from router.trace.call import UsageSums, sums_of
from router.trace.citation import Citation
from router.trace.turns import CONDENSER, AgentId, agent_of, work_of
from router.trace.values import SubQueryDispatched

SCALE = 1000
"""Length of a lane, in units of the drawing."""
_NAMES = {
    "condense": "Condenser",
    "delegation": "Delegator",
    "execution": "Executor",
    "rerank": "Reranker",
    "answer": "Answerer",
    "judge": "Judge",
}
_MIN_WIDTH = 3.0
"""Min width of a bar, so that a short call is visible, in units of the drawing."""


class Bar(Frozen, gc=False):
    """A model call as a bar on a lane."""

    call: Call
    start: float
    """Position of the bar's left end, from 0 to `SCALE`."""
    width: float
    """Width of the bar; `SCALE` is the duration of the whole run."""


class Lane(Frozen, gc=False):
    """An agent of the run, with its model calls over time."""

    agent: AgentId
    bars: tuple[Bar, ...]
    """The agent's calls, in their order."""
    sub_query: str = ""
    """The sub-query that the agent works on; empty for the delegator and the answerer."""
    round: int = 0
    """Number of the round in which the sub-query was dispatched; 0 if the agent has no sub-query.
    """
    execution: Execution | None = None
    """The record of the agent's work on the sub-query; None for an agent without a sub-query, and
    while the agent is still working.
    """
    conversation: Conversation | None = None
    """The agent's conversation with its model; None if unknown."""
    place: tuple[int, ...] = ()
    """Sort key of the lane's group. A manager and its workers are a
    group. In a table, the agents that work on the same row are a group, and so are the agents that
    discover rows.
    """

    @property
    def name(self) -> str:
        """Name on the page, such as `Executor 2`, `Manager 2, browser` or `Worker 2.1, browser`."""
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
        """Sums of tokens and cost of the agent's calls."""
        return UsageSums(**sums_of([bar.call for bar in self.bars]))


class QuotedPassage(Frozen):
    """A citation with the text of its passage, split so that the quoted sentence can be marked."""

    at: Citation
    before: str
    """The text of the passage before the quoted sentence."""
    quote: str
    after: str
    """The text of the passage after the quoted sentence."""


class Agents:
    """The agents of a run. Their lanes are only built on request: a large table has thousands of
    agents, and a page shows only a few of them.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self.length_s = length_s(run)
        self.dispatched = {
            event.index: event for event in run.events if isinstance(event, SubQueryDispatched)
        }
        """The events that dispatched sub-queries, by the sub-queries' numbers."""
        by_row = dict[object, int]()
        self._firsts = {
            number: by_row.setdefault(event.ask.row if event.ask else number, number)
            for number, event in self.dispatched.items()
        }
        """Maps the number of each sub-query to the number of the first sub-query for the same row
        of a table.
        """

        self._works = {work.agent: work for work in work_of(run)}
        self._calls = dict[AgentId, list[Call]]()
        for call in run.calls:
            self._calls.setdefault(agent_of(call), []).append(call)

        begun = {agent.sub_query_index for agent in (*self._works, *self._calls)}
        waiting = (
            AgentId("execution", number) for number in self.dispatched if number not in begun
        )
        agents = dict.fromkeys((*self._works, *self._calls, *waiting))
        self.ids: list[AgentId] = sorted(filter(self._is_shown, agents), key=self._place)
        """The agents in the order of their lanes: first the condenser and the delegator, then the
        agents that work on sub-queries, by the numbers of the sub-queries, then the answerer and
        the judge. A manager comes before its workers. In a table, agents for the same row are next
        to each other.
        """

    @property
    def executors(self) -> list[str]:
        """Names of the executor versions whose work in the run is known, sorted."""
        executions = (work.execution for work in self._works.values())
        return sorted({execution.executor for execution in executions if execution} - {""})

    def lane(self, agent: AgentId) -> Lane:
        """Return the lane of `agent`, which must be one of `ids`."""
        _, execution, conversation = self._works.get(agent, (agent, None, None))
        dispatched = self._dispatch_of(agent)
        source = execution or dispatched
        return Lane(
            agent,
            tuple(_bar(self._run, call, self.length_s) for call in self._calls.get(agent, ())),
            source.sub_query if source else "",
            dispatched.round if dispatched else 0,
            execution,
            conversation,
            self._place(agent)[:-1],
        )

    def _is_shown(self, agent: AgentId) -> bool:
        if agent in self._calls or self._dispatch_of(agent):
            return True
        work = self._works[agent]
        return bool(work.execution or work.conversation)

    def _place(self, agent: AgentId) -> tuple[int, ...]:
        number = _number(agent)
        first = self._firsts.get(number, number)
        return agent.role in ("answer", "judge"), agent != CONDENSER, first, number

    def _dispatch_of(self, agent: AgentId) -> SubQueryDispatched | None:
        return None if agent.worker is not None else self.dispatched.get(_number(agent))


def length_s(run: Run) -> float:
    """Return the duration of a run in seconds, at least up to the end of its last call."""
    ends = (call.started_at + call.duration_s - run.started_at for call in run.calls)
    return max(run.duration_s, *ends, 1e-3)


def passages_of(run: Run) -> Mapping[str, Passage]:
    """Return all passages that were retrieved in a run, by their identifiers."""
    executions = (execution for _, execution, _ in work_of(run) if execution)
    searches = chain.from_iterable(execution.searches for execution in executions)
    return {passage.id: passage for search in searches for passage in search.passages}


def sources(
    citations: Iterable[Citation], passages: Mapping[str, Passage]
) -> tuple[QuotedPassage, ...]:
    """Return citations with the texts of their passages. `passages`: the run's passages by
    identifier.
    """
    return tuple(source(at, passages.get(at.passage_id)) for at in citations)


def source(at: Citation, passage: Passage | None) -> QuotedPassage:
    """Return a citation with the text of its passage, split at the quoted sentence. If `passage` is
    None, return only the quote. If the passage does not contain the quote, return its whole text.
    """
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


def _bar(run: Run, call: Call, length: float) -> Bar:
    start = min(max(0.0, call.started_at - run.started_at) / length * SCALE, SCALE - _MIN_WIDTH)
    width = min(max(call.duration_s / length * SCALE, _MIN_WIDTH), SCALE - start)
    return Bar(call, round(start, 1), round(width, 1))
