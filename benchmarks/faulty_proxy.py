"""A proxy in front of an engine that fails now and then, and remembers what the engine counted for each request."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgspec
from aiohttp import web

_TIMEOUT = aiohttp.ClientTimeout(total=None)


class Counted(msgspec.Struct, frozen=True):
    """An engine's count of one request."""

    prompt_tokens: int
    completion_tokens: int


class _Chunk(msgspec.Struct):
    id: str = ""
    usage: Counted | None = None


class FaultyProxy:
    """Passes on what it is asked, but refuses some requests (503) and breaks off some streams."""

    def __init__(self, engine: str, session: aiohttp.ClientSession, chance: random.Random) -> None:
        """`engine`: its base URL."""
        self._root, self._session, self._chance = engine.removesuffix("/v1"), session, chance
        self.refuse = self.cut = 0.0
        """The shares of requests."""
        self.refused = self.broken = 0
        self.counted: dict[str, Counted] = {}
        """By the identifier that the engine gave, of requests that were answered whole."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """A streamed completion."""
        if self._chance.random() < self.refuse:
            self.refused += 1
            return web.json_response({"error": {"message": "overloaded"}}, status=503)
        pieces_left = self._chance.randint(1, 6) if self._chance.random() < self.cut else -1
        async with self._session.post(
            self._root + request.path, data=await request.read(), headers=_passed_on(request), timeout=_TIMEOUT
        ) as reply:
            response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.content_type})
            await response.prepare(request)
            async for line in reply.content:
                if line.startswith(b"data:") and pieces_left == 0:
                    self.broken += 1
                    assert request.transport is not None
                    request.transport.abort()
                    return response  # leaving the context closes the connection to the engine, too
                pieces_left -= line.startswith(b"data:")
                with suppress(aiohttp.ClientConnectionResetError):  # the client has left
                    await response.write(line)
                self._note(line)
            return response

    async def other(self, request: web.Request) -> web.Response:
        """Whatever else is asked of the engine."""
        url, body = self._root + request.path_qs, await request.read()
        async with self._session.request(request.method, url, data=body, headers=_passed_on(request)) as reply:
            return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)

    def _note(self, line: bytes) -> None:
        if line.startswith(b"data: {"):
            chunk = msgspec.json.decode(line.removeprefix(b"data: "), type=_Chunk)
            if chunk.usage is not None:
                self.counted[chunk.id] = chunk.usage


def _passed_on(request: web.Request) -> dict[str, str]:
    wanted = ("X-Request-Id", "Content-Type", "Authorization")
    return {name: request.headers[name] for name in wanted if name in request.headers}


@asynccontextmanager
async def faulty_proxy(engine: str, chance: random.Random) -> AsyncIterator[tuple[str, FaultyProxy]]:
    """A proxy on a free port of the loopback, and its base URL."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        proxy = FaultyProxy(engine, session, chance)
        app = web.Application()
        app.add_routes([web.post("/v1/chat/completions", proxy.complete), web.route("*", "/{path:.*}", proxy.other)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", proxy
        finally:
            await runner.cleanup()
