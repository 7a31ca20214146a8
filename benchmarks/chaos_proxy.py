"""A fault proxy before each upstream of a gateway, in a process of their own: `python -m benchmarks.chaos_proxy URL…`.

It prints the base URL of each proxy, in the order of the upstreams', the address of the retrieval's, where there is
one, and last where it takes orders: `GET /seen` tells which attempts came to which proxy, and what went wrong with
them, `POST /share/0.05` sets the share of calls that do, and `POST /state/2/gone` the state of the third proxy:
`gone` (nobody listens), `silent` (it takes calls and never answers) or `well`.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import aiohttp
import msgspec
from aiohttp import web

from benchmarks.fault_plan import STORMS, Fault, FaultPlan, Storm, spoiled
from router.edge.grpc.server import Server
from router.errors import UpstreamUnavailable
from router.models.openai_wire import REQUEST_ID
from router.protocol.evidence import Passage
from router.search.retrieval import Retriever
from serving.logs import errors_only
from serving.retrieval.remote import RemoteRetriever
from serving.retrieval.services import RetrievalServicer

State = Literal["well", "gone", "silent"]
_LEFT = aiohttp.ClientError, ConnectionError
_TIMEOUT = aiohttp.ClientTimeout(total=None)
_PASSED_ON = (REQUEST_ID, "Content-Type", "Authorization")
_DRIP_BYTES, _DRIP_S = 16, (0.005, 0.2)
_STUCK_SHARE = 0.5


class Seen(msgspec.Struct, frozen=True):
    """What came to a proxy."""

    attempts: list[str]
    """Their request ids, in the order of coming."""
    faults: dict[str, int]


class AllSeen(msgspec.Struct, frozen=True):
    """What a process of proxies has seen."""

    proxies: list[Seen]
    retrieval: dict[str, int]


class ChaosProxy:
    """Passes on what it is asked, unless the plan says otherwise."""

    def __init__(self, upstream: str, session: aiohttp.ClientSession, plan: FaultPlan) -> None:
        """`upstream`: its base URL."""
        self._root, self._session, self.plan = upstream.removesuffix("/v1"), session, plan
        self.state: State = "well"
        self.attempts: list[str] = []
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def become(self, state: State) -> None:
        """Change; `gone` breaks what is under way."""
        self.state = state
        if state == "gone":
            await self.close()
        elif self._runner is None:
            await self.open()

    async def open(self) -> None:
        """Listen, where it did before."""
        app = web.Application(client_max_size=64 << 20)
        app.add_routes([web.post("/v1/chat/completions", self._complete), web.route("*", "/{path:.*}", self._other)])
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096).start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.attempts.append(request.headers.get(REQUEST_ID, ""))
        body = await request.read()
        fault = self.plan.next()
        if self.state == "silent" or fault == "black_hole":
            await asyncio.Event().wait()
        if fault == "reset":
            return _broken(request)
        if fault in STORMS:
            return self._turned_away(fault)
        try:
            async with self._asked(request, body) as reply:
                return await self._passed_on(request, reply, fault)
        except _LEFT:  # of either side
            return _broken(request)

    def _turned_away(self, storm: Storm) -> web.Response:
        error = {"error": {"message": storm}}
        return web.json_response(error, status=STORMS[storm], headers=self.plan.retry_after())

    async def _passed_on(
        self, request: web.Request, reply: aiohttp.ClientResponse, fault: Fault | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.headers["Content-Type"]})
        await response.prepare(request)
        chance, pieces = self.plan.chance, reply.content.iter_any() if fault is None else reply.content
        left = chance.randint(0, 6) if fault == "cut" else -1
        pause_s = chance.uniform(*_DRIP_S)
        async for piece in pieces:
            for line in spoiled([piece], fault, chance) if fault else [piece]:
                if left == 0:
                    return _broken(request)  # leaving the context closes the connection to the upstream, too
                left -= bool(line.strip())
                if fault == "drip":
                    await _drip(response, line, pause_s)
                else:
                    await response.write(line)
        return response

    async def _other(self, request: web.Request) -> web.Response:
        """Whatever else is asked of an engine, such as its health; half of all faults let it hang."""
        if self.state == "silent" or self.plan.chance.random() < self.plan.share * _STUCK_SHARE:
            self.plan.seen["stuck"] += 1
            await asyncio.Event().wait()
        async with self._asked(request, await request.read()) as reply:
            return web.Response(status=reply.status, body=await reply.read(), content_type=reply.content_type)

    @asynccontextmanager
    async def _asked(self, request: web.Request, body: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url = self._root + request.path_qs
        async with self._session.request(request.method, url, data=body, headers=headers, timeout=_TIMEOUT) as reply:
            yield reply


class FaultyRetriever:
    """Passes searches on, unless the plan says otherwise."""

    def __init__(self, retriever: Retriever, plan: FaultPlan) -> None:
        self._retriever, self._plan = retriever, plan

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """As `Retriever.search`."""
        match self._plan.next():
            case "black_hole":
                await asyncio.Event().wait()
            case "drip":
                await asyncio.sleep(self._plan.chance.uniform(0.1, 2.0))
            case None:
                pass
            case fault:
                raise UpstreamUnavailable(fault, endpoint="the fault proxy")
        return await self._retriever.search(queries, top_k)


def _broken(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _drip(response: web.StreamResponse, line: bytes, pause_s: float) -> None:
    for at in range(0, len(line), _DRIP_BYTES):
        await response.write(line[at : at + _DRIP_BYTES])
        await asyncio.sleep(pause_s)


@asynccontextmanager
async def chaos_proxies(upstreams: Sequence[str], seed: int) -> AsyncIterator[list[ChaosProxy]]:
    """One before each upstream, all well, on free ports of the loopback."""
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        proxies = [ChaosProxy(url, session, FaultPlan(f"{seed} {at}", 0.0)) for at, url in enumerate(upstreams)]
        for proxy in proxies:
            await proxy.open()
            stack.push_async_callback(proxy.close)
        yield proxies


async def _serve(given: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        proxies = await stack.enter_async_context(chaos_proxies(given.upstreams, given.seed))
        told = [proxy.base_url for proxy in proxies]
        searching = FaultPlan(f"{given.seed} retrieval", 0.0, ("reset", "black_hole", "drip", "overloaded"))
        if given.retrieval:
            retriever = RemoteRetriever(given.retrieval, timeout_s=30.0)
            stack.push_async_callback(retriever.close)
            server = Server(None, RetrievalServicer(FaultyRetriever(retriever, searching)))
            told.append(f"127.0.0.1:{await server.start('127.0.0.1:0')}")
            stack.push_async_callback(server.drain, 0)
        told.append(await stack.enter_async_context(_taking_orders(proxies, searching)))
        print(*told, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def _taking_orders(proxies: Sequence[ChaosProxy], searching: FaultPlan) -> AsyncIterator[str]:
    async def seen(_request: web.Request) -> web.Response:
        told = AllSeen([Seen(proxy.attempts, dict(proxy.plan.seen)) for proxy in proxies], dict(searching.seen))
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")

    async def share(request: web.Request) -> web.Response:
        for plan in (searching, *(proxy.plan for proxy in proxies)):
            plan.share = float(request.match_info["share"])
        return web.Response()

    async def state(request: web.Request) -> web.Response:
        await proxies[int(request.match_info["at"])].become(msgspec.convert(request.match_info["state"], State))
        return web.Response()

    app = web.Application()
    app.add_routes(
        [web.get("/seen", seen), web.post("/share/{share}", share), web.post(r"/state/{at:\d+}/{state}", state)]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("upstreams", nargs="+", metavar="URL")
    parser.add_argument("--retrieval", metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=0)
    errors_only()
    asyncio.run(_serve(parser.parse_args()))
