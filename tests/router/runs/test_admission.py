"""Admission: nobody waits long, no tenant starves another, and no place is lost."""

import asyncio

import pytest

from router.errors import Overloaded
from router.models import ScriptedModel
from router.runs import Admission, RequestOptions, RunLifecycle
from router.runs.admission import AdmissionLimits
from router.runs.lifecycle import OpenRun, RunRequest
from router.runs.live import LiveRuns
from router.trace import Run, Trajectory
from router.trace.identity import SHADOW
from tests.router.clock import Clock, ended, with_clock
from tests.router.deployment import STOP, Deployment, HeldModel, Kept


class Asking:
    """Who came in, in their order."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.admission = Admission(limits)
        self.entered: list[str] = []
        self.waiting: list[asyncio.Task[None]] = []

    async def ask(self, *tenants: str) -> None:
        """Each asks after the one before."""
        for tenant in tenants:
            self.waiting.append(asyncio.create_task(self._enter(tenant)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def _enter(self, tenant: str) -> None:
        await self.admission.enter(tenant)
        self.entered.append(tenant)


def test_waiting_tenants_take_turns() -> None:
    """One that asks a hundred times does not come before another one that asks once."""

    async def main(clock: Clock) -> list[str]:
        asking = Asking(AdmissionLimits(max_runs=1))
        await asking.ask("a", "a", "a", "a", "b", "c", "b")
        for number in range(6):
            asking.admission.leave(asking.entered[number])
            await clock.settle()
        return asking.entered

    assert with_clock(main) == ["a", "a", "b", "c", "a", "b", "a"]


def test_a_tenant_at_its_own_limit_holds_up_nobody() -> None:
    """Its runs wait for its own, while others' begin; and they do not take its place when one
    of theirs ends.
    """

    async def main(clock: Clock) -> None:
        asking = Asking(AdmissionLimits(max_runs=3, max_runs_per_tenant=1))
        await asking.ask("a", "a", "b")
        assert (asking.entered, asking.admission.waiting) == (["a", "b"], 1)
        asking.admission.leave("b")
        await clock.settle()
        assert asking.entered == ["a", "b"]
        asking.admission.leave("a")
        await clock.settle()
        assert (asking.entered, asking.admission.running) == (["a", "b", "a"], 1)

    with_clock(main)


def test_the_wait_is_bounded() -> None:
    """Whoever has waited for so long is turned away, with word of when to come back; the place
    goes to the next.
    """

    async def main(clock: Clock) -> None:
        asking = Asking(AdmissionLimits(max_runs=1, queue_s=5.0))
        await asking.ask("a", "b")
        await clock.advance(5.1)
        with pytest.raises(
            Overloaded, match=r"1 of 1 runs .* \(admission\.max_runs\), and 0 wait"
        ) as caught:
            await asking.waiting[1]
        assert caught.value.retry_after_s == 5.0
        await asking.ask("c")
        asking.admission.leave("a")
        await clock.settle()
        assert asking.entered == ["a", "c"]

    with_clock(main)


def test_a_full_queue_turns_away_at_once() -> None:
    """Without any time passing."""

    async def main(clock: Clock) -> None:
        asking = Asking(AdmissionLimits(max_runs=2, max_runs_per_tenant=1, queue=1))
        await asking.ask("a", "a", "a")
        with pytest.raises(Overloaded, match=r"1 of this tenant's runs .*max_runs_per_tenant"):
            asking.waiting[2].result()
        assert not asking.waiting[1].done()

    with_clock(main)


def test_a_full_queue_is_shared() -> None:
    """A tenant with less in it than another one gets in; of the other's, the latest has to go."""

    async def main(clock: Clock) -> None:
        asking = Asking(AdmissionLimits(max_runs=1, queue=3))
        await asking.ask("a", "a", "a", "a", "b", "b")
        await clock.settle()
        assert [task.done() for task in asking.waiting] == [True, False, False, True, False, True]
        for refused in (asking.waiting[3], asking.waiting[5]):
            assert isinstance(refused.exception(), Overloaded)

    with_clock(main)


@pytest.mark.parametrize("at", ["waiting", "called"])
def test_whoever_leaves_the_queue_takes_no_place_along(at: str) -> None:
    """Cancelled while waiting, or in the very moment in which its turn comes: the next one gets
    it.
    """

    async def main(clock: Clock) -> None:
        asking = Asking(AdmissionLimits(max_runs=1))
        await asking.ask("a", "b", "c")
        if at == "called":
            asking.admission.leave("a")
            asking.waiting[1].cancel()
        else:
            asking.waiting[1].cancel()
            asking.admission.leave("a")
        await clock.settle()
        assert (asking.entered, asking.admission.running, asking.admission.waiting) == (
            ["a", "c"],
            1,
            0,
        )

    with_clock(main)


def test_a_run_that_nobody_asked_for_gives_way() -> None:
    """A shadow run begins only when there is room and nobody waits, with all its time, and
    takes no client's place.
    """

    async def main(clock: Clock) -> None:
        store = Kept()
        begun = asyncio.Event()
        let = asyncio.Event()
        admission = Admission(AdmissionLimits(max_runs=1))
        lifecycle = RunLifecycle(store, store, LiveRuns(), {}, 60.0, admission=admission)

        async def works() -> Run:
            async with lifecycle.open(RunRequest("shadow", "", ""), RequestOptions(SHADOW)) as run:
                assert isinstance(run, OpenRun)
                assert run.context.deadline - clock.time() > 50
                begun.set()
                await let.wait()
                run.context.draft.result = Trajectory("", "not_found")
            return run.stored

        await admission.enter("client")
        shadow = asyncio.create_task(works())
        await clock.advance(100.0)
        assert not store.starts
        admission.leave("client")
        await clock.settle()
        assert begun.is_set()
        await admission.enter("client")
        let.set()
        assert (await shadow).status == "finished"

    with_clock(main)


async def test_a_request_that_is_turned_away_leaves_nothing() -> None:
    """It is not on record, nothing is called, and the place that it did not get is not lost."""
    store = Kept()
    model = HeldModel(ScriptedModel([STOP]))
    gateway = Deployment(model).gateway(
        store, admission=Admission(AdmissionLimits(max_runs=1, queue=0))
    )
    first = asyncio.create_task(gateway.answer("why?", RequestOptions()))
    await ended(model.called.wait())
    with pytest.raises(Overloaded):
        await gateway.answer("and this?", RequestOptions())
    assert len(store.starts) == 1
    model.let.set()
    await ended(first)
    assert (await gateway.execute("and now?", RequestOptions())).status == "finished"
