"""Runs as their owners see them."""

import asyncio
from asyncio import Task
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.errors import BadRequest, NotFound, StoreFailed
from router.models import ScriptedModel
from router.runs import RequestOptions, RunFilter, Runs
from router.runs.live import LiveRuns
from router.trace import Event, Run
from router.trace.identity import LOCAL, SCOPES, Identity
from router.trace.run import Feedback
from router.trace.values import AnswerWritten, Reported, RunStarted
from tests.router.clock import ended
from tests.router.deployment import Deployment, HeldModel, Kept

QUESTION = "Who directed Heat?"
OWNER = Identity("owner", SCOPES)
OTHER = Identity("other", SCOPES)


@asynccontextmanager
async def under_way(
    identity: Identity = LOCAL, *, full: bool = False
) -> AsyncIterator[tuple[Kept, Runs, str, Task[Run]]]:
    """An answer that is nearly there; it is there at the end. `full`: it cannot be stored."""
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


async def told(
    runs: Runs, run_id: str, after: int, identity: Identity = LOCAL
) -> list[tuple[int, Event | Run]]:
    """Everything that watching tells."""
    return [item async for item in runs.watch(run_id, after, identity)]


@pytest.mark.parametrize("after", [0, 3])
async def test_watching_a_run_that_has_ended(after: int) -> None:
    """Its events are told with their numbers, from where they are wanted, and the run at the
    end.
    """
    store = Kept()
    events = list[Event]()
    run = await Deployment().gateway(store).answer(QUESTION, RequestOptions(), events.append)
    assert run.events == tuple(events)
    assert await told(Runs(store, LiveRuns()), run.id, after) == [
        *list(enumerate(events, 1))[after:],
        (len(events) + 2, run),
    ]


async def test_watching_a_run_under_way() -> None:
    """What has happened is told at once, the rest as it happens, without gaps or repetitions."""
    async with under_way() as (_, runs, run_id, answering):
        with pytest.raises(BadRequest, match="number of an event, got -1"):
            await anext(runs.watch(run_id, -1, LOCAL))
        watching = runs.watch(run_id, 0, LOCAL)
        begun = [await ended(anext(watching)) for _ in range(5)]
        assert begun[0] == (1, RunStarted(run_id))
        assert isinstance(begun[4][1], Reported)
    rest = [item async for item in watching]
    run = await answering
    assert [number for number, _ in (*begun, *rest)] == [
        *range(1, len(run.events) + 1),
        len(run.events) + 2,
    ]
    assert rest[-2:] == [
        (len(run.events), AnswerWritten("Michael Mann")),
        (len(run.events) + 2, run),
    ]


async def test_watching_a_run_that_cannot_be_stored() -> None:
    """Its answer is withheld from whoever watches, too."""
    async with under_way(full=True) as (_, runs, run_id, answering):
        watching = asyncio.create_task(told(runs, run_id, 0))
        await asyncio.sleep(0)
    for waiting in (watching, answering):
        with pytest.raises(StoreFailed):
            await ended(waiting)


async def test_events_that_there_are_not() -> None:
    """A number out of range is refused, with the range."""
    store = Kept()
    run = (
        await Deployment(ScriptedModel(["<stop>"]))
        .gateway(store)
        .answer(QUESTION, RequestOptions())
    )
    for after, range_of in ((-1, "must be 0"), (100, "must be below 5")):
        with pytest.raises(BadRequest, match=range_of):
            await told(Runs(store, LiveRuns()), run.id, after)


async def test_only_answers_have_events() -> None:
    """Other kinds are refused."""
    store = Kept()
    run = await Deployment().gateway(store).execute(QUESTION, RequestOptions())
    with pytest.raises(BadRequest, match="only answers and tables"):
        await told(Runs(store, LiveRuns()), run.id, 0)


async def test_anothers_run_is_not_there() -> None:
    """Whatever is tried with another tenant's run, it is as if it were not there; it goes on
    undisturbed.
    """
    async with under_way(OWNER) as (_, runs, run_id, answering):
        for trying in (
            lambda: runs.get(run_id, OTHER),
            lambda: runs.cancel(run_id, OTHER),
            lambda: told(runs, run_id, 0, OTHER),
            lambda: runs.feedback(Feedback(run_id, True), OTHER),
        ):
            with pytest.raises(NotFound):
                await ended(trying())
        assert (await runs.get(run_id, OWNER)).status == "running"
    assert (await answering).status == "finished"
    for wanted in (RunFilter(), RunFilter("owner")):
        assert not (await runs.list(wanted, 50, "", OTHER)).runs
        assert not [told async for told in runs.export(wanted, OTHER)]
    assert [run.id for run in (await runs.list(RunFilter(), 50, "", OWNER)).runs] == [run_id]


async def test_cancelling() -> None:
    """A run under way stops; one that has ended stays as it is."""
    async with under_way(OWNER) as (store, runs, run_id, answering):
        await runs.cancel(run_id, OWNER)
        await ended(asyncio.wait([answering]))
        await runs.cancel(run_id, OWNER)
        assert [run.status for run in store.runs] == ["cancelled"]


@pytest.mark.parametrize(
    ("feedback", "why"),
    [(Feedback("run-1"), "empty"), (Feedback("run-1", score=1.5), "between 0 and 1")],
)
async def test_bad_feedback(feedback: Feedback, why: str) -> None:
    """Feedback that says nothing, or something that cannot be, is refused."""
    with pytest.raises(BadRequest, match=why):
        await Runs(Kept(), LiveRuns()).feedback(feedback, LOCAL)


async def test_feedback_is_heard_of_once_it_is_kept() -> None:
    """By whoever learns from it; refused feedback by nobody."""
    store = Kept()
    heard = list[Feedback]()

    async def hear(feedback: Feedback) -> None:
        assert store.given == [feedback]
        heard.append(feedback)

    run = await Deployment().gateway(store).answer(QUESTION, RequestOptions(OWNER))
    runs = Runs(store, LiveRuns(), hear)
    with pytest.raises(NotFound):
        await runs.feedback(Feedback(run.id, True), OTHER)
    await runs.feedback(Feedback(run.id, True), OWNER)
    assert heard == [Feedback(run.id, True, tenant="owner")]
