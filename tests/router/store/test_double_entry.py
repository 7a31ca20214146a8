"""Whatever happens in whatever order, the books agree: sums are those of the calls, and nothing stays reserved."""

import asyncio
import random
import secrets
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.access import Tenant
from router.amount import Amount
from router.errors import BudgetExhausted
from router.models import Usage
from router.store import Database, SQLJournal
from router.store.check import check
from router.store.spending import periods
from router.trace import Call
from tests.router.store.entries import NOW, ended, opened, rows, spent, start
from tests.router.store.stored import put, run

MIDNIGHT = NOW + 11 * 3600
amounts = st.builds(Amount, st.integers(0, 30), st.integers(0, 30))
usages = st.none() | st.builds(
    Usage, st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(0, 5), st.none() | st.integers(0, 5)
)


@st.composite
def calls(draw: st.DrawFn, run_id: str, tenant: str, number: int) -> Call:
    """Of any role, outcome and usage, on either side of midnight."""
    usage = draw(usages)
    return ended(
        run_id,
        number,
        draw(amounts),
        tenant=tenant,
        role=draw(st.sampled_from(["delegation", "execution", "answer"])),
        usage=usage,
        nano_usd=draw(st.none() | st.integers(0, 30)) if usage else None,
        outcome=draw(st.sampled_from(["completed", "refused", "cancelled", "unavailable"])),
        started_at=MIDNIGHT + draw(st.sampled_from([-7200.0, -1.0, 0.0, 10.0])),
    )


async def _work(journal: SQLJournal, run_id: str, plan: list[Call], hold: Amount, luck: random.Random) -> None:
    """A run in which several calls run at once, some are taken back, and some ends are heard of only with its end."""
    tenant = run_id.rpartition("-")[0]
    try:
        await journal.begin(start(run_id, tenant, started_at=MIDNIGHT - 5, hold=hold))
    except BudgetExhausted:
        return
    made: list[Call] = []

    async def one(call: Call) -> None:
        try:
            await journal.open(opened(call))
        except BudgetExhausted:
            return
        if luck.random() < 0.2:
            journal.discard(opened(call))
            return
        made.append(call)
        if luck.random() < 0.8:
            journal.settle(call)
        if luck.random() < 0.3:
            with suppress(BudgetExhausted):
                await journal.reserve_for_answer(run_id, call.reserved)

    await asyncio.gather(*(one(call) for call in plan))
    if made or luck.random() < 0.7:
        await journal.finish(run(run_id, MIDNIGHT - 5, made, tenant=tenant))
    else:
        journal.forget(run_id)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), limit=st.none() | st.integers(0, 200), seed=st.integers())
async def test_the_books_agree(
    database: Database, journal: SQLJournal, data: st.DataObject, limit: int | None, seed: int
) -> None:
    """For any tenant, with a quota or without."""
    tenant = f"tenant-{secrets.token_hex(4)}"
    await put(database, tenants=[Tenant(tenant, tokens_per_day=limit)])
    luck = random.Random(seed)
    plans = {
        f"{tenant}-{index}": [data.draw(calls(f"{tenant}-{index}", tenant, number)) for number in range(size)]
        for index, size in enumerate(data.draw(st.lists(st.integers(0, 6), max_size=4)))
    }
    hold = data.draw(amounts)
    await asyncio.gather(*(_work(journal, run_id, plan, hold, luck) for run_id, plan in plans.items()))
    await journal.begin(start(f"{tenant}-last", "another"))  # what was told before is written by now

    kept = [call for plan in plans.values() for call in plan]
    found = await rows(database, "SELECT run_id, number FROM calls WHERE tenant = :tenant", tenant=tenant)
    booked = [call for call in kept if (call.run_id, call.number) in set(found)]
    assert len(booked) == len(found)
    for period, (_, tokens, nano_usd, *reserved) in (await spent(database, tenant)).items():
        charged = [call.charged for call in booked if period in periods(call.started_at)]
        assert tokens == sum(each.tokens for each in charged)
        assert nano_usd == sum(each.nano_usd or 0 for each in charged)
        assert reserved == [0, 0]
        assert limit is None or len(period) == 7 or tokens <= max(limit, 0) + _overruns(booked)
    assert (await check(database)).problems == []


def _overruns(booked: list[Call]) -> int:
    """What engines wrote beyond what they were asked for, which no reservation can prevent."""
    return sum(max(0, call.charged.tokens - call.reserved.tokens) for call in booked)
