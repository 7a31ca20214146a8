"""A worker as its parent sees it: started, kept running, stopped."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress

import structlog

from router.calls.health import Readiness
from router.errors import BadConfig
from router.runs.live import meanwhile
from serving.backoff import Backoff
from serving.engine import Tell
from serving.worker_wire import Down, Failed, Order, Ready, Step, Wire

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
                *(sys.executable, "-P", "-m", "serving.worker", str(theirs.fileno())),
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
