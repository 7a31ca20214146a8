"""The report cache: a finished report serves later runs with an equal sub-query."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from router.errors import UpstreamUnavailable
from router.ledger import Budget, Ledger, RunStart
from router.ledger.budget import Allowance
from router.ledger.journal import Admitted, EarlierRun
from router.models import Model, ScriptedModel
from router.models.model import Answer
from router.runs import Gateway, RequestOptions, RunLifecycle
from router.runs.live import LiveRuns
from router.search import Executor, ReportCache, Retriever, RunContext, Topology
from router.search.agent import ExecutorLimits
from router.testing.retriever import FixedRetriever
from router.trace import Event, Execution
from router.trace.identity import SCOPES, Identity
from router.trace.values import SearchDone
from router.versions import VersionRouting
from router.versions.book import Traffic
from tests.router.clock import Clock, ended, with_clock
from tests.router.deployment import PASSAGE, Deployment, HeldModel, Kept, finds, report, role

SUB_QUERY = "Who directed Heat?"
RETRIEVER = FixedRetriever({SUB_QUERY: [PASSAGE]})


class Indexed:
    """An index with a changeable name."""

    name: str | None = "index-1"

    def __call__(self) -> str | None:
        return self.name


async def _traffic() -> Traffic:
    raise NotImplementedError


async def _load(version: str) -> None:
    raise NotImplementedError(version)


def executors(model: Model, retriever: Retriever = RETRIEVER) -> VersionRouting:
    """Executor versions that share a model."""

    def make(version: str) -> Executor:
        named = replace(role("execution", model), executor_version=version)
        return Executor(named, retriever, ExecutorLimits())

    return VersionRouting(make, "small", _traffic, _load)


def shared(
    model: Model,
    retriever: Retriever = RETRIEVER,
    index: Indexed | None = None,
    **terms: Any,
) -> ReportCache:
    """Return an executor whose reports are shared."""
    return ReportCache(executors(model, retriever), index or Indexed(), **terms)


def asking(
    run_id: str,
    tenant: str = "acme",
    *,
    sharing: bool = True,
    time_s: float = 60.0,
    events: list[Event] | None = None,
    tokens: int | None = None,
) -> RunContext:
    """Return a run of a tenant, which begins now."""
    told: list[Event] = [] if events is None else events
    ledger = Ledger(run_id, tenant, allowance=Allowance(Budget(tokens)))
    return RunContext.lasting(time_s, told.append, ledger, answering_share=0.0, sharing=sharing)


async def held(
    model: HeldModel, executor: ReportCache, context: RunContext
) -> asyncio.Task[Execution]:
    """Start a run that waits for its model."""
    task = asyncio.ensure_future(executor.run(SUB_QUERY, 0, context))
    await ended(model.called.wait())
    return task


async def test_concurrent_runs_work_alone_and_later_ones_share() -> None:
    """Later runs get the report, its trace and its events."""
    model = HeldModel(ScriptedModel(finds))
    executor = shared(model)
    events = list[Event]()
    first = await held(model, executor, leader := asking("run-1"))
    second = asyncio.ensure_future(executor.run(SUB_QUERY, 0, asking("run-2")))
    model.let.set()
    own = await ended(first)
    assert (own.outcome, own.shared_from, len(leader.ledger.calls)) == ("reported", (), 2)
    assert (await ended(second)).shared_from == ()
    third = asking("run-3", events=events)
    found = await executor.run(SUB_QUERY, 3, third)
    assert found == msgspec.structs.replace(own, shared_from=found.shared_from)
    assert found.shared_from in [("run-1",), ("run-2",)]
    assert third.ledger.calls == ()
    assert events == [SearchDone(3, SUB_QUERY, ("Heat",))]
    assert (executor.counts.worked, executor.counts.kept) == (2, 1)


def test_a_report_is_kept_for_the_configured_time() -> None:
    """The spelling of the sub-query makes no difference."""

    async def main(clock: Clock) -> None:
        executor = shared(ScriptedModel(finds), keep_s=10.0)
        await executor.run(SUB_QUERY, 0, asking("run-1"))
        await clock.advance(9.9)
        again = await executor.run("  who directed\n heat", 0, asking("run-2"))
        assert (again.sub_query, again.shared_from) == ("  who directed\n heat", ("run-1",))
        await clock.advance(0.1)
        assert (await executor.run(SUB_QUERY, 0, asking("run-3"))).shared_from == ()
        assert (executor.counts.worked, executor.counts.kept) == (2, 1)

    with_clock(main)


async def test_a_report_belongs_to_its_index() -> None:
    """No report is shared after the index was swapped, or kept if that happened during the work."""
    index = Indexed()
    model = HeldModel(ScriptedModel(finds), free=2)
    executor = shared(model, index=index)
    await executor.run(SUB_QUERY, 0, asking("run-1"))
    index.name = "index-2"
    second = await held(model, executor, asking("run-2"))
    index.name = "index-3"
    model.let.set()
    assert (await ended(second)).shared_from == ()
    assert (await executor.run(SUB_QUERY, 0, asking("run-3"))).shared_from == ()
    index.name = "index-2"
    assert (await executor.run(SUB_QUERY, 0, asking("run-4"))).shared_from == ()


async def test_without_a_known_index_nothing_is_kept() -> None:
    """Its passages may have changed."""
    index = Indexed()
    index.name = None
    executor = shared(ScriptedModel(finds), index=index)
    for run_id in ("run-1", "run-2"):
        assert (await executor.run(SUB_QUERY, 0, asking(run_id))).shared_from == ()


async def test_versions_do_not_share() -> None:
    """The active version does not use a report of a canary."""
    versions = executors(ScriptedModel(finds))
    executor = ReportCache(versions, Indexed())
    await executor.run(SUB_QUERY, 0, asking("run-1"))
    versions.traffic = Traffic("active-2")
    second = await executor.run(SUB_QUERY, 0, asking("run-2"))
    assert (second.executor, second.shared_from) == ("active-2", ())


async def test_tenants_do_not_share() -> None:
    executor = shared(ScriptedModel(finds))
    await executor.run(SUB_QUERY, 0, asking("run-1"))
    other = await executor.run(SUB_QUERY, 0, asking("run-2", "other"))
    assert (other.outcome, other.shared_from) == ("reported", ())


async def test_a_run_without_sharing_takes_and_gives_no_report() -> None:
    executor = shared(ScriptedModel(finds))
    await executor.run(SUB_QUERY, 0, asking("run-1"))
    alone = asking("run-2", sharing=False)
    assert (await executor.run(SUB_QUERY, 0, alone)).shared_from == ()
    assert len(alone.ledger.calls) == 2
    assert (await executor.run(SUB_QUERY, 0, asking("run-3"))).shared_from == ("run-1",)


async def test_failures_are_not_kept() -> None:
    """The next run works itself."""
    said: list[Answer] = [
        UpstreamUnavailable("gone", endpoint="e"),
        f"<search>{SUB_QUERY}</search>",
        report("Mann", "Heat is a film by Michael Mann."),
    ]
    executor = shared(ScriptedModel(said))
    assert (await executor.run(SUB_QUERY, 0, asking("run-1"))).outcome == "model_failed"
    context = asking("run-2")
    second = await executor.run(SUB_QUERY, 0, context)
    assert (second.outcome, second.shared_from, len(context.ledger.calls)) == ("reported", (), 2)
    assert executor.counts.worked == 2


class Tenants(Kept):
    """Tenants with equal settings."""

    def __init__(self, began: Admitted) -> None:
        super().__init__()
        self._began = began

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Admit the run, unless its request was made before."""
        found = await super().begin(start)
        return self._began if isinstance(found, Admitted) else found


@pytest.mark.parametrize(
    ("began", "fresh", "calls"),
    [
        (Admitted(), False, 0),
        (Admitted(), True, 2),
        (Admitted(redact=True), False, 2),
        (Admitted(training=False), False, 0),
    ],
)
async def test_requests_for_fresh_work_and_redacted_tenants_do_not_share(
    began: Admitted, fresh: bool, calls: int
) -> None:
    store = Tenants(began)
    deployment = Deployment()
    executor = shared(deployment.executor)
    roles = deployment.roles()
    gateway = Gateway(
        topologies={"factorized": Topology(deployment.search(), roles)},
        executor=executor,
        roles=roles,
        lifecycle=RunLifecycle(store, store, LiveRuns(), {}, 60.0),
    )
    for _ in range(2):
        await gateway.execute(SUB_QUERY, RequestOptions(Identity("first", SCOPES), no_cache=fresh))
    assert [len(run.calls) for run in store.runs] == [2, calls]
