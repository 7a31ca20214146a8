"""Runs as their owners see them."""

import asyncio
from asyncio import Task
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.errors import BadRequest, NotFound, StoreFailed
from router.runs import RequestOptions, RunFilter, Runs
from router.runs.live import LiveRuns
from router.trace import Event, Run
from router.trace.identity import LOCAL, SCOPES, Identity
from router.trace.run import Feedback
from router.trace.values import AnswerWritten, Reported, RunStarted
from tests.router.clock import ended
from tests.router.deployment import Deployment, HeldModel, Kept
from tests.scripted_model import ScriptedModel

QUESTION = "Who directed Heat?"
OWNER = Identity("owner", SCOPES)
OTHER = Identity("other", SCOPES)


@asynccontextmanager
async def under_way(
    identity: Identity = LOCAL, *, full: bool = False
) -> AsyncIterator[tuple[Kept, Runs, str, Task[Run]]]:
    """Yield an answer that is nearly finished; finish it at the end. With `full`, it cannot be
    stored.
    """
    store = Kept()
    live = LiveRuns()
    model = HeldModel(ScriptedModel(["<answer>Michael Mann</answer>"]))
    store.full = full
    gateway = Deployment(answerer=model).gateway(store, live=live)
    answering = asyncio.create_task(gateway.answer(QUESTION, RequestOptions(identity)))
    await ended(model.called.wait())
    yield store, Runs(store, live), next(iter(store.starts)), answering
    model.let.set()
    await ended(asyncio.wait([answering]))


async def watched(
    runs: Runs, run_id: str, after: int, identity: Identity = LOCAL
) -> list[tuple[int, Event | Run]]:
    """Return everything that a watch yields."""
    return [item async for item in runs.watch(run_id, after, identity)]


@pytest.mark.parametrize("event_number", [0, 3])
async def test_a_watch_of_an_ended_run_yields_its_events_and_the_run(event_number: int) -> None:
    """The events have their numbers, and begin after a given number."""
    store = Kept()
    events = list[Event]()
    run = await Deployment().gateway(store).answer(QUESTION, RequestOptions(), events.append)
    assert run.events == tuple(events)
    assert await watched(Runs(store, LiveRuns()), run.id, event_number) == [
        *list(enumerate(events, 1))[event_number:],
        (len(events) + 2, run),
    ]


async def test_a_watch_of_a_running_run_has_neither_gaps_nor_repetitions() -> None:
    """Past events come immediately, and later ones as they happen."""
    async with under_way() as (_, runs, run_id, answer):
        with pytest.raises(BadRequest, match="number of an event, got -1"):
            await anext(runs.watch(run_id, -1, LOCAL))
        watch = runs.watch(run_id, 0, LOCAL)
        first_items = [await ended(anext(watch)) for _ in range(5)]
        assert first_items[0] == (1, RunStarted(run_id))
        assert isinstance(first_items[4][1], Reported)
    last_items = [item async for item in watch]
    run = await answer
    assert [number for number, _ in (*first_items, *last_items)] == [
        *range(1, len(run.events) + 1),
        len(run.events) + 2,
    ]
    assert last_items[-2:] == [
        (len(run.events), AnswerWritten("Michael Mann")),
        (len(run.events) + 2, run),
    ]


async def test_a_watch_of_a_run_that_cannot_be_stored_fails() -> None:
    """The answer is withheld from watchers too."""
    async with under_way(full=True) as (_, runs, run_id, answer):
        watch = asyncio.create_task(watched(runs, run_id, 0))
        await asyncio.sleep(0)
    for task in (watch, answer):
        with pytest.raises(StoreFailed):
            await ended(task)


async def test_an_event_number_out_of_range_is_refused() -> None:
    """The error names the range."""
    store = Kept()
    run = (
        await Deployment(ScriptedModel(["<stop>"]))
        .gateway(store)
        .answer(QUESTION, RequestOptions())
    )
    for event_number, range_of in ((-1, "must be 0"), (100, "must be below 5")):
        with pytest.raises(BadRequest, match=range_of):
            await watched(Runs(store, LiveRuns()), run.id, event_number)


async def test_only_answers_have_events() -> None:
    """A watch of another kind of run is refused."""
    store = Kept()
    run = await Deployment().gateway(store).execute(QUESTION, RequestOptions())
    with pytest.raises(BadRequest, match="only answers and tables"):
        await watched(Runs(store, LiveRuns()), run.id, 0)


async def test_another_tenant_s_run_is_not_found() -> None:
    """No method finds it, and it continues undisturbed."""
    async with under_way(OWNER) as (_, runs, run_id, answer):
        for method in (
            lambda: runs.get(run_id, OTHER),
            lambda: runs.cancel(run_id, OTHER),
            lambda: watched(runs, run_id, 0, OTHER),
            lambda: runs.feedback(Feedback(run_id, True), OTHER),
        ):
            with pytest.raises(NotFound):
                await ended(method())
        assert (await runs.get(run_id, OWNER)).status == "running"
    assert (await answer).status == "finished"
    for run_filter in (RunFilter(), RunFilter("owner")):
        assert not (await runs.list(run_filter, 50, "", OTHER)).runs
        assert not [exported async for exported in runs.export(run_filter, OTHER)]
    assert [run.id for run in (await runs.list(RunFilter(), 50, "", OWNER)).runs] == [run_id]


async def test_cancelling_stops_a_running_run_alone() -> None:
    """A run that has ended is unchanged."""
    async with under_way(OWNER) as (store, runs, run_id, answer):
        await runs.cancel(run_id, OWNER)
        await ended(asyncio.wait([answer]))
        await runs.cancel(run_id, OWNER)
        assert [run.status for run in store.runs] == ["cancelled"]


@pytest.mark.parametrize(
    ("feedback", "why"),
    [(Feedback("run-1"), "empty"), (Feedback("run-1", score=1.5), "between 0 and 1")],
)
async def test_empty_or_invalid_feedback_is_refused(feedback: Feedback, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        await Runs(Kept(), LiveRuns()).feedback(feedback, LOCAL)


async def test_a_listener_is_notified_of_feedback_once_it_is_stored() -> None:
    """Refused feedback is not reported."""
    store = Kept()
    feedback_reported = list[Feedback]()

    async def report(feedback: Feedback) -> None:
        assert store.given == [feedback]
        feedback_reported.append(feedback)

    run = await Deployment().gateway(store).answer(QUESTION, RequestOptions(OWNER))
    runs = Runs(store, LiveRuns(), report)
    with pytest.raises(NotFound):
        await runs.feedback(Feedback(run.id, True), OTHER)
    await runs.feedback(Feedback(run.id, True), OWNER)
    assert feedback_reported == [Feedback(run.id, True, tenant="owner")]
