"""Early dispatch: sub-queries begin before the delegator's turn ends."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import BudgetExhausted, UpstreamUnavailable
from router.ledger import Budget, Ledger
from router.ledger.budget import Allowance
from router.models import Prompt
from router.protocol import Passage
from router.search import Answerer, Delegator, Executor, FactorizedSearch, RunContext
from router.search.agent import ExecutorLimits
from router.trace import Call, Event, Trajectory
from router.trace.values import Reported, RoundStarted, SearchDone, SubQueryDispatched
from tests.router.clock import Clock, with_clock
from tests.router.deployment import PASSAGE, STOP, Deployment, block, finds, lasting, report, role
from tests.router.outputs import OUTPUTS
from tests.router.paced_model import PacedModel, Piece
from tests.router.search.test_report_cache import shared
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

QUESTION = "Was the director of Heat born before 1950?"
LIMITS = ExecutorLimits()
DOWN = UpstreamUnavailable("the stream was cut", endpoint="e")


class Watched:
    """A retriever that notes its queries and holds some of them."""

    def __init__(self, *held: str) -> None:
        self.searched: dict[str, asyncio.Event] = {}
        self.cancelled: set[str] = set()
        self._held = held

    def of(self, query: str) -> asyncio.Event:
        return self.searched.setdefault(query, asyncio.Event())

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        for query in queries:
            self.of(query).set()
            try:
                if query in self._held:
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.add(query)
                raise
        return [[PASSAGE][:top_k] for _ in queries]


def paced(
    retriever: Watched, *outputs: Sequence[Piece], attempts: int = 1, early: bool = True
) -> FactorizedSearch:
    """Return a search whose delegator writes at the pace of the test."""
    deployment = Deployment(PacedModel(*outputs), retriever=retriever, attempts=attempts)
    return deployment.search(early_dispatch=early)


def spent(context: RunContext, outcome: str) -> list[Call]:
    """Return the executors' calls with this outcome."""
    return [
        call
        for call in context.ledger.calls
        if call.role == "execution" and call.outcome == outcome
    ]


async def test_a_sub_query_begins_at_its_closing_quote() -> None:
    """The second sub-query is written only once the first has searched, and the block is closed
    once the second has.
    """
    retriever = Watched()
    a = retriever.of("a?").wait
    b = retriever.of("b?").wait
    written: list[Piece] = ['<search>["a?"', a, ', "b?"', b, "]</search>"]
    async with asyncio.timeout(10):
        trajectory = await paced(retriever, written, [STOP]).run(QUESTION, lasting())
    assert [execution.sub_query for execution in trajectory.executions] == ["a?", "b?"]
    assert trajectory.answer == "Michael Mann"


async def test_events_of_early_sub_queries_wait_for_the_end_of_the_block() -> None:
    """They come once the dispatch is certain, in the order of the protocol."""
    retriever = Watched()
    events = list[Event]()
    context = lasting(events=events)
    heard = list[Event]()

    async def listen() -> None:
        await retriever.of("a?").wait()
        heard.extend(events)

    trajectory = await paced(retriever, ['<search>["a?"', listen, ', "b?"]</search>'], [STOP]).run(
        QUESTION, context
    )
    assert heard == [RoundStarted(1)]
    assert events[1:3] == [SubQueryDispatched(0, 1, "a?"), SubQueryDispatched(1, 1, "b?")]
    for index, sub_query in enumerate(("a?", "b?")):
        of = [
            event
            for event in events
            if isinstance(event, SearchDone | Reported) and event.index == index
        ]
        assert of == [
            SearchDone(index, sub_query, ("Heat",)),
            Reported(index, trajectory.executions[index]),
        ]
    assert {call.outcome for call in context.ledger.calls} == {"completed"}


