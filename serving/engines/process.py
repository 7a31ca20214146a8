"""An HTTP server as a child process: started, awaited, looked at, stopped; any number of times, on one port."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import structlog

from router.errors import BadConfig

_LOOKS_EVERY_S = 0.2
_DIE = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
_DYING_WITH_PARENT = (sys.executable, "-I", "-S", "-c", _DIE) if sys.platform == "linux" else ()
"""Has Linux end a process when its parent dies, however it dies (PR_SET_PDEATHSIG). Asked for in Popen's `preexec_fn`,
between fork and exec, it would now and then abort where gRPC's threads are at work.
"""


class ServerProcess:
    """One that answers `GET /health` with 200 once it serves. Its output is added to a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        log: Path,
        environment: Mapping[str, str],
        *,
        ready_within_s: float,
    ) -> None:
        """`name`: what it is, for messages. `environment`: beside this process's own, which wins."""
        self.name, self.log, self._ready_within_s = name, log, ready_within_s
        self._command, self._environment, self._url = command, environment, f"http://127.0.0.1:{port}/health"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it serves. Raises `BadConfig`, with the end of its output, where it does not."""
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *_DYING_WITH_PARENT,
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self._environment, **os.environ},
                start_new_session=True,
            )
        how = f"was not ready within {self._ready_within_s:.0f} s"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ready_within_s):
                while self._process.returncode is None:
                    if await self.answers(self._ready_within_s):
                        return
                    await asyncio.sleep(_LOOKS_EVERY_S)
            how = self.end
        last = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-5:])
        raise BadConfig(f"{self.name} {how}; the end of {self.log}:\n{last}")

    async def ended(self) -> None:
        """Wait until it is no more."""
        assert self._process is not None
        await self._process.wait()

    @property
    def end(self) -> str:
        """How it ended, for people."""
        return f"ended with code {self._process.returncode if self._process else None}"

    async def answers(self, within_s: float) -> bool:
        """Whether it says within so many seconds that it is well."""
        timeout = aiohttp.ClientTimeout(total=within_s)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with aiohttp.ClientSession() as session, session.get(self._url, timeout=timeout) as response:
                return response.status == 200
        return False

    async def stop(self, within_s: float = 10.0) -> None:
        """End it and all that it started: ask first, and make sure after `within_s` seconds."""
        if (process := self._process) is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@dataclass(slots=True)
class Backoff:
    """Each pause is twice as long as the last one, until there was a time without need of any."""

    first_s: float = 1.0
    longest_s: float = 60.0
    good_after_s: float = 60.0
    """Between two attempts that are this far apart, beyond the pause, all was well."""
    clock: Callable[[], float] = time.monotonic
    _pause_s: float = field(default=0.0, init=False)
    _last: float = field(default=0.0, init=False)

    def next(self) -> float:
        """How long to wait now, in seconds."""
        now = self.clock()
        fresh = not self._pause_s or now - self._last > self._pause_s + self.good_after_s
        self._pause_s = self.first_s if fresh else min(2 * self._pause_s, self.longest_s)
        self._last = now
        return self._pause_s


_log = structlog.get_logger("engine")
Say = Callable[[str | None], None]
"""Hears why a server is down, and None once it is there again."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How a server is looked after."""

    within_s: float
    """How long its health check may take."""
    every_s: float = 2.0
    misses: int = 3
    """Failed checks in a row after which it is taken to hang."""
    backoff: Callable[[], Backoff] = field(default=Backoff)


async def keep_running(process: ServerProcess, say: Say, watch: Watch) -> None:
    """Watch a server that has been started, and start it again whenever it is to no use; for ever."""
    backoff = watch.backoff()
    while True:
        why: str | None = await _broken(process, watch)
        while why is not None:
            pause_s = backoff.next()
            say(why)
            _log.error("engine.down", name=process.name, why=why, again_in_s=pause_s)
            await process.stop(0.0)
            await asyncio.sleep(pause_s)
            try:
                await process.start()
                why = None
            except (BadConfig, OSError) as error:  # a disk that is full, or no memory for another process
                why = str(error)
        say(None)
        _log.info("engine.up", name=process.name)


async def _broken(process: ServerProcess, watch: Watch) -> str:
    """What is wrong with it, as soon as something is."""
    missed = 0
    while missed < watch.misses:
        try:
            async with asyncio.timeout(watch.every_s):
                await process.ended()
                return process.end
        except TimeoutError:
            missed = 0 if await process.answers(watch.within_s) else missed + 1
    return "does not answer its health check"
