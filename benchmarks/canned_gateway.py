"""A gateway in front of canned models, each in a process of its own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import aiohttp
from rolegate.client import AsyncClient

from benchmarks.asking import Ask
from benchmarks.canned_config import canned_config
from benchmarks.child import child
from benchmarks.process_meter import ProcessMeter

_STREAMS = 500
"""Questions of one connection; a server allows no more than 1,000."""


@dataclass(frozen=True, slots=True)
class CannedGateway:
    """Where it is, and what it uses."""

    address: str
    upstream: str
    """The models' base URL."""
    meter: ProcessMeter
    folder: Path
    """Holds its store."""

    @asynccontextmanager
    async def asking(self, at_once: int) -> AsyncIterator[Ask]:
        """Asks questions, over as many connections as so many at once need."""
        async with AsyncExitStack() as stack:
            connections = -(-at_once // _STREAMS)
            clients = [await stack.enter_async_context(AsyncClient(self.address)) for _ in range(connections)]
            turns = cycle(clients)

            async def ask(number: int) -> str:
                return (await next(turns).ask(f"When was the director of film number {number} born?")).run_id

            yield ask

    async def busy_s(self) -> dict[str, float]:
        """By run, for how long a model was at work on it; of runs that were not told of yet."""
        url = f"{self.upstream.removesuffix('/v1')}/busy"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            told: dict[str, float] = await response.json()
            return told


@asynccontextmanager
async def canned_gateway(folder: Path, *pace: str) -> AsyncIterator[CannedGateway]:
    """One with a new store in `folder`. `pace`: the models', as their module's command line has it."""
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(child("benchmarks.canned_upstream", *pace))
        base_url, retrieval = upstream.told
        folder.mkdir()
        config = canned_config(folder, base_url, retrieval, f"sqlite:///{folder}/runs.db", reuse=True)
        gateway = await stack.enter_async_context(child("benchmarks.gateway_child", str(config)))
        yield CannedGateway(gateway.told[0], base_url, ProcessMeter(gateway.pid), folder)