async def test_a_finished_question_leaves_no_reference_cycles() -> None:
    """Its conversations are freed without the garbage collector."""
    context = lasting()
    ledger = weakref.ref(context.ledger)
    gc.collect()
    gc.disable()
    try:
        await paced(Watched(), ['<search>["a?", "b?"]</search>'], [STOP]).run(QUESTION, context)
        del context
        await asyncio.sleep(0)  # release finished tasks
        assert ledger() is None
    finally:
        gc.enable()


def insists(prompt: Prompt) -> str:
    """An executor that wants three searches."""
    turn = len(prompt.messages) // 2
    return (
        f"<search>{prompt.messages[1].content} {turn}</search>"
        if turn < 4
        else report("it", "It is so.")
    )


@dataclass(frozen=True)
class Terms:
    """Options of a run and of its executors."""

    size: int = 3
    """Length of a piece of the delegator's output, in characters."""
    tokens: int | None = None
    quota: bool = False
    sharing: bool = False
    limits: ExecutorLimits = LIMITS
    executor: Callable[[Prompt], str] = finds


async def compared(*outputs: str, terms: Terms = Terms()) -> Sequence[Call]:
    """Assert that a run with early dispatch equals the run without.

    Return the executors' calls with it. Without early dispatch nothing is wasted.
    """
    results: list[tuple[Trajectory, list[list[Event]], list[str]]] = []
    executed: list[Call] = []
    for early in (True, False):
        events: list[Event] = []
        ledger = Ledger(allowance=Allowance(Budget(terms.tokens)), limited=terms.quota)
        context = RunContext.lasting(60.0, events.append, ledger, sharing=terms.sharing)
        pieces = [
            [text[at : at + terms.size] for at in range(0, len(text), terms.size)]
            for text in outputs
        ]
        roles = Deployment(PacedModel(*pieces)).roles()
        model = ScriptedModel(terms.executor)
        retriever = Watched()
        alone = Executor(role("execution", model), Unfiltered(retriever), terms.limits)
        search = FactorizedSearch(
            Delegator(roles["delegation"]),
            shared(model, retriever) if terms.sharing else alone,
            Answerer(roles["answer"]),
            early_dispatch=early,
        )
        trajectory = await search.run(QUESTION, context)
        events_by_execution: list[list[Event]] = [
            [event for event in events if not isinstance(event, SearchDone | Reported)]
        ]
        for index in range(len(trajectory.executions)):
            events_by_execution += [
                [
                    event
                    for event in events
                    if isinstance(event, SearchDone | Reported) and event.index == index
                ]
            ]
        assert len(events) == sum(map(len, events_by_execution))
        rows = [
            msgspec.structs.replace(
                call, number=0, started_at=0.0, first_token_s=None, duration_s=0.0
            )
            for call in ledger.calls
            if not early or call.outcome == "completed"
        ]
        results.append((trajectory, events_by_execution, sorted(map(repr, rows))))
        executed = executed or spent(context, "wasted") + spent(context, "completed")
    assert results[0] == results[1]
    return executed


@pytest.mark.parametrize(
    "first",
    [
        block("a?", "b?", "c?", "d?"),
        block(*(f"question {number}?" for number in range(12))),
        '<search>["a?", "A", "b?"]</search>',
        '<think><search>["x?"]</search></think><search>["a?"]</search>',
        '<search>["a?"]</search></think>' + block("b?"),
        '<search>["a?", "b?"<think>no</think>]</search>',
        '<search>["Who said "Why?" in it?", "b?"]</search>',
        '<search>["a?"<search_results><result>x</result>',
        "<search>1. a?\n2. b?\n</search>",
    ],
)
async def test_early_dispatch_changes_no_answer_trajectory_event_or_call(first: str) -> None:
    """The block is written in many ways, and wrong in many places."""
    for size in (1, 5, 1000):
        for sharing in (False, True):
            await compared(first, STOP, STOP, terms=Terms(size, sharing=sharing))


