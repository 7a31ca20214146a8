"""Somebody who has the gateway's pages open: `python -m benchmarks.pages ADDRESS`, which is that of HTTP.

For each line of its standard input, the number of pages to be open from then on, it closes those that are, and prints
how many requests it has sent since the last line and how many server-sent events it has got. It does as the pages have
a browser do: the list of runs is polled, a run that goes on is followed by its events until it ends and is then loaded
anew, and `/usage` and `/ask` just stay open. Whoever follows a run goes on to the next one a while after its end.
"""

import asyncio
import html
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from itertools import cycle, islice

import aiohttp
import msgspec
import uvloop

_POLLED = re.compile(r'hx-get="([^"]+)" hx-trigger="every (\d+)s"')
_THROTTLED = re.compile(r'hx-get="([^"]+)" hx-trigger="sse:changed throttle:(\d+)s"')
_RUN = re.compile(r'<a id="([^"]+)"')
_LOOKED_AT_S, _NONE_YET_S = 3.0, 0.5


class Browser:
    """Its open pages."""

    def __init__(self, session: aiohttp.ClientSession, seed: int = 0) -> None:
        self._session, self._chance = session, random.Random(seed)
        self.seen: Counter[str] = Counter()

    async def list(self) -> None:
        """The list of runs, which polls."""
        text = await self._get("/runs")
        while found := _POLLED.search(text):
            await asyncio.sleep(float(found[2]))
            text = await self._get(html.unescape(found[1]), "/runs") or text

    async def run(self) -> None:
        """Pages of runs that go on, as one looks at what is done."""
        await self._follow("/runs/")

    async def asked(self) -> None:
        """The box for questions, and then pages of answers, as after asking there."""
        await self._get("/ask")
        await self._follow("/ask/")

    async def usage(self) -> None:
        """The sums."""
        await self._get("/usage")

    async def _follow(self, under: str) -> None:
        while True:
            running = _RUN.findall(await self._get("/runs?status=running"))
            if not running:
                await asyncio.sleep(_NONE_YET_S)
                continue
            run_id = self._chance.choice(running)
            page = f"{under}{run_id}"
            throttled, changed_at = _THROTTLED.search(await self._get(page)), 0.0
            async for event in self._events(f"/runs/{run_id}/events"):
                if event == "changed" and throttled and time.monotonic() - changed_at >= float(throttled[2]):
                    changed_at = time.monotonic()
                    await self._get(throttled[1], page)
            await self._get(page, page)  # which has the page loaded anew
            await self._get(page)
            await asyncio.sleep(_LOOKED_AT_S)

    async def _get(self, path: str, of: str = "") -> str:
        """The text of a page, or a part of the page `of`, as htmx asks for it."""
        self.seen["requests"] += 1
        headers = {"HX-Request": "true", "HX-Current-URL": of} if of else {}
        async with self._session.get(path, headers=headers) as response:
            return await response.text()

    async def _events(self, path: str) -> AsyncIterator[str]:
        self.seen["requests"] += 1
        async with self._session.get(path, headers={"Accept": "text/event-stream"}) as response:
            async for line in response.content:
                if line.startswith(b"event: "):
                    self.seen["events"] += 1
                    yield line[7:].strip().decode()


async def _browse(address: str) -> None:
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(address, raise_for_status=True, timeout=timeout, connector=connector) as session:
        browser = Browser(session)
        print("ready", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        while line:
            kinds = cycle((browser.list, browser.run, browser.run, browser.usage, browser.asked))
            print(msgspec.json.encode(browser.seen).decode(), flush=True)
            browser.seen.clear()
            tasks = [asyncio.create_task(kind()) for kind in islice(kinds, int(line))]
            line = await asyncio.to_thread(sys.stdin.readline)
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended


if __name__ == "__main__":
    uvloop.run(_browse(*sys.argv[1:]))
