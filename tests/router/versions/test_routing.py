"""Versions of the executor in use: a run keeps its own, and none fails because one is not to be
had.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import pytest

from router.background import background_tasks
from router.calls import Role
from router.errors import (
    BadVersion,
    StoreFailed,
    UpstreamError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.ledger import Ledger
from router.models import Model, Sampling, ScriptedModel
from router.search import Executor, RunContext
from router.search.agent import ExecutorLimits
from router.testing.retriever import FixedRetriever
from router.versions import VersionRouting
from router.versions.book import Traffic
from tests.router.clock import Clock, with_clock
from tests.router.deployment import HeldModel, finds, report

BASE = "base"
OLD = "executor-000001"
NEW = "executor-000002"
MISSING = UpstreamRefused("The model does not exist.", endpoint="e")


class Record:
    """The traffic on record, and an engine that loads what it has."""

    def __init__(self, traffic: Traffic, *, lacks: str = "", away: Iterable[str] = ()) -> None:
        self.traffic = traffic
        self.lacks = lacks
        self.away = set(away)
        self.failure: Exception | None = None
        self.loaded: list[str] = []
        self.at_load: Callable[[], None] = lambda: None

    async def read(self) -> Traffic:
        if self.failure:
            raise self.failure
        return self.traffic

    async def load(self, version: str) -> None:
        self.loaded.append(version)
        self.at_load()
        if version in self.away:
            raise UpstreamUnavailable("not there", endpoint="e")
        if version == self.lacks:
            raise BadVersion(f"{version}: is not what was published")


def executors(
    record: Record, models: Mapping[str, Model] | None = None, told: list[str] | None = None
) -> VersionRouting:
    """Versions by their models; one that is not named finds what is asked."""

    def make(version: str) -> Executor:
        model = (models or {}).get(version) or ScriptedModel(finds, version)
        role = Role("execution", model, "execute", Sampling(64), 2, executor_version=version)
        return Executor(role, FixedRetriever({}), ExecutorLimits())

    return VersionRouting(
        make, BASE, record.read, record.load, (told if told is not None else []).append
    )


def run_of(run_id: str) -> RunContext:
    """A run that begins now."""
    return RunContext.lasting(60.0, lambda _event: None, Ledger(run_id))


async def worked(executors: VersionRouting, context: RunContext, index: int = 0) -> str:
    """Who worked on a sub-query in a run."""
    return (await executors.run("Who directed Heat?", index, context)).executor


async def test_the_version_of_the_run_works() -> None:
    """Of a canary's runs, the canary; and the ledger's rows name it."""
    record = Record(Traffic(OLD, NEW, "canary", 0.5))
    several = executors(record)
    await several.refresh()
    served = {}
    for number in range(50):
        context = run_of(f"run-{number}")
        served[number] = await worked(several, context)
        assert {call.executor_version for call in context.ledger.calls} == {served[number]}
    assert served == {number: record.traffic.serving(f"run-{number}") for number in range(50)}
    assert set(served.values()) == {OLD, NEW}


async def test_before_anything_is_on_record_the_configured_model_works() -> None:
    """It needs no loading."""
    record = Record(Traffic(BASE))
    several = executors(record)
    assert await worked(several, run_of("run-1")) == BASE
    await several.refresh()
    assert (await worked(several, run_of("run-2")), record.loaded) == (BASE, [])


async def test_a_run_keeps_the_version_that_it_began_with() -> None:
    """Traffic that changes meanwhile is for the runs after it."""
    record = Record(Traffic(OLD))
    several = executors(record)
    await several.refresh()
    begun = run_of("run-1")
    assert await worked(several, begun) == OLD
    record.traffic = Traffic(NEW)
    await several.refresh()
    assert (await worked(several, begun, 1), await worked(several, run_of("run-2"))) == (OLD, NEW)


async def test_an_engine_that_is_started_anew_while_its_versions_are_loaded() -> None:
    """It is given them again."""
    record = Record(Traffic(OLD))
    several = executors(record)
    record.at_load = several.reload
    await several.refresh()
    await several.refresh()
    assert record.loaded == [OLD, OLD]


async def test_a_version_is_loaded_once() -> None:
    """For the same traffic, however often it is read, and by whomever; for other traffic it may
    be gone by then.
    """
    record = Record(Traffic(OLD, NEW, "shadow"))
    several = executors(record)
    await asyncio.gather(*(several.refresh() for _ in range(5)))
    record.traffic = Traffic(NEW)
    await several.refresh()
    assert record.loaded == [OLD, NEW, NEW]


async def test_what_a_run_works_with_is_in_use() -> None:
    """Until it has ended, whatever runs after it work with."""
    record = Record(Traffic(OLD))
    several = executors(record)
    await several.refresh()
    begun = run_of("run-1")
    await worked(several, begun)
    record.traffic = Traffic(BASE, NEW, "canary", 0.5)
    await several.refresh()
    assert several.in_use == {OLD, BASE, NEW}
    del begun
    assert several.in_use == {BASE, NEW}


@pytest.mark.parametrize(
    ("lacks", "traffic"),
    [(OLD, Traffic(BASE)), (NEW, Traffic(OLD))],
)
async def test_a_version_that_cannot_be_loaded(lacks: str, traffic: Traffic) -> None:
    """Without a candidate, the active one works alone; without the active one, the configured
    model. It is told once, and not tried again before the traffic changes.
    """
    told: list[str] = []
    record = Record(Traffic(OLD, NEW, "canary", 1.0), lacks=lacks)
    several = executors(record, told=told)
    for _ in range(3):
        await several.refresh()
    assert several.traffic == traffic
    assert told == [
        f"executor version {lacks} is not in use here: {lacks}: is not what was published"
    ]
    assert record.loaded.count(lacks) == 1


async def test_an_engine_that_is_away() -> None:
    """What it could not load is loaded as soon as it is back; until then the traffic stays what
    it was.
    """
    record = Record(Traffic(OLD, NEW, "shadow"), away={NEW})
    several = executors(record)
    with pytest.raises(UpstreamUnavailable):
        await several.refresh()
    assert several.traffic == Traffic(BASE)
    record.away.clear()
    await several.refresh()
    assert several.traffic == record.traffic


async def test_an_engine_that_has_lost_its_versions() -> None:
    """They are loaded anew, for the runs after the one that met with it."""
    gone = {NEW: ScriptedModel([MISSING, *[UpstreamUnavailable("overloaded", endpoint="e")] * 2])}
    record = Record(Traffic(NEW))
    several = executors(record, gone)
    await several.refresh()
    assert await worked(several, run_of("run-1")) == BASE
    await several.refresh()
    assert record.loaded == [NEW, NEW]
    assert await worked(several, run_of("run-2")) == NEW


def test_an_engine_that_was_started_anew() -> None:
    """Gets its versions at once, before any run meets with it."""

    async def main(clock: Clock) -> None:
        record = Record(Traffic(OLD, NEW, "shadow"))
        several = executors(record)
        await several.refresh()
        async with background_tasks(several.follow()):
            await clock.settle()
            several.reload()
            await clock.settle()
        assert record.loaded == [OLD, NEW] * 2

    with_clock(main)


async def test_a_model_that_the_engine_does_not_have() -> None:
    """The active version steps in, for the sub-query as a whole; the trace and the ledger say
    who worked.
    """
    several = executors(Record(Traffic(OLD, NEW, "canary", 1.0)), {NEW: ScriptedModel([MISSING])})
    await several.refresh()
    context = run_of("run-1")
    execution = await several.run("Who directed Heat?", 0, context)
    assert (execution.executor, execution.outcome) == (OLD, "reported")
    rows = [(call.executor_version, call.outcome) for call in context.ledger.calls]
    assert rows == [(NEW, "refused"), (OLD, "completed"), (OLD, "completed")]


async def test_at_last_the_configured_model_steps_in() -> None:
    """An engine that was started anew has lost its adapters, and still answers."""
    gone = {version: ScriptedModel([MISSING], version) for version in (OLD, NEW)}
    several = executors(Record(Traffic(OLD, NEW, "canary", 1.0)), gone)
    await several.refresh()
    assert await worked(several, run_of("run-1")) == BASE


@pytest.mark.parametrize(
    "says",
    [
        [UpstreamUnavailable("overloaded", endpoint="e")] * 2,
        ["<search>x</search>", MISSING],
        ["<search>x</search>", report("", ""), "no", "no"],
    ],
)
async def test_no_client_suffers_from_a_trial(says: list[str | UpstreamError]) -> None:
    """The active version steps in for a candidate that fails; for the active one nobody does,
    as it was there.
    """
    record = Record(Traffic(OLD, NEW, "canary", 1.0))
    several = executors(record, {NEW: ScriptedModel(says)})
    await several.refresh()
    context = run_of("run-1")
    execution = await several.run("Who directed Heat?", 0, context)
    assert (execution.executor, execution.failed, context.failures) == (OLD, False, {})
    assert [call.purpose for call in context.ledger.calls if call.executor_version == OLD] == [
        "fallback"
    ] * 2
    alone = executors(Record(Traffic(NEW)), {NEW: ScriptedModel(says)})
    await alone.refresh()
    execution = await alone.run("Who directed Heat?", 0, run_of("run-1"))
    assert (execution.executor, execution.failed) == (NEW, True)


async def test_a_refused_sub_query_does_not_hurt_its_siblings() -> None:
    """Who works on a sub-query depends on what happened to it alone."""
    context = run_of("run-1")
    held = HeldModel(ScriptedModel(finds))
    several = executors(Record(Traffic(OLD, NEW, "canary", 1.0)), {NEW: held})
    await several.refresh()
    waiting = asyncio.create_task(several.run("a?", 0, context))
    await held.called.wait()
    refused = executors(Record(Traffic(NEW)), {NEW: ScriptedModel([MISSING])})
    await refused.refresh()
    await refused.run("b?", 1, context)
    held.let.set()
    assert (await waiting).executor == NEW


async def test_who_leads_conversations_of_their_own_gets_the_active_version() -> None:
    """A canary's conversations would tell nothing of it."""
    several = executors(Record(Traffic(OLD, NEW, "canary", 1.0)))
    await several.refresh()
    assert several.role(run_of("run-1")).executor_version == OLD


def test_a_change_elsewhere_is_heard_of_soon() -> None:
    """Within a second; a store that does not work for a while makes no difference."""

    async def main(clock: Clock) -> None:
        record = Record(Traffic(OLD))
        several = executors(record)
        await several.refresh()
        async with background_tasks(several.follow()):
            record.failure = StoreFailed("The store does not work for now; try again.")
            await clock.advance(1.5)
            record.failure = None
            record.traffic = Traffic(NEW)
            assert several.traffic == Traffic(OLD)
            await clock.advance(1.5)
            assert several.traffic == Traffic(NEW)

    with_clock(main)
