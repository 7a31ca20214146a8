"""A gateway of several processes: one address, one store, one set of engines, one index."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from tempfile import TemporaryDirectory

import msgspec
import structlog
from msgspec.structs import replace

from router.access import Access
from router.calls.health import Need, Readiness
from router.edge.grpc.server import Server
from router.errors import BadConfig
from router.runs.live import meanwhile
from router.store.accounts import SQLAccounts
from router.store.database import Database
from serving.composition import check_addresses
from serving.config.config import Config
from serving.config.secrets import missing
from serving.engines.engine import Tell
from serving.engines.process import Backoff
from serving.reserved_port import reserved
from serving.retrieval.services import RetrievalServicer
from serving.startup import engines_and_retriever

_LONGEST_LINE = 16 << 20


class Order(msgspec.Struct, frozen=True, tag=True):
    """The first line to a worker: what it is to serve."""

    config: Config
    address: str
    http: str | None
    engines: dict[str, str]
    """Base URLs by name."""


class Down(msgspec.Struct, frozen=True, tag=True):
    """To a worker: all that is down by now; by source, what depends on it and why."""

    sources: dict[str, tuple[list[Need], str]]


class Step(msgspec.Struct, frozen=True, tag=True):
    """From a worker: something that people may want to know."""

    said: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it serves."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a worker: it cannot serve."""

    why: str


Line = Order | Down | Step | Ready | Failed
_decoder = msgspec.json.Decoder(Line)


class Wire:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, connected: socket.socket) -> "Wire":
        """Over one end of a pair of sockets, which is its own from now on."""
        return cls(*await asyncio.open_connection(sock=connected, limit=_LONGEST_LINE))

    def tell(self, line: Line) -> None:
        """Send a line, if anybody is there."""
        self._writer.write(msgspec.json.encode(line) + b"\n")

    async def __aiter__(self) -> AsyncIterator[Line]:
        """What is told, until the other side is gone."""
        with suppress(ConnectionError):
            async for line in self._reader:
                yield _decoder.decode(line)

    async def close(self) -> None:
        """Hang up, once everything is sent."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


_log = structlog.get_logger("workers")
_LONGER_S = 15.0
"""How long a worker may take to end beyond its grace period: for storing what was cancelled."""


class WorkerProcess:
    """A process that serves what is ordered."""

    def __init__(self, number: int, order: Order, tell: Tell, readiness: Readiness) -> None:
        """`number`: which it is, for people. `readiness`: what it is told to be down."""
        self._number, self._order, self._tell, self._readiness = number, order, tell, readiness
        self._process: asyncio.subprocess.Process | None = None
        self._wire: Wire | None = None

    async def start(self) -> None:
        """Start it, and wait until it serves. Raises `BadConfig`."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "serving.engines.worker", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a terminal's interrupt is for this process, which passes it on
            )
        self._wire = wire = await Wire.over(ours)
        wire.tell(self._order)
        wire.tell(Down(self._readiness.all))
        async for line in wire:
            match line:
                case Ready():
                    return
                case Failed(why):
                    raise BadConfig(why)
                case Step(said):
                    self._tell(said)
        raise BadConfig(f"Worker {self._number} ended before it served.")

    async def keep(self) -> None:
        """Start it again whenever it dies; for ever."""
        backoff = Backoff()
        while True:
            assert self._wire is not None
            async with meanwhile(self._tell_what_is_down(self._wire)):
                async for line in self._wire:
                    if isinstance(line, Step):
                        self._tell(line.said)
            pause_s: float | None = await self._ended(backoff)
            while pause_s is not None:
                await asyncio.sleep(pause_s)
                try:
                    await self.start()
                    pause_s = None
                except (BadConfig, OSError) as error:
                    _log.warning("worker.failed", worker=self._number, error=str(error))
                    pause_s = await self._ended(backoff)
            _log.info("worker.up", worker=self._number)

    async def stop(self, grace_s: float) -> None:
        """Let it drain, and make sure that it ends. Whoever has no patience for that may cancel this."""
        if (process := self._process) is None:
            return
        try:
            self._signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s + _LONGER_S):
                    await process.wait()
        except asyncio.CancelledError:
            self._signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGER_S):
                    await process.wait()
            raise
        finally:
            self._signal(signal.SIGKILL)
            await process.wait()
            await self.hang_up()

    async def hang_up(self) -> None:
        """Leave it alone, so that it ends by itself."""
        if self._wire is not None:
            await self._wire.close()

    async def wait(self) -> int:
        """Wait until it has ended; its exit status."""
        assert self._process is not None
        return await self._process.wait()

    async def _ended(self, backoff: Backoff) -> float:
        """Wait until it has; when to start it again."""
        await self.hang_up()
        self._signal(signal.SIGKILL)  # what has hung up serves nobody
        code, pause_s = await self.wait(), backoff.next()
        _log.error("worker.down", worker=self._number, code=code, again_in_s=pause_s)
        return pause_s

    async def _tell_what_is_down(self, wire: Wire) -> None:
        async for _ in self._readiness.changes():
            wire.tell(Down(self._readiness.all))

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


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
