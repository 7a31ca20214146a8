"""An append-only log: a record is one write, and a sync is shared by all who wait for one."""

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec


class RunLog:
    """Writes on the event loop, syncs in a thread."""

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    def write(self, record: Any) -> None:
        """Append a record; it survives a kill when this returns."""
        os.write(self._fd, msgspec.json.encode(record) + b"\n")

    async def sync(self) -> None:
        """Wait for a sync that begins from now on; then what was written survives a power cut, too."""
        loop = asyncio.get_running_loop()
        self._waiting.append(done := loop.create_future())
        if self._syncing is None:
            self._syncing = loop.create_task(self._sync())
        await done

    async def _sync(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await asyncio.get_running_loop().run_in_executor(None, os.fdatasync, self._fd)
            for each in waiting:
                if not each.done():
                    each.set_result(None)
        self._syncing = None
