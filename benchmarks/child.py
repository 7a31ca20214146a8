"""A module of ours as a child process that prints where it listens and goes on until its standard input ends."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from router.errors import RolegateError


class Child:
    """A running child."""

    def __init__(self, process: asyncio.subprocess.Process, told: list[str]) -> None:
        self._process, self.told = process, told

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def kill(self) -> None:
        """Kill it at once (SIGKILL)."""
        self._process.kill()

    async def ended(self) -> None:
        """Wait for its end."""
        await self._process.wait()


@asynccontextmanager
async def child(module: str, *arguments: str) -> AsyncIterator[Child]:
    """`python -m module arguments…`, with the words of its first line. Raises `RolegateError` where it ends before."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise RolegateError(f"{module} ended before it was ready (code {await process.wait()}).")
        yield Child(process, line.decode().split())
    finally:
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
