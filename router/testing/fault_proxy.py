"""Proxies for tests. They inject random faults between the gateway and model endpoints: connections
are reset, calls are refused for a while or never answered, and replies are cut off, slowed down or
garbled. The same seed gives the same faults.

A proxy also records the request id of each attempt and the endpoint's own token counts, so that a
test can compare them with the ledger.
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
from router.frozen import Frozen
from router.models.openai_wire import REQUEST_ID
from router.protocol import Passage
from router.search.retrieval import IndexRetriever
from router.testing.openai_server import fails, hang, reset, served
from router.trace.scope import NO_FILTER, DocumentFilter

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
"""Kind of a fault. `reset`: the connection is reset. `black_hole`: the call is never answered.
`drip`: the reply arrives in small pieces, with pauses. `cut`: the reply ends early. `lying_usage`:
the token counts are wrong. `invalid_utf8`: lines contain invalid bytes. `duplicated`: lines are
repeated. `throttled`, `overloaded`: calls are refused (see `STORMS`).
"""
FAULTS: tuple[Fault, ...] = get_args(Fault)
SEARCH_FAULTS: tuple[Fault, ...] = "reset", "black_hole", "drip", "overloaded"
STORMS: dict[Fault, int] = {"throttled": 429, "overloaded": 503}
"""Faults that occur as storms, with the HTTP status of each. During a storm, all calls are refused
with this status.
"""
_STORM_WEIGHT = 0.1
"""Weight of each storm in the random choice of a fault; other faults have the weight 1. It is low,
because a storm affects many calls.
"""
_STORM_S = (0.2, 1.5)
"""Shortest and longest duration of a storm, in seconds."""
_DATA = b"data: {"
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
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
"""Shortest and longest pause between two pieces of a reply with the fault `drip`, in seconds."""
_STUCK_SHARE = 0.5
"""Factor for the probability that a request other than a completion, such as a health check, hangs:
the product of this factor and the plan's `share`.
"""


class FaultPlan:
    """Random sequence of faults, one for each call. The same seed gives the same sequence."""

    def __init__(
        self,
        seed: str,
        share: float,
        faults: Iterable[Fault] = FAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share`: probability that a call gets a fault or begins a storm, from 0 to 1. `clock`:
        returns the current time in seconds.
        """
        self.chance = random.Random(seed)
        self.share = share
        self.seen = Counter[str]()
        """Number of calls by fault. The key `none` counts calls without a fault. The key `stuck`
        counts hanging requests other than completions.
        """
        self.faults = tuple(faults)
        self._clock = clock
        self._weights = [_STORM_WEIGHT if fault in STORMS else 1.0 for fault in self.faults]
        self._storm: Fault | None = None
        self._storm_until = 0.0

    def next(self) -> Fault | None:
        """Return the fault of the next call; None if it has none."""
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


def corrupted(line: bytes, fault: Fault | None, chance: random.Random) -> Iterator[bytes]:
    """Yield one line of an event stream, in one or more pieces, changed by `fault`. Faults that
    refuse a call or end its stream do not change lines.
    """
    match fault if line.startswith(_DATA) else None:
        case "drip":
            for at in range(0, len(line), _DRIP_BYTES):
                yield line[at : at + _DRIP_BYTES]
        case "lying_usage":
            chunk = json.loads(line.removeprefix(b"data: "))
            lies: dict[str, object] = {
                name: chance.choice(_LIES) for name in _COUNTS if chance.random() < 0.8
            }
            if chance.random() < 0.3:
                lies["prompt_tokens_details"] = {"cached_tokens": chance.choice(_LIES)}
            chunk["usage"] = chance.choice(_LIES) if chance.random() < 0.1 else lies
            yield b"data: %b\n" % json.dumps(chunk).encode()
        case "invalid_utf8" if chance.random() < 0.5:
            at = chance.randrange(len(_DATA), len(line))
            yield line[:at] + chance.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80")) + line[at:]
        case "duplicated":
            yield from repeat(line + b"\n", chance.randint(1, 3))
        case _:
            yield line


class Counted(Frozen):
    """Token counts of one request as the upstream reported them."""

    prompt_tokens: int
    completion_tokens: int


class Attempt(msgspec.Struct):
    """A completion request that reached a proxy."""

    deployment: str
    """Base URL of the proxy that received the request."""
    request_id: str
    conversation: bytes = b""
    """Digest of the request's messages."""
    counted: Counted | None = None
    """Token counts that the upstream reported in a stream, if the proxy passed the stream on
    completely and unchanged; None for all other replies.
    """


class _Chunk(msgspec.Struct):
    usage: Counted | None = None