@pytest.mark.parametrize(
    "terms",
    [
        Terms(quota=True),
        *(Terms(tokens=tokens) for tokens in (400, 600, 800, 1200)),
        *(Terms(limits=ExecutorLimits(turns, turns - 1), executor=insists) for turns in (2, 3, 4)),
        Terms(sharing=True),
    ],
)
async def test_early_dispatch_changes_nothing_under_any_options(terms: Terms) -> None:
    """Rounds repeat sub-queries, and outputs are corrected in between."""
    await compared(
        block("a?", "b?"),
        "let me see",
        block("b?", "c?", "d?"),
        "no",
        block("A", "e?"),
        STOP,
        terms=terms,
    )


@pytest.mark.parametrize("sharing", [False, True])
async def test_sub_queries_begun_for_nothing_are_executed_again(sharing: bool) -> None:
    """This holds even where a report is shared: the trace is that of a run without early
    dispatch.
    """
    taken_back = f'<search>["a?", "b?"{" " * 200}</think>no'
    executed = await compared(
        taken_back, block("b?", "a?"), block("a?"), STOP, terms=Terms(sharing=sharing)
    )
    assert sum(call.outcome == "wasted" for call in executed) == 4
    assert sum(call.outcome == "completed" for call in executed) == (4 if sharing else 6)


@settings(deadline=None, max_examples=30)
@given(OUTPUTS, OUTPUTS, st.integers(1, 9), st.booleans())
async def test_early_dispatch_changes_nothing_for_any_text(
    rest: str, output: str, size: int, sharing: bool
) -> None:
    terms = Terms(size, sharing=sharing)
    await compared(
        f'<search>["a?", "b?"{rest}', output, STOP, STOP, STOP, STOP, STOP, STOP, terms=terms
    )


async def test_sub_queries_that_are_not_dispatched_are_cancelled_and_wasted() -> None:
    """A thought that ends late retracts the block.

    One of its sub-queries is running then, and one has ended.
    """
    retriever = Watched("a?")
    context = lasting()
    reported = asyncio.Event()

    def works(prompt: Prompt) -> str:
        if prompt.messages[1].content == "b?" and len(prompt.messages) == 4:
            reported.set()
        return finds(prompt)

    both = [retriever.of("a?").wait, retriever.of("b?").wait, reported.wait]
    delegator = PacedModel(
        ['<search>["a?", "b?"', *both, *[""] * 50, "</think>no"], [block("c?")], [STOP]
    )
    search = Deployment(delegator, ScriptedModel(works), retriever=retriever).search()
    async with asyncio.timeout(10):
        trajectory = await search.run(QUESTION, context)
    assert retriever.cancelled == {"a?"}
    assert [execution.sub_query for execution in trajectory.executions] == ["c?"]
    wasted = spent(context, "wasted")
    assert sorted(call.sub_query_index or 0 for call in wasted) == [0, 1, 1]
    assert all(call.usage and call.wasted_tokens == call.usage.total_tokens for call in wasted)
    assert not any(call.usage and call.usage.lower_bound for call in wasted)
    assert len(spent(context, "completed")) == 2


@pytest.mark.parametrize(("again", "calls", "wasted"), [(["a?", "b?"], 4, 0), (["c?"], 3, 1)])
async def test_a_retried_call_reuses_the_sub_queries_that_it_asks_again(
    again: list[str], calls: int, wasted: int
) -> None:
    """The stream broke off. Other sub-queries are cancelled."""
    retriever = Watched(*([] if "a?" in again else ["a?"]))
    context = lasting()
    broken: list[Piece] = ['<search>["a?"', retriever.of("a?").wait, DOWN]
    search = paced(retriever, broken, [block(*again)], [STOP], attempts=2)
    async with asyncio.timeout(10):
        trajectory = await search.run(QUESTION, context)
    assert [execution.sub_query for execution in trajectory.executions] == again
    executed = [call for call in context.ledger.calls if call.role == "execution"]
    assert (len(executed), len(spent(context, "wasted"))) == (calls, wasted)
    assert retriever.cancelled == ({"a?"} if wasted else set())


