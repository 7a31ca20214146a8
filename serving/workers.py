"""A gateway of several processes: one address, one store, one set of engines, one index."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from router.access import Access
from router.calls.health import Readiness
from router.edge.grpc.server import Server
from router.errors import BadConfig
from router.runs.live import meanwhile
from router.store.accounts import SQLAccounts
from router.store.database import Database
from serving.composition import check_addresses
from serving.config import Config
from serving.engine import Tell
from serving.readiness import missing
from serving.reserved_port import reserved
from serving.retrieval.grpc_service import RetrievalServicer
from serving.slow_parts import engines_and_retriever
from serving.worker_process import WorkerProcess
from serving.worker_wire import Order


@asynccontextmanager
async def running_workers(
    config: Config, address: str, tell: Tell, http: str | None, number: int
) -> AsyncIterator[str]:
    """As `running_gateway`, with `number` processes that listen at the same address, each started again if it dies.

    This process starts the engines and searches the index for all of them. Which worker a connection gets is the
    kernel's choice, and it stays with it.
    """
    for problem in missing(config):
        raise BadConfig(problem)
    async with AsyncExitStack() as stack:
        await _check_store(config, address, http)
        kept, address = reserved(address, "server.address")
        stack.callback(kept.close)
        if http:
            kept, http = reserved(http, "server.http")
            stack.callback(kept.close)
        readiness = Readiness()
        engines, retriever = await engines_and_retriever(config, stack, tell, readiness)
        if config.retrieval.address is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="rolegate-"))  # only we may look into it
            shared = f"unix:{folder}/retrieval"
            server = Server(None, RetrievalServicer(retriever, index_id=lambda: retriever.index_id))
            await server.start(shared)
            stack.push_async_callback(server.drain, 0.0)
            config = replace(config, retrieval=replace(config.retrieval, address=shared, index=None, documents=()))
        told = _Once(tell)
        workers = [
            WorkerProcess(index, Order(_of_worker(config, index), address, http, dict(engines)), told, readiness)
            for index in range(1, number + 1)
        ]
        stack.push_async_callback(_stop, workers, config.server.grace_s)
        try:
            async with asyncio.TaskGroup() as group:
                for worker in workers:
                    group.create_task(worker.start())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        await stack.enter_async_context(meanwhile(*(worker.keep() for worker in workers)))
        yield address


async def _check_store(config: Config, address: str, http: str | None) -> None:
    """Before anything slow begins. Raises `BadConfig` and `StoreFailed`."""
    database = await Database.open(config.server.store)
    try:
        await check_addresses(address, http, Access(SQLAccounts(database)), alone=False)
    finally:
        await database.close()


def _of_worker(config: Config, index: int) -> Config:
    return replace(config, telemetry=config.telemetry.of_worker(index))


async def _stop(workers: Sequence[WorkerProcess], grace_s: float) -> None:
    await asyncio.gather(*(worker.stop(grace_s) for worker in workers))


class _Once:
    """Tells what several say but once."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._said = tell, set[str]()

    def __call__(self, step: str) -> None:
        if step not in self._said:
            self._said.add(step)
            self._tell(step)
