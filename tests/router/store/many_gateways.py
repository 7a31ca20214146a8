"""Many gateways that lease quotas of tenants from one PostgreSQL, at a fixed rate of requests:
`python -m tests.router.store.many_gateways [GATEWAYS …]`, such as 1 10 100 (the default).

Each gateway is a journal with its own database connections, log and leases; models and networks are
left out. All journals run in this process, so its CPU is part of the times. The quotas are half
of what the requests would spend: they run out, and the overshoot must be 0.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import quantiles

import psycopg

from router.access import Tenant
from router.amount import Amount
from router.errors import QuotaExhausted, StoreFailed
from router.models import Usage
from router.store import Database, LogJournal
from router.testing.postgres import PostgresServer, running_postgres
from router.trace import Call
from tests.router.store.entries import DAY, NOW, ended, opened, rows, start
from tests.router.store.stored import put, run

RATE_PER_S = 20
LASTS_S = 15.0
CALLS = 6
"""Calls of a run."""
CALL_S = 0.05
TOKENS = 1_000
"""Mean tokens of a call, which reserves twice as many."""

COLUMNS = (
    "gateways",
    "tenants",
    "runs ended",
    "refused",
    "failed",
    "begin, ms (p50, p95)",
    "open a call, ms (p50, p95)",
    "commits/s",
    "connections",
    "quota used",
    "overshoot, tokens",
)


@dataclass
class Seen:
    """Counts and times of one measurement."""

    begin_ms: list[float] = field(default_factory=list)
    open_ms: list[float] = field(default_factory=list)
    finished: int = 0
    refused: int = 0
    failed: int = 0
    """Runs that could not be stored, because the gateway fell behind for 10 seconds."""


async def one_run(journal: LogJournal, number: int, tenant: str, seen: Seen) -> None:
    """Begin a run, make its calls one after the other, and end it."""
    try:
        await _one_run(journal, number, tenant, seen)
    except QuotaExhausted:
        seen.refused += 1
    except StoreFailed:
        seen.failed += 1


async def _one_run(journal: LogJournal, number: int, tenant: str, seen: Seen) -> None:
    luck = random.Random(number)
    run_id = f"run-{number}"
    calls: list[Call] = []
    began = time.perf_counter()
    await journal.begin(start(run_id, tenant))
    seen.begin_ms.append(1e3 * (time.perf_counter() - began))
    for place in range(CALLS):
        usage = Usage(luck.randint(1, 2 * TOKENS - 1), 1)
        call = ended(run_id, place, Amount(2 * TOKENS), tenant=tenant, usage=usage)
        try:
            began = time.perf_counter()
            await journal.open(opened(call))
            seen.open_ms.append(1e3 * (time.perf_counter() - began))
        except QuotaExhausted:
            seen.refused += 1
            break
        await asyncio.sleep(CALL_S)
        journal.settle(call)
        calls.append(call)
    await journal.finish(run(run_id, NOW, calls, tenant=tenant))
    seen.finished += 1


async def committed(database: Database) -> tuple[int, int]:
    """Return the server's number of commits so far, and its connections now."""
    commits = "SELECT sum(xact_commit) FROM pg_stat_database"
    connections = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    ((commit_count,),) = await rows(database, commits)
    ((connection_count,),) = await rows(database, connections)
    return int(commit_count), int(connection_count)


async def measured(server: PostgresServer, gateways: int, tenants: int) -> str:
    """Run the gateways on a new database, and return a line of the table."""
    names = [f"tenant-{number}" for number in range(tenants)]
    seen = Seen()
    url = server.new()
    limit = int(RATE_PER_S * LASTS_S * CALLS * TOKENS / 2 / tenants)
    async with AsyncExitStack() as stack:
        database = await Database.open(url)
        stack.push_async_callback(database.close)
        await put(database, tenants=[Tenant(name, tokens_per_day=limit) for name in names])
        journals = []
        for _ in range(gateways):
            own = await Database.open(url)
            stack.push_async_callback(own.close)
            journals.append(await stack.enter_async_context(LogJournal.writing(own)))
        before, _ = await committed(database)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as runs:
            for number in range(int(RATE_PER_S * LASTS_S)):
                await asyncio.sleep(max(0.0, began + number / RATE_PER_S - time.perf_counter()))
                tenant = names[number // gateways % tenants]
                runs.create_task(one_run(journals[number % gateways], number, tenant, seen))
        elapsed_s = time.perf_counter() - began
        after, connections = await committed(database)
    async with AsyncExitStack() as stack:
        database = await Database.open(url)
        stack.push_async_callback(database.close)
        query = "SELECT tokens FROM spending WHERE period = :day"
        spent = [int(tokens) for (tokens,) in await rows(database, query, day=DAY)]
    figures = (
        gateways,
        tenants,
        seen.finished,
        seen.refused,
        seen.failed,
        median_and_95(seen.begin_ms),
        median_and_95(seen.open_ms),
        f"{(after - before) / elapsed_s:.0f}",
        connections,
        f"{sum(spent) / limit / tenants:.1%}",
        sum(max(0, tokens - limit) for tokens in spent),
    )
    return f"| {' | '.join(map(str, figures))} |"


def median_and_95(times_ms: Sequence[float]) -> str:
    """Return the median and the 95th percentile."""
    points = quantiles(times_ms, n=20)
    return f"{points[9]:.1f}, {points[18]:.1f}"


async def main(counts: Sequence[int]) -> None:
    """Print the table."""
    with running_postgres() as server:
        allow_connections(server, 10 * max(counts) + 20)
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        for count in counts:
            for tenants in (1, 100):
                print(await measured(server, count, tenants), flush=True)


def allow_connections(server: PostgresServer, count: int) -> None:
    """Restart the server with a larger limit on connections."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET max_connections = {count}")
    server.restart("fast")


if __name__ == "__main__":
    asyncio.run(main([int(word) for word in sys.argv[1:]] or [1, 10, 100]))
