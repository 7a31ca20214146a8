"""What a process uses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil

from router.runs.live import meanwhile

_EVERY_S = 0.1


@dataclass(slots=True)
class Used:
    """What it used while it was watched; known at the end."""

    cpu_s: float = 0.0
    """In user mode and in the kernel."""
    grown_bytes: int = 0
    """How much more memory of its own it had at most than at the beginning."""


class ProcessMeter:
    """Watches one process from outside."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU so far, in user mode and in the kernel."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @property
    def own_bytes(self) -> int:
        """Its memory that it shares with nobody."""
        return int(self._process.memory_full_info().uss)

    @property
    def rss_bytes(self) -> int:
        """Its memory, with what it shares."""
        return int(self._process.memory_info().rss)

    @property
    def descriptors(self) -> int:
        """Its open files and sockets."""
        return int(self._process.num_fds())

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Used]:
        """What is used while this is open."""
        used, cpu_s, before = Used(), self.cpu_s, self.own_bytes

        async def look() -> None:
            while True:
                await asyncio.sleep(_EVERY_S)
                used.grown_bytes = max(used.grown_bytes, self.own_bytes - before)

        async with meanwhile(look()):
            yield used
        used.cpu_s = self.cpu_s - cpu_s
