"""An HTTP server as a child process, which can be restarted on the same port."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog

from router.background import at_most
from router.errors import BadConfig
from router.frozen import Frozen

OnChange = Callable[[str | None], None]
"""Callback that is called with the reason when a server goes down, and with None when the server is
up again.
"""

_READY_INTERVAL_S = 0.2
DYING_WITH_PARENT = (
    (
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).with_name("child_supervisor.py")),
    )
    if sys.platform == "linux"
    else ()
)
"""Prefix for a command. On Linux, the prefix makes the command's program and all its descendants
end when this process ends, even if this process is killed. Empty on other systems.
"""
_log = structlog.get_logger("engine")


@dataclass(eq=False, repr=False)
class ServerProcess:
    """A server that answers `GET /health` with 200 when it is ready. Its output goes to a file."""

    name: str
    """The server's name in messages."""
    command: Sequence[str]
    port: int
    """Port on 127.0.0.1."""
    log: Path
    """File to which the server's output is appended."""
    environment: Mapping[str, str]
    """Environment variables of the server, unless this process's environment sets them."""
    ready_within_s: float
    """Max seconds until the server is ready."""
    _process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the server and wait until it is ready. Raises `BadConfig`, with the last lines of
        the server's output, if the server ends or is not ready in time.
        """
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *DYING_WITH_PARENT,
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self.environment, **os.environ},
                start_new_session=True,
            )
        reason = (
            f"was not ready in {self.ready_within_s:.0f} s; if it still loads, raise ready_within_s"
        )
        async with at_most(self.ready_within_s):
            while self._process.returncode is None:
                if await self.answers(self.ready_within_s):
                    return
                await asyncio.sleep(_READY_INTERVAL_S)
            reason = self.end
        last_lines = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-5:])
        raise BadConfig(f"{self.name} {reason}; its log {self.log} ends with:\n{last_lines}")

    async def ended(self) -> None:
        """Wait until the process has ended."""
        assert self._process is not None
        await self._process.wait()

    @property
    def end(self) -> str:
        """Text for a message about the end of the process, such as `ended with code 1`."""
        return f"ended with code {self._process.returncode if self._process else None}"

    async def answers(self, within_s: float) -> bool:
        """Return True if the server answers a health check with 200 within `within_s` seconds."""
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with (
                aiohttp.ClientSession() as session,
                session.get(
                    f"http://127.0.0.1:{self.port}/health",
                    timeout=aiohttp.ClientTimeout(total=within_s),
                ) as response,
            ):
                return response.status == 200
        return False

    async def stop(self, within_s: float = 10.0) -> None:
        """Terminate the process. Kill it and its descendants if it is still running after
        `within_s` seconds.
        """
        if (process := self._process) is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            async with at_most(within_s):
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


class Watch(Frozen):
    """Intervals, timeouts and limits with which `keep_running` watches a server."""

    within_s: float
    """Timeout of a health check, in seconds."""
    every_s: float = 2.0
    """Seconds between health checks."""
    misses: int = 3
    """Number of failed health checks in a row after which the server counts as hanging."""
    first_pause_s: float = 1.0
    """Seconds before the first restart. The pause doubles with each restart."""
    longest_pause_s: float = 60.0
    """Max pause before a restart, in seconds."""
    good_after_s: float = 60.0
    """Uptime in seconds after which the pause before the next restart is `first_pause_s` again."""


async def keep_running(process: ServerProcess, on_change: OnChange, watch: Watch) -> None:
    """Watch a running server, and restart it when it ends or hangs. Runs until cancelled."""
    pause_s = watch.first_pause_s
    while True:
        up_at = time.monotonic()
        reason: str | None = await _broken(process, watch)
        if time.monotonic() - up_at > watch.good_after_s:
            pause_s = watch.first_pause_s
        while reason is not None:
            on_change(reason)
            _log.error(
                "engine.down",
                name=process.name,
                reason=reason,
                again_in_s=pause_s,
            )
            await process.stop(0.0)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, watch.longest_pause_s)
            try:
                await process.start()
                reason = None
            except (
                BadConfig,
                OSError,
            ) as error:  # an OSError, for example, if disk or memory is full
                reason = str(error)
        on_change(None)
        _log.info("engine.up", name=process.name)


async def _broken(process: ServerProcess, watch: Watch) -> str:
    """Wait until a server ends, or fails `watch.misses` health checks in a row. Return the reason
    as text for a message.
    """
    missed = 0
    while missed < watch.misses:
        try:
            async with asyncio.timeout(watch.every_s):
                await process.ended()
                return process.end
        except TimeoutError:
            missed = 0 if await process.answers(watch.within_s) else missed + 1
    return "does not answer its health check"
