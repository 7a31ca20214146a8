"""What gateways without requests cost: `python -m tests.router.store.idle_gateways [GATEWAYS]`,
ten by default. Each is a journal with a PostgreSQL that all share.
"""

import asyncio
import sys
import time
from contextlib import AsyncExitStack

from router.store import Database, LogJournal
from router.testing.postgres import running_postgres
from tests.router.store.many_gateways import allow_connections, committed, postgres_cpu_s

SETTLES_S = 3.0
LASTS_S = 15.0


async def measured(gateways: int) -> str:
    """Return the costs of a gateway and second, in words."""
    with running_postgres() as server:
        allow_connections(server, 10 * gateways + 20)
        url = server.new()
        async with AsyncExitStack() as stack:
            database = await Database.open(url)
            stack.push_async_callback(database.close)
            for _ in range(gateways):
                own = await Database.open(url)
                stack.push_async_callback(own.close)
                await stack.enter_async_context(LogJournal.writing(own))
            await asyncio.sleep(SETTLES_S)

            commits, _ = await committed(database)
            began = time.perf_counter()
            cpu_s = time.process_time()
            postgres_s = postgres_cpu_s()
            await asyncio.sleep(LASTS_S)
            gateway_seconds = gateways * (time.perf_counter() - began)
            cpu_ms = 1e3 * (time.process_time() - cpu_s) / gateway_seconds
            postgres_ms = 1e3 * (postgres_cpu_s() - postgres_s) / gateway_seconds
            commits_after, connections = await committed(database)
    return (
        f"{gateways} gateways, for each of them: {cpu_ms:.1f} ms of CPU a second, "
        f"{postgres_ms:.1f} ms of PostgreSQL's, "
        f"{(commits_after - commits) / gateway_seconds:.1f} transactions a second, "
        f"{connections / gateways:.1f} connections"
    )


if __name__ == "__main__":
    print(asyncio.run(measured(int(sys.argv[1]) if sys.argv[1:] else 10)))
