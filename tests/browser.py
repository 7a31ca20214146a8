"""Headless Chromium, controlled over its debugging protocol."""

import asyncio
import base64
import json
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium")
"""Chromium's program, or None."""
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-port=0"
).split()


class LeftPage(Exception):
    """The page was left meanwhile."""


class Tab:
    """A page of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []
        """All that its console tells of errors."""

    async def listen(self) -> None:
        """Receive the browser's messages until the connection is closed."""
        async for message in self._socket:
            reply = json.loads(message.data)
            if future := self._waiting.pop(reply.get("id"), None):
                if not future.done():
                    future.set_result(reply)
            elif reply.get("method") == "Page.loadEventFired":
                self._loaded.set()
            elif reply.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(reply["params"]["exceptionDetails"]))
            elif (
                reply.get("method") == "Log.entryAdded"
                and reply["params"]["entry"]["level"] == "error"
            ):
                self.complaints.append(str(reply["params"]["entry"]))
            elif reply.get("method") == "Runtime.consoleAPICalled" and reply["params"]["type"] in (
                "error",
                "assert",
            ):
                self.complaints.append(str(reply["params"]["args"]))

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol."""
        number = next(self._numbers)
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(30):
            reply = await future
        if reply.get("error", {}).get("code") == -32000:
            raise LeftPage(reply)
        assert "error" not in reply, (method, reply)
        return reply["result"]

    async def open(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await self.loaded()

    async def loaded(self) -> None:
        """Wait until the page after a click is loaded."""
        async with asyncio.timeout(30):
            await self._loaded.wait()

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression, or of its promise."""
        reply = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    async def leave(self, script: str) -> None:
        """Do what leads to another page, and wait for that page."""
        self._loaded.clear()
        await self.evaluate(script)
        await self.loaded()

    async def until(self, script: str, within_s: float = 20.0) -> Any:
        """Wait until an expression is true, on this page or the next."""
        async with asyncio.timeout(within_s):
            promise = (
                f"new Promise(go => {{ const look = () => ({script}) ? go() : "
                "setTimeout(look, 50); look() })"
            )
            while True:
                with suppress(LeftPage):
                    return await self.evaluate(promise)

    async def look(self, width: int, *, dark: bool = False) -> None:
        """Set the width, and the light or dark colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 640}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, max_height: int = 2400) -> bytes:
        """Return a picture of the page as PNG, limited in height."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(size["height"], max_height),
            "scale": 1,
        }
        reply = await self.call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )
        return base64.b64decode(reply["data"])


@asynccontextmanager
async def browsing_tab() -> AsyncIterator[Tab]:
    """Yield a tab of a new browser with an empty profile."""
    assert CHROMIUM, "chromium is not installed"
    async with AsyncExitStack() as stack:
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        process = await asyncio.create_subprocess_exec(
            CHROMIUM,
            *_FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        stack.push_async_callback(process.wait)
        stack.callback(process.terminate)
        port_file = Path(profile) / "DevToolsActivePort"
        async with asyncio.timeout(30):
            while not port_file.exists() or not port_file.read_text():
                await asyncio.to_thread(time.sleep, 0.05)
        port = port_file.read_text().split()[0]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
            (target,) = [page for page in await response.json() if page["type"] == "page"]
        socket = await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)
        tab = Tab(socket)
        hearing = asyncio.create_task(tab.listen())
        for domain in ("Page", "Runtime", "Log"):
            await tab.call(f"{domain}.enable")
        yield tab
        await socket.close()
        await hearing


def axe() -> str | None:
    """Return the script of axe-core from the npm registry, or None if it is unavailable."""
    kept = Path(tempfile.gettempdir()) / "axe-core-4.10.3.tgz"
    if not kept.exists() and (npm := shutil.which("npm")):
        subprocess.run(
            [npm, "pack", "axe-core@4.10.3"],
            cwd=kept.parent,
            capture_output=True,
            check=False,
            timeout=120,
        )
    if not kept.exists():
        return None
    with tarfile.open(kept) as package:
        script = package.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


async def findings(tab: Tab, script: str) -> list[str]:
    """Return axe-core's serious findings on the current page."""
    await tab.evaluate(f"{script}; 0")
    violations = await tab.evaluate(
        "axe.run().then(found => found.violations.filter(one => ['serious', "
        "'critical'].includes(one.impact))"
        ".map(one => one.id + ': ' + one.nodes.map(node => node.html + ' ' + "
        "node.failureSummary).join('; ')))"
    )
    return list(violations)
