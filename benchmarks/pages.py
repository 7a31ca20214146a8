"""Somebody who has the gateway's pages open: `python -m benchmarks.pages ADDRESS`, which is that of
HTTP.

For each line of its input, the number of pages to be open from then on, it closes those that are,
and prints how many requests it has sent since the last line and how many server-sent events it has
got. It does as pages have a browser do: the list polls, a run is followed by its events to its end
and then loaded anew, `/usage` stays as it is. Three seconds after a run has ended, whoever followed
it goes by the list to another one.
"""

import asyncio
import html
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import cycle, islice
from typing import Any

import aiohttp
import msgspec
import uvloop

_POLLED = re.compile(r'hx-get="([^"]+)" hx-trigger="every (\d+)s"')
_THROTTLED = re.compile(r'hx-get="([^"]+)" hx-trigger="sse:changed throttle:(\d+)s"')
_RUN = re.compile(r'<a id="([^"]+)"')
_Kind = Callable[[], Coroutine[Any, Any, Any]]
_LOOKED_AT_S = 3.0
_NONE_YET_S = 0.5


class Browser:
    """Its open pages."""

    def __init__(self, session: aiohttp.ClientSession, seed: int = 0) -> None:
        self._session = session
        self._chance = random.Random(seed)
        self.seen: Counter[str] = Counter()

    async def get(self, path: str, of: str = "") -> str:
        """The text of a page, or a part of the page `of`, as htmx asks for it."""
        self.seen["requests"] += 1
        async with self._session.get(
            path, headers={"HX-Request": "true", "HX-Current-URL": of} if of else {}
        ) as response:
            return await response.text()

    async def list(self) -> None:
        """The list of runs, which polls."""
        text = await self.get("/runs")
        while found := _POLLED.search(text):
            await asyncio.sleep(float(found[2]))
            text = await self.get(html.unescape(found[1]), "/runs") or text

    async def follow(self, under: str) -> None:
        """One run after the other that goes on, on its page, or under `/ask` as those see it
        who asked there.
        """
        if under == "/ask":
            await self.get(under)
        while True:
            if not (running := _RUN.findall(await self.get("/runs?status=running"))):
                await asyncio.sleep(_NONE_YET_S)
                continue
            page = f"{under}/{(run_id := self._chance.choice(running))}"
            throttled = _THROTTLED.search(await self.get(page))
            changed_at = 0.0
            self.seen["requests"] += 1
            async with self._session.get(f"/runs/{run_id}/events") as events:
                async for line in events.content:
                    self.seen["events"] += line.startswith(b"event: ")
                    changed = line == b"event: changed\n"
                    if (
                        throttled
                        and changed
                        and time.monotonic() - changed_at >= float(throttled[2])
                    ):
                        changed_at = time.monotonic()
                        await self.get(throttled[1], page)
            await self.get(page, page)  # which has the page loaded anew
            await self.get(page)
            await asyncio.sleep(_LOOKED_AT_S)


async def _browse(address: str) -> None:
    async with aiohttp.ClientSession(
        address, raise_for_status=True, timeout=aiohttp.ClientTimeout(None)
    ) as session:
        browser = Browser(session)
        run = partial(browser.follow, "/runs")
        asked = partial(browser.follow, "/ask")
        kinds: tuple[_Kind, ...] = (browser.list, run, run, partial(browser.get, "/usage"), asked)
        tasks: list[asyncio.Task[Any]] = []
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
            print(msgspec.json.encode(browser.seen).decode(), flush=True)
            browser.seen.clear()
            tasks = [asyncio.create_task(kind()) for kind in islice(cycle(kinds), int(line))]


if __name__ == "__main__":
    uvloop.run(_browse(*sys.argv[1:]))
