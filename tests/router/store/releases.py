"""Gateways of earlier releases, from the repository's history, and callers that ask while gateways
are upgraded.
"""

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import grpc
import pytest
from rolegate.client import AsyncClient, GatewayError

from benchmarks.load import question

ROOT = Path(__file__).parents[3]
EARLIER = {
    "before revisions": "9a2ac8c4e74f03b4017d32cea258cb5c3cecff68",
    "revision 0001": "f8baba8319b5fab82a7afd5273fb122ad271739b",
}
"""Commits with schema 8. The first knows no revisions, and its log's records have no version. The
second is the last one before the first revision that expands the schema. After a revision that
contracts it, other commits take their place.
"""
_STOPPING = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED
"""Statuses of requests that a stopping gateway refuses. Some releases cancel a request that arrives
at the moment at which they stop.
"""
_PAUSE_S = 0.05
_PATIENCE_S = 60.0
"""Seconds after which a caller gives up."""


def release(commit: str, folder: Path) -> Path:
    """Return a folder with the source of a commit. Skip the test if the history lacks it."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history lacks commit {commit} (git fetch --unshallow)")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


@asynccontextmanager
async def gateway(source: Path, config: Path) -> AsyncIterator[str]:
    """Run the gateway of a release while the context is open, and yield its address. On exit, it
    finishes its requests. Raises `ChildProcessError`, with what it says, if it does not start.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.gateway", str(config), "retriever"),
        cwd=source,
        env={**os.environ, "PYTHONPATH": f"{source}:{source / 'protos'}"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout and process.stderr
    try:
        if not (line := await process.stdout.readline()):
            raise ChildProcessError((await process.stderr.read()).decode())
        yield line.split()[0].decode()
    finally:
        await process.communicate(b"")  # closes its standard input, so that it stops


class Callers:
    """Callers that ask one question after another, at all gateways in turn. If a gateway is just
    stopping, they ask the next one, under the same `request_id`, as a client behind a load balancer
    does.
    """

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        """Answers that callers have received, by run."""
        self.failed: list[str] = []
        """Requests that ended without an answer."""
        self.retried = Counter[str]()
        """Number of attempts that met a gateway that was stopping or starting, by status."""
        self.slowest_s = 0.0
        """Seconds until an answer, with all attempts."""
        self.answered = Counter[str]()
        """Number of answers by the gateway's address."""
        self._addresses: list[str] = []
        self._open: dict[str, AsyncClient] = {}
        self._clients = AsyncExitStack()
        self._numbers = count()
        self._turns = count()
        self._news = asyncio.Condition()

    @asynccontextmanager
    async def served_by(self, source: Path, config: Path) -> AsyncIterator[str]:
        """Run a gateway of a release, and let callers use it, while the context is open. They do so
        until it has stopped.
        """
        async with gateway(source, config) as address:
            self._addresses.append(address)
            yield address
        self._addresses.remove(address)

    @asynccontextmanager
    async def asking(self, callers: int) -> AsyncIterator[None]:
        """Keep asking while the context is open; on exit, wait until all requests have ended."""
        stopped = asyncio.Event()
        async with AsyncExitStack() as self._clients, asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(self._keep_asking(stopped))
            try:
                yield
            finally:
                stopped.set()

    async def until(self, answers: int, *addresses: str) -> None:
        """Wait until each of these gateways has given so many more answers."""
        wanted = {address: self.answered[address] + answers for address in addresses}
        async with self._news:
            await self._news.wait_for(
                lambda: all(self.answered[address] >= wanted[address] for address in addresses)
            )

    async def _keep_asking(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            text = question(next(self._numbers))
            begun = time.perf_counter()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    while not await self._answered(text):  # noqa: ASYNC110
                        await asyncio.sleep(_PAUSE_S)
            except (GatewayError, TimeoutError) as error:
                self.failed.append(f"{text} {error!r}")
            self.slowest_s = max(self.slowest_s, time.perf_counter() - begun)
            async with self._news:
                self._news.notify_all()

    async def _answered(self, text: str) -> bool:
        """Ask a gateway, and return whether there is an answer."""
        if not self._addresses:
            return False
        address = self._addresses[next(self._turns) % len(self._addresses)]
        if address not in self._open:
            self._open[address] = await self._clients.enter_async_context(AsyncClient(address))
        try:
            answer = await self._open[address].ask(text, _PATIENCE_S, request_id=text)
        except GatewayError as error:
            if error.code not in _STOPPING:
                raise
            self.retried[error.code.name] += 1
            return False
        self.answers[answer.run_id] = answer.answer
        self.answered[address] += 1
        return True
