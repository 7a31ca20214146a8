"""The report cache: one executor run serves all runs with an equal sub-query.

A waiting run pays nothing, and loses nothing if the leading run ends early.
"""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from router.errors import UpstreamUnavailable
from router.ledger import Budget, Ledger, RunStart
from router.ledger.budget import Allowance
from router.ledger.journal import Admitted, EarlierRun
from router.models import Model
from router.runs import Gateway, RequestOptions, RunLifecycle
from router.runs.live import LiveRuns
from router.search import Executor, ReportCache, RunContext, Topology
from router.search.agent import ExecutorLimits
from router.trace import Event, Execution
from router.trace.identity import SCOPES, Identity
from router.trace.scope import Scope
from router.trace.values import SearchDone
from router.versions import VersionRouting
from router.versions.book import Traffic
from tests.router.clock import Clock, ended, with_clock
from tests.router.deployment import PASSAGE, Deployment, HeldModel, Kept, finds, report, role
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import PlainRetriever, Unfiltered
from tests.scripted_model import Answer, ScriptedModel

SUB_QUERY = "Who directed Heat?"
RETRIEVER = FixedRetriever({SUB_QUERY: [PASSAGE]})


class Indexed:
    """An index with a changeable name."""

    name: str | None = "index-1"

    def __call__(self, _scope: Scope) -> str | None:
        return self.name


async def _traffic() -> Traffic:
    raise NotImplementedError


async def _load(version: str) -> None:
    raise NotImplementedError(version)


def executors(model: Model, retriever: PlainRetriever = RETRIEVER) -> VersionRouting:
    """Executor versions that share a model."""

    def make(version: str) -> Executor:
        named = replace(role("execution", model), executor_version=version)
        return Executor(named, Unfiltered(retriever), ExecutorLimits())

    return VersionRouting(make, "small", _traffic, _load)


