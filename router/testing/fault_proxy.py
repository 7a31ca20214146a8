"""Proxies that inject faults by a seed: calls are reset, refused in storms, never answered, cut or
garbled.

A proxy records the request id of each attempt and the upstream's own token count, to compare with
a ledger.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import blake2b
from itertools import repeat
from typing import Literal, get_args

import aiohttp
import msgspec
from aiohttp import web

from router.errors import UpstreamUnavailable
from router.models.openai_wire import REQUEST_ID
from router.protocol import Passage
from router.search import Retriever

Fault = Literal[
    "reset",
    "black_hole",
    "drip",
    "cut",
    "lying_usage",
    "invalid_utf8",
    "duplicated",
    "throttled",
    "overloaded",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
SEARCH_FAULTS: tuple[Fault, ...] = "reset", "black_hole", "drip", "overloaded"
STORMS: dict[Fault, int] = {"throttled": 429, "overloaded": 503}
"""Faults that hit all calls for a while, with their HTTP status."""
State = Literal["well", "gone", "silent"]
"""`gone`: the port is closed; `silent`: calls are accepted and never answered."""
_STORM_WEIGHT = 0.1
"""Likelihood of a storm relative to another fault, as it hits many calls."""
_STORM_S = (0.2, 1.5)
"""Shortest and longest duration of a storm, in seconds."""
_DATA = b"data: {"
_LIES: tuple[object, ...] = (
    -1,
    0,
    10**6,
    2**63,
    10**30,
    1.5,
    float("1e308"),
    "many",
    None,
    [],
    {"total": 3},
    True,
)
_RETRY_AFTER = (None, "0", "1", "3600", "-5", "soon", "Wed, 21 Oct 2015 07:28:00 GMT")
_PASSED_ON = (REQUEST_ID, "Content-Type", "Authorization")
_DRIP_BYTES = 16
_DRIP_S = (0.005, 0.2)
"""Shortest and longest pause of a dripping reply, in seconds."""
_STUCK_SHARE = 0.5
"""Likelihood that another request than a completion hangs, relative to the plan's share."""


