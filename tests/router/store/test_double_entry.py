"""Double entry: for any order of events, sums equal those of the calls, and no reservation is
left.
"""

import asyncio
import random
import secrets
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.access import Tenant
from router.store import Database, LogJournal
from router.store.quotas import names
from router.trace import Run
from tests.router.store.busy import agree, conduct, plans, stored_runs
from tests.router.store.entries import cut_short, spent
from tests.router.store.stored import put
from tests.router.store.test_quota import left

MIDNIGHT = (time.time() // 86400 + 1) * 86400


def _overruns(runs: list[Run]) -> int:
    """Return tokens that engines wrote beyond the requested maximum, which no reservation can
    prevent.
    """
    return sum(
        max(0, call.charged.tokens - call.reserved.tokens) for run in runs for call in run.calls
    )


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(), limit=st.none() | st.integers(0, 200), seed=st.integers(), killed=st.booleans()
)
async def test_sums_equal_the_calls_and_nothing_stays_reserved(
    database: Database, data: st.DataObject, limit: int | None, seed: int, killed: bool
) -> None:
    """The tenant has a quota or none.

    The gateway may be killed, and the next start closes its runs.
    """
    tenant = f"tenant-{secrets.token_hex(4)}"
    luck = random.Random(seed)
    planned = data.draw(plans(tenant, MIDNIGHT))
    await put(database, tenants=[Tenant(tenant, tokens_per_day=limit)])

    async def see(journal: LogJournal, ended_runs: list[Run]) -> None:
        await journal._follower.caught_up()  # withdrawn runs are deleted by then
        runs = await stored_runs(database, tenant)
        await agree(database, tenant, runs, ended_runs)
        if limit is not None:
            tokens = (await spent(database, tenant)).get(names(MIDNIGHT - 5)[1], (0, 0, 0))[1]
            assert tokens <= limit + _overruns(runs)
            if tokens <= limit:
                await left(journal, limit - tokens, MIDNIGHT - 5, tenant)

    async with cut_short(database) if killed else LogJournal.writing(database) as journal:
        over = await asyncio.gather(
            *(conduct(journal, plan, luck, ends=not killed) for plan in planned)
        )
        ended_runs = [run for run in over if run]
        if not killed:
            await see(journal, ended_runs)
    async with LogJournal.writing(database) as journal:
        await see(journal, ended_runs)