async def test_a_failed_delegator_cancels_its_early_sub_queries() -> None:
    """Its error is raised."""
    retriever = Watched("a?")
    context = lasting()
    search = paced(retriever, ['<search>["a?"', retriever.of("a?").wait, DOWN])
    with pytest.raises(UpstreamUnavailable, match="delegation"):
        await search.run(QUESTION, context)
    assert retriever.cancelled == {"a?"}
    await context.ledger.close(1)
    assert sorted(call.outcome for call in context.ledger.calls) == ["unavailable", "wasted"]


async def test_cancelling_the_run_cancels_early_sub_queries() -> None:
    """No task is left running, and every call is booked."""
    retriever = Watched("a?")
    context = lasting()
    search = paced(retriever, ['<search>["a?"', asyncio.Event().wait])
    running = asyncio.create_task(search.run(QUESTION, context))
    async with asyncio.timeout(10):
        await retriever.of("a?").wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await context.ledger.close(1)
    assert retriever.cancelled == {"a?"}
    assert sorted(call.outcome for call in context.ledger.calls) == ["cancelled", "wasted"]


def test_a_deadline_cancels_early_sub_queries() -> None:
    """An unfinished block is not dispatched, and its sub-queries are no part of the answer."""

    async def main(clock: Clock) -> None:
        retriever = Watched()
        written: list[Piece] = ['<search>["a?"', retriever.of("a?").wait, asyncio.Event().wait]
        running = asyncio.create_task(
            paced(retriever, [block("z?")], written).run(QUESTION, lasting(10.0))
        )
        await clock.advance(8.1)
        trajectory = await running
        assert retriever.of("a?").is_set()
        assert (
            trajectory.outcome,
            [execution.sub_query for execution in trajectory.executions],
        ) == (
            "time_exhausted",
            ["z?"],
        )

    with_clock(main)


async def test_a_run_with_a_budget_begins_nothing_early() -> None:
    """A budget is not spent on guesses."""
    retriever = Watched()
    seen: list[bool] = []

    async def look() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        seen.append(retriever.of("a?").is_set())

    ledger = Ledger(allowance=Allowance(Budget(100_000)))
    context = RunContext.lasting(60.0, lambda _event: None, ledger)
    trajectory = await paced(retriever, ['<search>["a?"', look, "]</search>"], [STOP]).run(
        QUESTION, context
    )
    assert (seen, trajectory.answer) == ([False], "Michael Mann")


class Contended(Ledger):
    """A tenant's quota without room for executors until the delegator's first call is settled."""

    async def _open(self, caller: object, *rest: object) -> object:  # type: ignore[override]
        if caller.role == "execution" and not self.calls:  # type: ignore[attr-defined]
            raise BudgetExhausted("the quota is reserved")
        return await super()._open(caller, *rest)  # type: ignore[arg-type]


async def test_a_sub_query_refused_early_by_a_quota_is_tried_again() -> None:
    """The delegator's reservation stood in its way until it was settled."""
    events: list[Event] = []
    context = RunContext.lasting(60.0, events.append, Contended(limited=True))
    written: list[Piece] = ['<search>["a?"', *[""] * 50, "]</search>"]
    trajectory = await paced(Watched(), written, [STOP]).run(QUESTION, context)
    assert [execution.outcome for execution in trajectory.executions] == ["reported"]
    assert [type(event) for event in events[1:4]] == [SubQueryDispatched, SearchDone, Reported]


async def test_a_model_that_does_not_stream_is_read_at_its_end() -> None:
    roles = Deployment(ScriptedModel([block("a?"), STOP])).roles()
    executor = Executor(roles["execution"], Unfiltered(Watched()), ExecutorLimits())
    delegator = Delegator(replace(roles["delegation"], streams=False))
    trajectory = await FactorizedSearch(delegator, executor, Answerer(roles["answer"])).run(
        QUESTION, lasting()
    )
    assert [execution.sub_query for execution in trajectory.executions] == ["a?"]