class _Asked(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()


class FaultProxy:
    """Proxy of one upstream. It passes requests on unchanged, unless its plan has a fault for the
    call.
    """

    base_url: str

    def __init__(self, upstream: str, session: aiohttp.ClientSession, plan: FaultPlan) -> None:
        """`upstream`: base URL of the upstream. `session`: makes the requests to the upstream.
        `plan`: the faults.
        """
        self._root = upstream.removesuffix("/v1")
        self._session = session
        self.plan = plan
        self.attempts = list[Attempt]()
        """All completion requests, in the order of arrival."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FaultProxy"]:
        """Listen on a free port of the loopback interface while the context is open."""
        complete = web.post("/v1/chat/completions", self._complete)
        async with served(complete, web.route("*", "/{path:.*}", self._other)) as self.base_url:
            yield self

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        attempt = Attempt(self.base_url, request.headers.get(REQUEST_ID, ""))
        self.attempts.append(attempt)
        body = await request.read()
        fault = self.plan.next()
        messages = msgspec.json.decode(body, type=_Asked).messages
        attempt.conversation = blake2b(messages).digest()
        if fault == "black_hole":
            await hang(request)
        if fault == "reset":
            return await reset(request)
        if fault in STORMS:
            retry_after = self.plan.chance.choice(_RETRY_AFTER)
            return await fails(STORMS[fault], fault, retry_after)(request)
        return await self._passed_on(request, fault, attempt)

    async def _other(self, request: web.Request) -> web.StreamResponse:
        """Pass on a request other than a completion, such as a health check, or let it hang."""
        stuck_share = self.plan.share * _STUCK_SHARE if "black_hole" in self.plan.faults else 0.0
        if self.plan.chance.random() < stuck_share:
            self.plan.seen["stuck"] += 1
            await hang(request)
        return await self._passed_on(request, None, Attempt(self.base_url, ""))

    async def _passed_on(
        self, request: web.Request, fault: Fault | None, attempt: Attempt
    ) -> web.StreamResponse:
        """Pass a request on to the upstream, and the reply back to the client with `fault`. If the
        reply is passed on unchanged, set `attempt.counted` to its token counts.
        """
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        url = self._root + request.path_qs
        chance = self.plan.chance
        lines_left = chance.randint(0, 6) if fault == "cut" else -1
        pause_s = chance.uniform(*_DRIP_S) if fault == "drip" else 0.0
        counted = None
        try:
            async with self._session.request(
                request.method, url, data=await request.read(), headers=headers
            ) as reply:
                response = web.StreamResponse(
                    status=reply.status, headers={"Content-Type": reply.content_type}
                )
                await response.prepare(request)
                async for line in reply.content:
                    if lines_left == 0:
                        # Leaving the `async with` also closes the connection to the upstream
                        return await reset(request)
                    lines_left -= bool(line.strip())
                    if line.startswith(_DATA):
                        chunk = msgspec.json.decode(line.removeprefix(b"data: "), type=_Chunk)
                        counted = chunk.usage or counted
                    for piece in corrupted(line, fault, chance):
                        await response.write(piece)
                        await asyncio.sleep(pause_s)
        except (aiohttp.ClientError, ConnectionError):  # the upstream's or the client's connection
            return await reset(request)
        if fault in (None, "drip"):
            attempt.counted = counted
        return response


class FaultyRetriever(Frozen):
    """Retriever that passes searches on to another retriever, unless its plan has a fault for the
    search.
    """

    index_id = None
    """None, so that the reports of searches are never cached (see `IndexRetriever.index_id`)."""

    retriever: IndexRetriever
    plan: FaultPlan

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """See `IndexRetriever.search`."""
        match self.plan.next():
            case "black_hole":
                await asyncio.Event().wait()
            case "drip":
                await asyncio.sleep(self.plan.chance.uniform(0.1, 2.0))
            case None:
                pass
            case fault:
                raise UpstreamUnavailable(f"test fault {fault}", endpoint="FaultyRetriever")
        return await self.retriever.search(queries, top_k, document, only)


@asynccontextmanager
async def fault_proxies(
    upstreams: Sequence[str], seed: int, faults: Iterable[Fault] = FAULTS
) -> AsyncIterator[list[FaultProxy]]:
    """Run a proxy for each of the base URLs `upstreams`, on free ports of the loopback interface.

    The proxies inject no faults until a test sets `plan.share` above 0. `seed`: seed of the plans;
    the same seed gives the same faults. `faults`: the faults from which the plans choose.
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        )
        yield [
            await stack.enter_async_context(
                FaultProxy(url, session, FaultPlan(f"{seed} {at}", 0.0, faults)).running()
            )
            for at, url in enumerate(upstreams)
        ]
