"""Admission: no request waits long, no tenant starves another, and no place is lost."""

import asyncio

import pytest

from router.errors import Overloaded
from router.runs import Admission, RequestOptions, RunLifecycle
from router.runs.admission import AdmissionLimits
from router.runs.lifecycle import OpenRun, RunRequest
from router.runs.live import LiveRuns
from router.trace import Run, Trajectory
from router.trace.identity import SHADOW
from tests.router.clock import Clock, ended, with_clock
from tests.router.deployment import STOP, Deployment, HeldModel, Kept
from tests.scripted_model import ScriptedModel


class Asking:
    """Requests to an admission; `entered` has their tenants in order of entry."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.admission = Admission(limits)
        self.entered: list[str] = []
        self.waiting: list[asyncio.Task[None]] = []

    async def ask(self, *tenants: str) -> None:
        """Start a request of each tenant, in this order."""
        for tenant in tenants:
            self.waiting.append(asyncio.create_task(self._enter(tenant)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _enter(self, tenant: str) -> None:
        await self.admission.enter(tenant)
        self.entered.append(tenant)


def test_waiting_tenants_take_turns() -> None:
    """A tenant with many requests does not delay a tenant with a single request."""

    async def main(clock: Clock) -> list[str]:
        requests = Asking(AdmissionLimits(max_runs=1))
        await requests.ask("a", "a", "a", "a", "b", "c", "b")
        for number in range(6):
            requests.admission.leave(requests.entered[number])
            await clock.settle()
        return requests.entered

    assert with_clock(main) == ["a", "a", "b", "c", "a", "b", "a"]


def test_a_tenant_at_its_limit_does_not_delay_others() -> None:
    """Its runs wait for its own runs, and do not take the places of others."""

    async def main(clock: Clock) -> None:
        requests = Asking(AdmissionLimits(max_runs=3, max_runs_per_tenant=1))
        await requests.ask("a", "a", "b")
        assert (requests.entered, requests.admission.waiting) == (["a", "b"], 1)
        requests.admission.leave("b")
        await clock.settle()
        assert requests.entered == ["a", "b"]
        requests.admission.leave("a")
        await clock.settle()
        assert (requests.entered, requests.admission.running) == (["a", "b", "a"], 1)

    with_clock(main)


def test_a_request_that_waits_too_long_is_refused() -> None:
    """The error has a retry delay, and the place goes to the next request."""

    async def main(clock: Clock) -> None:
        requests = Asking(AdmissionLimits(max_runs=1, queue_s=5.0))
        await requests.ask("a", "b")
        await clock.advance(5.1)
        with pytest.raises(
            Overloaded, match=r"1 of 1 runs .* \(admission\.max_runs\), and 0 requests wait"
        ) as caught:
            await requests.waiting[1]
        assert caught.value.retry_after_s == 5.0
        await requests.ask("c")
        requests.admission.leave("a")
        await clock.settle()
        assert requests.entered == ["a", "c"]

    with_clock(main)


def test_a_full_queue_refuses_immediately() -> None:
    async def main(clock: Clock) -> None:
        requests = Asking(AdmissionLimits(max_runs=2, max_runs_per_tenant=1, queue=1))
        await requests.ask("a", "a", "a")
        with pytest.raises(Overloaded, match=r"1 of this tenant's runs .*max_runs_per_tenant"):
            requests.waiting[2].result()
        assert not requests.waiting[1].done()

    with_clock(main)


def test_a_full_queue_refuses_the_tenant_with_most_requests() -> None:
    """The latest request of that tenant is refused."""

    async def main(clock: Clock) -> None:
        requests = Asking(AdmissionLimits(max_runs=1, queue=3))
        await requests.ask("a", "a", "a", "a", "b", "b")
        await clock.settle()
        assert [task.done() for task in requests.waiting] == [True, False, False, True, False, True]
        for refused in (requests.waiting[3], requests.waiting[5]):
            assert isinstance(refused.exception(), Overloaded)

    with_clock(main)


@pytest.mark.parametrize("at", ["waiting", "called"])
def test_a_cancelled_request_leaves_its_place_to_the_next(at: str) -> None:
    """Holds while it waits, and at the moment when its turn comes."""

    async def main(clock: Clock) -> None:
        requests = Asking(AdmissionLimits(max_runs=1))
        await requests.ask("a", "b", "c")
        if at == "called":
            requests.admission.leave("a")
            requests.waiting[1].cancel()
        else:
            requests.waiting[1].cancel()
            requests.admission.leave("a")
        await clock.settle()
        assert (requests.entered, requests.admission.running, requests.admission.waiting) == (
            ["a", "c"],
            1,
            0,
        )

    with_clock(main)


def test_a_shadow_run_gives_way_to_clients() -> None:
    """It starts only if a place is free and no client waits, with its full time."""

    async def main(clock: Clock) -> None:
        store = Kept()
        started = asyncio.Event()
        may_end = asyncio.Event()
        admission = Admission(AdmissionLimits(max_runs=1))
        lifecycle = RunLifecycle(store, store, LiveRuns(), {}, 60.0, admission=admission)

        async def run_shadow() -> Run:
            async with lifecycle.open(RunRequest("shadow", "", ""), RequestOptions(SHADOW)) as run:
                assert isinstance(run, OpenRun)
                assert run.context.deadline - clock.time() > 50
                started.set()
                await may_end.wait()
                run.context.draft.result = Trajectory("", "not_found")
            return run.stored

        await admission.enter("client")
        shadow = asyncio.create_task(run_shadow())
        await clock.advance(100.0)
        assert not store.starts
        admission.leave("client")
        await clock.settle()
        assert started.is_set()
        await admission.enter("client")
        may_end.set()
        assert (await shadow).status == "finished"

    with_clock(main)


async def test_a_refused_request_leaves_no_trace() -> None:
    """It is not recorded, no model is called, and no place is lost."""
    store = Kept()
    model = HeldModel(ScriptedModel([STOP]))
    gateway = Deployment(model).gateway(
        store, admission=Admission(AdmissionLimits(max_runs=1, queue=0))
    )
    running_request = asyncio.create_task(gateway.answer("why?", RequestOptions()))
    await ended(model.called.wait())
    with pytest.raises(Overloaded):
        await gateway.answer("and this?", RequestOptions())
    assert len(store.starts) == 1
    model.let.set()
    await ended(running_request)
    assert (await gateway.execute("and now?", RequestOptions())).status == "finished"
