"""Many gateways that lease quotas of tenants from one PostgreSQL, at a fixed rate of requests:
`python -m tests.router.store.many_gateways [GATEWAYS …]`, such as 1 10 100 (the default).

Each gateway is a journal with its own database connections, log and leases; models and networks are
left out. Up to ten journals share a process: with more, their threads wait for each other's GIL,
so long that gateways lose their database sessions. The quotas are half of what the requests would
spend: they run out, and the overshoot must be 0.
"""

import asyncio
import multiprocessing
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier, Semaphore
from statistics import quantiles

import psutil
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
PATIENCE_S = 120.0
"""Max seconds that processes wait for each other."""
PER_PROCESS = 10
"""Max number of gateways in a process."""
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
    "cores (gateways, PostgreSQL)",
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
    cpu_s: float = 0.0
    """CPU time of the gateways' processes."""

    def __add__(self, other: "Seen") -> "Seen":
        return Seen(*(getattr(self, name) + getattr(other, name) for name in vars(self)))


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


@dataclass(frozen=True)
class Share:
    """The gateways of one process."""

    url: str
    gateways: range
    of_gateways: int
    """Number of gateways in all processes."""
    tenants: Sequence[str]


def run_share(
    share: Share, joined: Semaphore, together: Barrier, results: "SimpleQueue[Seen]"
) -> None:
    """Run some of the gateways, in a process for them, and put what they saw into `results`.

    `joined`: released once all of them are members. `together`: barrier of all processes at the
    start of the requests, at their end, and after they were counted.
    """
    results.put(asyncio.run(_seen(share, joined, together)))


async def _seen(share: Share, joined: Semaphore, together: Barrier) -> Seen:
    seen = Seen()
    async with AsyncExitStack() as stack:
        journals = {}
        for gateway in share.gateways:
            own = await Database.open(share.url)
            stack.push_async_callback(own.close)
            journals[gateway] = await stack.enter_async_context(LogJournal.writing(own))
        joined.release()
        await met(together)
        began = time.perf_counter()
        cpu_s = time.process_time()
        async with asyncio.TaskGroup() as runs:
            for number in range(int(RATE_PER_S * LASTS_S)):
                gateway = number % share.of_gateways
                if gateway not in journals:
                    continue
                await asyncio.sleep(max(0.0, began + number / RATE_PER_S - time.perf_counter()))
                tenant = share.tenants[number // share.of_gateways % len(share.tenants)]
                runs.create_task(one_run(journals[gateway], number, tenant, seen))
        seen.cpu_s = time.process_time() - cpu_s
        await met(together)
        await met(together)
    return seen


async def met(barrier: Barrier) -> None:
    """Wait until all processes are here."""
    await asyncio.to_thread(barrier.wait, PATIENCE_S)


async def measured(server: PostgresServer, gateways: int, tenants: int) -> str:
    """Run the gateways on a new database, and return a line of the table."""
    names = [f"tenant-{number}" for number in range(tenants)]
    url = server.new()
    limit = int(RATE_PER_S * LASTS_S * CALLS * TOKENS / 2 / tenants)
    first_ones = range(0, gateways, PER_PROCESS)
    shares = [
        Share(url, range(first, min(first + PER_PROCESS, gateways)), gateways, names)
        for first in first_ones
    ]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run_share.__module__])
    joined = context.Semaphore(0)
    barrier = context.Barrier(len(shares) + 1)
    results: SimpleQueue[Seen] = context.SimpleQueue()
    async with AsyncExitStack() as stack:
        database = await Database.open(url)
        stack.push_async_callback(database.close)
        await put(database, tenants=[Tenant(name, tokens_per_day=limit) for name in names])
        for share in shares:
            arguments = (share, joined, barrier, results)
            context.Process(target=run_share, args=arguments, daemon=True).start()
            # One after the other: while all start together, members have no time for their sessions
            if not await asyncio.to_thread(joined.acquire, timeout=PATIENCE_S):
                raise TimeoutError(f"{share.gateways} have not joined within {PATIENCE_S} s")
        await met(barrier)
        before, _ = await committed(database)
        postgres_before_s = postgres_cpu_s()
        began = time.perf_counter()
        await met(barrier)
        elapsed_s = time.perf_counter() - began
        postgres_s = postgres_cpu_s() - postgres_before_s
        after, connections = await committed(database)
        await met(barrier)
        seen = sum([await asyncio.to_thread(results.get) for _ in shares], Seen())
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
        f"{seen.cpu_s / elapsed_s:.2f}, {postgres_s / elapsed_s:.2f}",
        f"{sum(spent) / limit / tenants:.1%}",
        sum(max(0, tokens - limit) for tokens in spent),
    )
    return f"| {' | '.join(map(str, figures))} |"


def postgres_cpu_s() -> float:
    """Return the CPU time of the server's processes, in seconds."""
    total = 0.0
    for process in psutil.process_iter(["name", "cpu_times"]):
        if process.info["name"] == "postgres" and process.info["cpu_times"]:
            total += sum(process.info["cpu_times"][:2])
    return total


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
