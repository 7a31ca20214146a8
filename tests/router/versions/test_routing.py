"""Versions of the executor in use: a run keeps its version, and no run fails because a version
is unavailable.
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
from router.models import Model, Sampling
from router.search import Executor, RunContext
from router.search.agent import ExecutorLimits
from router.versions import VersionRouting
from router.versions.book import Traffic
from tests.router.clock import Clock, with_clock
from tests.router.deployment import HeldModel, finds, report
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

BASE = "base"
OLD = "executor-000001"
NEW = "executor-000002"
MISSING = UpstreamRefused("The model does not exist.", endpoint="e")


class Record:
    """The recorded traffic, and an engine that loads the versions that it has."""

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
    record: Record, models: Mapping[str, Model] | None = None, messages: list[str] | None = None
) -> VersionRouting:
    """Return a routing over these models; a version without a model finds every answer."""

    def make(version: str) -> Executor:
        model = (models or {}).get(version) or ScriptedModel(finds, version)
        role = Role("execution", model, "execute", Sampling(64), 2, executor_version=version)
        return Executor(role, Unfiltered(FixedRetriever({})), ExecutorLimits())

    return VersionRouting(
        make, BASE, record.read, record.load, (messages if messages is not None else []).append
    )


def run_of(run_id: str) -> RunContext:
    """Return the context of a run that begins now."""
    return RunContext.lasting(60.0, lambda _event: None, Ledger(run_id))


async def worked(routing: VersionRouting, context: RunContext, index: int = 0) -> str:
    """Return the version that worked on a sub-query of a run."""
    return (await routing.run("Who directed Heat?", index, context)).executor


async def test_a_run_s_version_does_its_work() -> None:
    """A canary's runs get the canary, and the ledger's rows name it."""
    record = Record(Traffic(OLD, NEW, "canary", 0.5))
    routing = executors(record)
    await routing.refresh()
    versions_by_run = {}
    for number in range(50):
        context = run_of(f"run-{number}")
        versions_by_run[number] = await worked(routing, context)
        assert {call.executor_version for call in context.ledger.calls} == {versions_by_run[number]}
    assert versions_by_run == {
        number: record.traffic.serving(f"run-{number}") for number in range(50)
    }
    assert set(versions_by_run.values()) == {OLD, NEW}


async def test_before_any_record_the_configured_model_works() -> None:
    """It is not loaded."""
    record = Record(Traffic(BASE))
    routing = executors(record)
    assert await worked(routing, run_of("run-1")) == BASE
    await routing.refresh()
    assert (await worked(routing, run_of("run-2")), record.loaded) == (BASE, [])


async def test_a_run_keeps_the_version_that_it_began_with() -> None:
    """Traffic that changes meanwhile applies to later runs."""
    record = Record(Traffic(OLD))
    routing = executors(record)
    await routing.refresh()
    context = run_of("run-1")
    assert await worked(routing, context) == OLD
    record.traffic = Traffic(NEW)
    await routing.refresh()
    assert (await worked(routing, context, 1), await worked(routing, run_of("run-2"))) == (OLD, NEW)


async def test_an_engine_that_restarts_while_loading_gets_its_versions_again() -> None:
    record = Record(Traffic(OLD))
    routing = executors(record)
    record.at_load = routing.reload
    await routing.refresh()
    await routing.refresh()
    assert record.loaded == [OLD, OLD]


async def test_a_version_is_loaded_once() -> None:
    """It is loaded once for the same traffic, and again for other traffic, since the engine may
    have dropped it.
    """
    record = Record(Traffic(OLD, NEW, "shadow"))
    routing = executors(record)
    await asyncio.gather(*(routing.refresh() for _ in range(5)))
    record.traffic = Traffic(NEW)
    await routing.refresh()
    assert record.loaded == [OLD, NEW, NEW]


async def test_a_run_s_version_is_in_use_until_the_run_ends() -> None:
    """Later runs with other versions do not change this."""
    record = Record(Traffic(OLD))
    routing = executors(record)
    await routing.refresh()
    context = run_of("run-1")
    await worked(routing, context)
    record.traffic = Traffic(BASE, NEW, "canary", 0.5)
    await routing.refresh()
    assert routing.in_use == {OLD, BASE, NEW}
    del context
    assert routing.in_use == {BASE, NEW}


@pytest.mark.parametrize(
    ("lacks", "traffic"),
    [(OLD, Traffic(BASE)), (NEW, Traffic(OLD))],
)
async def test_a_version_that_cannot_be_loaded_is_replaced(lacks: str, traffic: Traffic) -> None:
    """Without a candidate, the active version works alone; without the active version, the
    configured model does. The failure is reported once, and loading is not retried before the
    traffic changes.
    """
    messages: list[str] = []
    record = Record(Traffic(OLD, NEW, "canary", 1.0), lacks=lacks)
    routing = executors(record, messages=messages)
    for _ in range(3):
        await routing.refresh()
    assert routing.traffic == traffic
    assert messages == [
        f"executor version {lacks} is not in use here: {lacks}: is not what was published"
    ]
    assert record.loaded.count(lacks) == 1


async def test_an_engine_that_was_away_loads_its_versions_later() -> None:
    """Until then the traffic stays unchanged."""
    record = Record(Traffic(OLD, NEW, "shadow"), away={NEW})
    routing = executors(record)
    with pytest.raises(UpstreamUnavailable):
        await routing.refresh()
    assert routing.traffic == Traffic(BASE)
    record.away.clear()
    await routing.refresh()
    assert routing.traffic == record.traffic


async def test_an_engine_that_lost_its_versions_loads_them_again() -> None:
    """They are loaded for the runs after the first that notices."""
    models = {NEW: ScriptedModel([MISSING, *[UpstreamUnavailable("overloaded", endpoint="e")] * 2])}
    record = Record(Traffic(NEW))
    routing = executors(record, models)
    await routing.refresh()
    assert await worked(routing, run_of("run-1")) == BASE
    await routing.refresh()
    assert record.loaded == [NEW, NEW]
    assert await worked(routing, run_of("run-2")) == NEW


def test_a_restarted_engine_gets_its_versions_before_any_run() -> None:
    async def main(clock: Clock) -> None:
        record = Record(Traffic(OLD, NEW, "shadow"))
        routing = executors(record)
        await routing.refresh()
        async with background_tasks(routing.follow()):
            await clock.settle()
            routing.reload()
            await clock.settle()
        assert record.loaded == [OLD, NEW] * 2

    with_clock(main)


async def test_the_active_version_replaces_a_missing_candidate() -> None:
    """It does the whole sub-query. Trace and ledger name the version that worked."""
    routing = executors(Record(Traffic(OLD, NEW, "canary", 1.0)), {NEW: ScriptedModel([MISSING])})
    await routing.refresh()
    context = run_of("run-1")
    execution = await routing.run("Who directed Heat?", 0, context)
    assert (execution.executor, execution.outcome) == (OLD, "reported")
    rows = [(call.executor_version, call.outcome) for call in context.ledger.calls]
    assert rows == [(NEW, "refused"), (OLD, "completed"), (OLD, "completed")]


async def test_the_configured_model_replaces_a_missing_active_version() -> None:
    """A restarted engine has lost its adapters, and still answers."""
    models = {version: ScriptedModel([MISSING], version) for version in (OLD, NEW)}
    routing = executors(Record(Traffic(OLD, NEW, "canary", 1.0)), models)
    await routing.refresh()
    assert await worked(routing, run_of("run-1")) == BASE


@pytest.mark.parametrize(
    "outputs",
    [
        [UpstreamUnavailable("overloaded", endpoint="e")] * 2,
        ["<search>x</search>", MISSING],
        ["<search>x</search>", report("", ""), "no", "no"],
    ],
)
async def test_the_active_version_replaces_a_candidate_that_fails(
    outputs: list[str | UpstreamError],
) -> None:
    """The active version itself is not replaced when it fails."""
    record = Record(Traffic(OLD, NEW, "canary", 1.0))
    routing = executors(record, {NEW: ScriptedModel(outputs)})
    await routing.refresh()
    context = run_of("run-1")
    execution = await routing.run("Who directed Heat?", 0, context)
    assert (execution.executor, execution.failed, context.failures) == (OLD, False, {})
    assert [call.purpose for call in context.ledger.calls if call.executor_version == OLD] == [
        "fallback"
    ] * 2
    active_alone = executors(Record(Traffic(NEW)), {NEW: ScriptedModel(outputs)})
    await active_alone.refresh()
    execution = await active_alone.run("Who directed Heat?", 0, run_of("run-1"))
    assert (execution.executor, execution.failed) == (NEW, True)


async def test_a_refused_sub_query_does_not_change_its_siblings_version() -> None:
    context = run_of("run-1")
    held = HeldModel(ScriptedModel(finds))
    routing = executors(Record(Traffic(OLD, NEW, "canary", 1.0)), {NEW: held})
    await routing.refresh()
    waiting_execution = asyncio.create_task(routing.run("a?", 0, context))
    await held.called.wait()
    refusing = executors(Record(Traffic(NEW)), {NEW: ScriptedModel([MISSING])})
    await refusing.refresh()
    await refusing.run("b?", 1, context)
    held.let.set()
    assert (await waiting_execution).executor == NEW


async def test_an_agent_s_own_conversation_uses_the_active_version() -> None:
    """A canary would not be comparable there."""
    routing = executors(Record(Traffic(OLD, NEW, "canary", 1.0)))
    await routing.refresh()
    assert routing.role(run_of("run-1")).executor_version == OLD


def test_a_change_by_another_gateway_is_followed_within_seconds() -> None:
    """A temporary failure of the store makes no difference."""

    async def main(clock: Clock) -> None:
        record = Record(Traffic(OLD))
        routing = executors(record)
        await routing.refresh()
        async with background_tasks(routing.follow()):
            record.failure = StoreFailed("The database failed; try again later.")
            await clock.advance(1.5)
            record.failure = None
            record.traffic = Traffic(NEW)
            assert routing.traffic == Traffic(OLD)
            await clock.advance(1.5)
            assert routing.traffic == Traffic(NEW)

    with_clock(main)