def shared(
    model: Model,
    retriever: PlainRetriever = RETRIEVER,
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
    noted: list[Event] = [] if events is None else events
    ledger = Ledger(run_id, tenant, allowance=Allowance(Budget(tokens)))
    return RunContext.lasting(time_s, noted.append, ledger, answering_share=0.0, sharing=sharing)


async def held(
    model: HeldModel, executor: ReportCache, context: RunContext
) -> asyncio.Task[Execution]:
    """Start a run that waits for its model."""
    task = asyncio.ensure_future(executor.run(SUB_QUERY, 0, context))
    await ended(model.called.wait())
    return task


async def waiting(executor: ReportCache, *contexts: RunContext) -> list[asyncio.Task[Execution]]:
    """Start runs that wait for another run."""
    tasks = [asyncio.ensure_future(executor.run(SUB_QUERY, 3, context)) for context in contexts]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_one_executor_run_serves_all_concurrent_runs() -> None:
    """The other runs get its report and its trace, and make no call."""
    model = HeldModel(ScriptedModel(finds))
    executor = shared(model)
    events = list[Event]()
    leader = asking("run-1")
    contexts = [asking("run-2", events=events), asking("run-3")]
    first = await held(model, executor, leader)
    others = await waiting(executor, *contexts)
    model.let.set()
    own = await ended(first)
    assert (own.outcome, own.shared_from, len(leader.ledger.calls)) == ("reported", (), 2)
    for other in others:
        assert await ended(other) == msgspec.structs.replace(own, shared_from=("run-1",))
    assert [context.ledger.calls for context in contexts] == [(), ()]
    assert events == [SearchDone(3, SUB_QUERY, ("Heat",))]
    assert (executor.counts.worked, executor.counts.shared, executor.counts.kept) == (1, 2, 0)


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
        assert (executor.counts.worked, executor.counts.shared, executor.counts.kept) == (2, 0, 1)

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
    """Concurrent runs still share."""
    index = Indexed()
    model = HeldModel(ScriptedModel(finds))
    index.name = None
    executor = shared(model, index=index)
    first = await held(model, executor, asking("run-1"))
    (second,) = await waiting(executor, asking("run-2"))
    model.let.set()
    await ended(first)
    assert (await ended(second)).shared_from == ("run-1",)
    assert (await executor.run(SUB_QUERY, 0, asking("run-3"))).shared_from == ()


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


async def test_tenants_do_not_wait_for_each_other() -> None:
    """A running leader of another tenant delays nothing."""
    model = HeldModel(ScriptedModel(finds))
    executor = shared(model)
    first = await held(model, executor, asking("run-1"))
    model.called.clear()
    second = await held(model, executor, asking("run-2", "other"))
    model.let.set()
    assert [(await ended(task)).shared_from for task in (first, second)] == [(), ()]


async def test_a_run_without_sharing_takes_and_gives_no_report() -> None:
    executor = shared(ScriptedModel(finds))
    await executor.run(SUB_QUERY, 0, asking("run-1"))
    alone = asking("run-2", sharing=False)
    assert (await executor.run(SUB_QUERY, 0, alone)).shared_from == ()
    assert len(alone.ledger.calls) == 2
    assert (await executor.run(SUB_QUERY, 0, asking("run-3"))).shared_from == ("run-1",)


async def test_a_leader_that_leaves_hands_over() -> None:
    """The next run that waits works on the sub-query, and the others share its report."""
    model = HeldModel(ScriptedModel(finds), free=1)
    executor = shared(model)
    leader = asking("run-1")
    next_leader = asking("run-2")
    waiting_on = asking("run-3")
    first = await held(model, executor, leader)
    second, third = await waiting(executor, next_leader, waiting_on)
    first.cancel()
    model.let.set()
    execution = await ended(second)
    assert (execution.outcome, execution.shared_from) == ("reported", ())
    assert (await ended(third)).shared_from == ("run-2",)
    await leader.ledger.close(1.0)
    assert [call.outcome for call in leader.ledger.calls] == ["completed", "cancelled"]
    assert [call.outcome for call in next_leader.ledger.calls] == ["completed", "completed"]
    assert waiting_on.ledger.calls == ()


@pytest.mark.parametrize("cut", ["time", "budget"])
def test_a_follower_has_its_own_deadline_and_budget(cut: str) -> None:
    """If the leader's time or budget runs out, a waiting run takes over."""

    async def main(clock: Clock) -> None:
        model = HeldModel(ScriptedModel(finds), free=0 if cut == "time" else 1)
        executor = shared(model)
        leader = asking("run-1", time_s=5.0) if cut == "time" else asking("run-1", tokens=80)
        first = asyncio.ensure_future(executor.run(SUB_QUERY, 0, leader))
        second = asyncio.ensure_future(executor.run(SUB_QUERY, 0, asking("run-2")))
        await clock.advance(6.0)
        model.let.set()
        await clock.settle()
        assert (await first).outcome == ("timed_out" if cut == "time" else "budget_exhausted")
        assert (await second).outcome == "reported"

    with_clock(main)


def test_a_follower_ends_at_its_own_deadline() -> None:
    """It ends without a report, and the leader continues."""

    async def main(clock: Clock) -> None:
        model = HeldModel(ScriptedModel(finds))
        executor = shared(model)
        first = asyncio.ensure_future(executor.run(SUB_QUERY, 0, asking("run-1")))
        second = asyncio.ensure_future(executor.run(SUB_QUERY, 0, asking("run-2", time_s=5.0)))
        await clock.advance(5.0)
        assert second.done()
        assert (await second).outcome == "timed_out"
        model.let.set()
        assert (await first).outcome == "reported"

    with_clock(main)


async def test_a_follower_may_leave() -> None:
    """Neither the leader nor the others notice."""
    model = HeldModel(ScriptedModel(finds))
    executor = shared(model)
    first = await held(model, executor, asking("run-1"))
    second, third = await waiting(executor, asking("run-2"), asking("run-3"))
    second.cancel()
    model.let.set()
    assert (await ended(first)).outcome == (await ended(third)).outcome == "reported"


async def test_failures_are_not_shared() -> None:
    """The followers work alone, and no failed report is kept."""
    broken = UpstreamUnavailable("gone", endpoint="e")
    outputs: list[Answer] = [
        broken,
        f"<search>{SUB_QUERY}</search>",
        report("Mann", "Heat is a film by Michael Mann."),
    ]
    model = HeldModel(ScriptedModel(outputs))
    executor = shared(model)
    context = asking("run-2")
    model.let.set()
    first = asyncio.ensure_future(executor.run(SUB_QUERY, 0, asking("run-1")))
    second = None
    (second,) = await waiting(executor, context)
    assert (await ended(first)).outcome == "model_failed"
    taken = await ended(second)
    assert (taken.outcome, taken.shared_from, len(context.ledger.calls)) == ("reported", (), 2)
    assert executor.counts.worked == 2


async def test_no_sub_query_is_left_after_all_runs_have_ended_or_left() -> None:
    model = HeldModel(ScriptedModel(finds))
    executor = shared(model, keep_s=0.0)
    first = await held(model, executor, asking("run-1"))
    (second,) = await waiting(executor, asking("run-2"))
    second.cancel()
    first.cancel()
    await asyncio.wait([first, second])
    model.let.set()
    assert (await executor.run(SUB_QUERY, 0, asking("run-3"))).shared_from == ()
    assert (await executor.run(SUB_QUERY, 0, asking("run-4"))).shared_from == ()


class Tenants(Kept):
    """Tenants with equal settings."""

    def __init__(self, began: Admitted) -> None:
        super().__init__()
        self._began = began

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Admit the run, unless its request was made before."""
        admission = await super().begin(start)
        return self._began if isinstance(admission, Admitted) else admission


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