class FaultPlan:
    """Random sequence of faults, one for each call; the same seed gives the same faults."""

    def __init__(
        self,
        seed: str,
        share: float,
        faults: Iterable[Fault] = FAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share`: share of the calls at which a fault begins. `clock`: returns seconds."""
        self.chance = random.Random(seed)
        self.share = share
        self.seen = Counter[str]()
        """Number of calls by fault."""
        self.faults = tuple(faults)
        self._clock = clock
        self._weights = [_STORM_WEIGHT if fault in STORMS else 1.0 for fault in self.faults]
        self._storm: Fault | None = None
        self._storm_until = 0.0

    def next(self) -> Fault | None:
        """Draw the fault of the next call."""
        fault = self._draw() if self.share else None
        self.seen[fault or "none"] += 1
        return fault

    def _draw(self) -> Fault | None:
        if self._storm and self._clock() < self._storm_until:
            return self._storm
        self._storm = None
        if self.chance.random() >= self.share:
            return None
        fault = self.chance.choices(self.faults, self._weights)[0]
        if fault in STORMS:
            self._storm = fault
            self._storm_until = self._clock() + self.chance.uniform(*_STORM_S)
        return fault


def corrupted(
    line: bytes,
    fault: Fault | None,
    chance: random.Random,
) -> Iterator[bytes]:
    """Yield a line of an event stream with a fault that does not end the stream."""
    match fault if line.startswith(_DATA) else None:
        case "lying_usage":
            chunk = json.loads(line.removeprefix(b"data: "))
            names = ("prompt_tokens", "completion_tokens")
            lies: dict[str, object] = {
                name: chance.choice(_LIES)
                for name in (*names, "total_tokens")
                if chance.random() < 0.8
            }
            details = {"cached_tokens": chance.choice(_LIES)}
            if chance.random() < 0.3:
                lies["prompt_tokens_details"] = details
            chunk["usage"] = chance.choice(_LIES) if chance.random() < 0.1 else lies
            yield b"data: %b\n" % json.dumps(chunk).encode()
        case "invalid_utf8" if chance.random() < 0.5:
            at = chance.randrange(len(_DATA), len(line))
            yield line[:at] + chance.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80")) + line[at:]
        case "duplicated":
            yield from repeat(line + b"\n", chance.randint(1, 3))
        case _:
            yield line


class Counted(msgspec.Struct, frozen=True):
    """Upstream's own token count of one request."""

    prompt_tokens: int
    completion_tokens: int


class _Chunk(msgspec.Struct):
    usage: Counted | None = None


class _Asked(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()


class FaultProxy:
    """Proxy of one upstream that passes requests on unless its plan draws a fault."""

    def __init__(
        self,
        upstream: str,
        session: aiohttp.ClientSession,
        plan: FaultPlan,
    ) -> None:
        """`upstream`: base URL of the upstream."""
        self._root = upstream.removesuffix("/v1")
        self._session = session
        self.plan = plan
        self.state: State = "well"
        self.attempts: list[str] = []
        """Request ids, in order of arrival."""
        self.conversations: dict[str, bytes] = {}
        """Digests of the messages, by request id."""
        self.counted: dict[str, Counted] = {}
        """Token counts of streams that were passed on unchanged to their end, by request id."""
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def base_url(self) -> str:
        """Base URL of the proxy."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def become(self, state: State) -> None:
        """Change the state; `gone` breaks running calls."""
        self.state = state
        if state == "gone":
            await self.close()
        elif self._runner is None:
            await self.open()

    async def open(self) -> None:
        """Listen, on the same port as before."""
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.route("*", "/{path:.*}", self._other),
            ]
        )
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=4096).start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            runner = self._runner
            self._runner = None
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.attempts.append(request_id := request.headers.get(REQUEST_ID, ""))
        body = await request.read()
        fault = self.plan.next()
        self.conversations[request_id] = blake2b(
            msgspec.json.decode(body, type=_Asked).messages
        ).digest()
        if self.state == "silent" or fault == "black_hole":
            await asyncio.Event().wait()
        if fault == "reset":
            return _broken(request)
        if fault in STORMS:
            after = self.plan.chance.choice(_RETRY_AFTER)
            headers = {} if after is None else {"Retry-After": after}
            error = {"error": {"message": fault}}
            return web.json_response(error, status=STORMS[fault], headers=headers)
        try:
            async with self._asked(request, body) as reply:
                return await self._passed_on(request, reply, fault)
        except (aiohttp.ClientError, ConnectionError):  # of either side
            return _broken(request)

    async def _passed_on(
        self,
        request: web.Request,
        reply: aiohttp.ClientResponse,
        fault: Fault | None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            status=reply.status, headers={"Content-Type": reply.content_type}
        )
        await response.prepare(request)
        chance = self.plan.chance
        counted = None
        left = chance.randint(0, 6) if fault == "cut" else -1
        pause_s = chance.uniform(*_DRIP_S)
        async for line in reply.content:
            if left == 0:
                # Leaving the caller's context also closes the connection to the upstream
                return _broken(request)
            left -= bool(line.strip())
            if line.startswith(_DATA):
                counted = (
                    msgspec.json.decode(line.removeprefix(b"data: "), type=_Chunk).usage or counted
                )
            for piece in corrupted(line, fault, chance):
                if fault == "drip":
                    await _drip(response, piece, pause_s)
                else:
                    await response.write(piece)
        if counted and fault in (None, "drip"):
            self.counted[request.headers.get(REQUEST_ID, "")] = counted
        return response

    async def _other(self, request: web.Request) -> web.Response:
        """Pass on another request than a completion, such as a health check, or let it hang."""
        hangs = (
            "black_hole" in self.plan.faults
            and self.plan.chance.random() < self.plan.share * _STUCK_SHARE
        )
        if self.state == "silent" or hangs:
            self.plan.seen["stuck"] += 1
            await asyncio.Event().wait()
        async with self._asked(request, await request.read()) as reply:
            return web.Response(
                status=reply.status, body=await reply.read(), content_type=reply.content_type
            )

    @asynccontextmanager
    async def _asked(
        self, request: web.Request, body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url = self._root + request.path_qs
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, data=body, headers=headers, timeout=timeout
        ) as reply:
            yield reply


class FaultyRetriever:
    """Retriever that passes searches on unless its plan draws a fault."""

    def __init__(self, retriever: Retriever, plan: FaultPlan) -> None:
        self._retriever = retriever
        self._plan = plan

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
    ) -> list[list[Passage]]:
        """See `Retriever.search`."""
        match self._plan.next():
            case "black_hole":
                await asyncio.Event().wait()
            case "drip":
                await asyncio.sleep(self._plan.chance.uniform(0.1, 2.0))
            case None:
                pass
            case fault:
                raise UpstreamUnavailable(fault, endpoint="the fault proxy")
        return await self._retriever.search(queries, top_k, document)


@asynccontextmanager
async def fault_proxies(
    upstreams: Sequence[str],
    seed: int,
    faults: Iterable[Fault] = FAULTS,
) -> AsyncIterator[list[FaultProxy]]:
    """Run a proxy for each upstream, without faults yet, on free ports of the loopback."""
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        plans = [FaultPlan(f"{seed} {at}", 0.0, faults) for at in range(len(upstreams))]
        proxies = [
            FaultProxy(url, session, plan) for url, plan in zip(upstreams, plans, strict=True)
        ]
        for proxy in proxies:
            await proxy.open()
            stack.push_async_callback(proxy.close)
        yield proxies


def _broken(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _drip(
    response: web.StreamResponse,
    line: bytes,
    pause_s: float,
) -> None:
    for at in range(0, len(line), _DRIP_BYTES):
        await response.write(line[at : at + _DRIP_BYTES])
        await asyncio.sleep(pause_s)
