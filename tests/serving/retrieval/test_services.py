"""Retrieval over HTTP and gRPC, server and client."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from rolegate.v1.retrieval_service_pb2 import SearchRequest, SearchResponse
from rolegate.v1.retrieval_service_pb2_grpc import (
    RetrievalServiceServicer,
    RetrievalServiceStub,
    add_RetrievalServiceServicer_to_server,
)

from router.calls import Readiness
from router.edge.grpc.interceptor import CallInterceptor
from router.edge.http.server import HTTPServer
from router.errors import (
    BadRequest,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.protocol import Passage
from router.search import Indexes
from router.trace.scope import DEFAULT_INDEX
from serving.config.config import RetrievalConfig
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index
from serving.retrieval.opening import open_retriever
from serving.retrieval.remote import RemoteRetriever
from serving.retrieval.searcher import IndexSearcher
from serving.retrieval.services import (
    MAX_BODY_BYTES,
    RetrievalServicer,
    checked_top_k,
    retrieval_app,
)
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import PlainRetriever, Unfiltered

PASSAGES = [
    Passage(str(number), f"Title {number}", f"Text {number}", 0.5 - number / 10)
    for number in range(5)
]
DOCUMENTS = [
    {"id": str(number), "contents": f'"Title {number}"\nText {number}'} for number in range(5)
]
FIXED = {"known": PASSAGES}


class FailingRetriever:
    """A retriever that is unavailable so many times, and then finds nothing."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.asked = 0

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        self.asked += 1
        self.left -= 1
        if self.left >= 0:
            raise UpstreamUnavailable("refused", endpoint="10.0.0.7:50051")
        return [[] for _ in queries]


class StuckRetriever:
    """A retriever that never answers, and records calls and cancellations."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return []


@asynccontextmanager
async def http(retriever: PlainRetriever, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client session of a running application."""
    readiness: Readiness | None = options.pop("readiness", None)
    server = HTTPServer(retrieval_app(Unfiltered(retriever), readiness=readiness), 0.0, **options)
    async with aiohttp.ClientSession(
        f"http://{await server.start('127.0.0.1:0', '--http')}"
    ) as session:
        yield session
    await server.drain()


async def post(session: aiohttp.ClientSession, body: object) -> tuple[int, Any]:
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with session.post("/retrieve", data=data) as response:
        return response.status, await response.json()


@asynccontextmanager
async def served(retriever: PlainRetriever | Indexes | None, **options: Any) -> AsyncIterator[str]:
    """Yield the address of a gRPC server; None stands for one that sends empty responses."""
    server = grpc.aio.server(interceptors=[CallInterceptor()])
    servicer: RetrievalServiceServicer = ShortServicer()
    if retriever:
        searched = retriever if isinstance(retriever, Indexes) else Unfiltered(retriever)
        servicer = RetrievalServicer(searched, **options)
    add_RetrievalServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class ShortServicer(RetrievalServiceServicer):
    """A servicer that sends empty responses."""

    async def Search(
        self,
        request: SearchRequest,
        context: grpc.aio.ServicerContext[SearchRequest, SearchResponse],
    ) -> SearchResponse:
        return SearchResponse()


@asynccontextmanager
async def remote(
    retriever: PlainRetriever | Indexes | None, **options: Any
) -> AsyncIterator[RemoteRetriever]:
    """Yield a client of such a server."""
    async with served(retriever, **options) as address:
        client = RemoteRetriever(address, timeout_s=30.0)
        try:
            yield client
        finally:
            await client.close()


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (
            {"queries": ["known", "unknown"], "topk": 1, "return_scores": True},
            [[{"document": DOCUMENTS[0], "score": 0.5}], []],
        ),
        ({"queries": ["known"]}, [DOCUMENTS[:3]]),
        ({"query_list": ["known"], "k": 2}, [DOCUMENTS[:2]]),
    ],
)
async def test_requests_of_search_r1_and_flashrag_are_answered(
    body: object, result: object
) -> None:
    """Requests of Search-R1 have scores or not; the default is three passages."""
    async with http(FixedRetriever(FIXED)) as session:
        assert await post(session, body) == (200, {"result": result})


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "The body is invalid"),
        (b"{not json", 400, "The body is invalid"),
        (b'{"queries": ["caf\xe9"]}', 400, "The body is invalid"),
        ({"queries": "known"}, 400, "queries: must be a list, got text"),
        ({"topk": 3}, 400, 'exactly one of the fields "queries" and "query_list"'),
        (
            {"queries": ["known"], "query_list": ["known"]},
            400,
            'exactly one of the fields "queries" and "query_list"',
        ),
        ({"queries": []}, 400, "must be 1 to 256 queries, got 0"),
        ({"queries": ["known", ""]}, 400, "queries[1]: is empty"),
        ({"query_list": ["known"], "k": 101}, 400, "top_k: must be 1 to 100"),
        (b" " * (MAX_BODY_BYTES + 1), 413, "larger than 1048576 bytes"),
    ],
)
async def test_a_bad_body_is_refused(body: object, status: int, message: str) -> None:
    """The message names the mistake, and the server continues."""
    async with http(FixedRetriever(FIXED)) as session:
        code, answer = await post(session, body)
        assert (code, message in answer["error"]) == (status, True)
        assert (await post(session, {"queries": ["known"]}))[0] == 200


async def test_a_dead_retriever_is_503_without_its_address() -> None:
    """The message asks to retry."""
    async with http(FailingRetriever(1)) as session:
        failed = {"error": "The search failed at the server; try again later."}
        assert await post(session, {"queries": ["known"]}) == (503, failed)


async def test_unknown_host_names_are_refused() -> None:
    """A web page cannot read passages by DNS rebinding."""
    async with http(FixedRetriever(FIXED), hosts=["search.example"]) as session:
        for host, status, key in (
            ("evil.example", 421, "error"),
            ("search.example:1", 200, "result"),
        ):
            request = session.post("/retrieve", json={"queries": ["known"]}, headers={"Host": host})
            async with request as response:
                assert (response.status, list(await response.json())) == (status, [key])


async def test_health_is_503_while_retrieval_is_down() -> None:
    """No reason is given."""
    readiness = Readiness()
    async with http(FixedRetriever({}), readiness=readiness) as session:
        for why, status, health in (("connection refused", 503, "unavailable"), (None, 200, "ok")):
            readiness.report("retrieval", ["retrieval"], why)
            async with session.get("/health") as response:
                assert (response.status, await response.json()) == (status, {"status": health})


async def test_passages_come_back_unchanged() -> None:
    """Passages survive the wire; every query has a list, also an empty one; 0 means the default."""
    fixed = FixedRetriever(FIXED)
    async with remote(fixed) as retriever:
        assert await retriever.search(["known", "unknown"], 2) == [PASSAGES[:2], []]
        assert await retriever.search([], 2) == []
    assert fixed.queries == ["known", "unknown"]
    async with (
        served(fixed, default_top_k=4) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        response = await RetrievalServiceStub(channel).Search(SearchRequest(queries=["known"]))
    assert len(response.results[0].passages) == 4


async def test_passages_beyond_a_message_are_refused() -> None:
    """A client reads messages of at most 4 MiB by default."""
    long = [Passage(f"p{number}", "T", "x" * 40_000) for number in range(10)]
    async with remote(FixedRetriever({"a": long})) as retriever:
        assert len((await retriever.search(["a"] * 9, 10))[8]) == 10
        with pytest.raises(UpstreamRefused, match="at most 4000000 are allowed; send fewer"):
            await retriever.search(["a"] * 11, 10)


async def test_a_real_index_answers(index: Index, embedder: MiniLM) -> None:
    """Both services search by meaning, with concurrent callers over gRPC."""
    searcher = IndexSearcher(index, embedder)
    async with (
        remote(Indexes({DEFAULT_INDEX: searcher})) as retriever,
        http(searcher) as session,
    ):
        assert retriever.index_id is None
        found = await asyncio.gather(
            *[retriever.search(["the red planet", "honey"], 1) for _ in range(8)]
        )
        assert retriever.index_id == index.manifest.corpus_sha256
        _, body = await post(session, {"queries": ["the red planet"], "topk": 1})
    await searcher.close()
    assert [[passages[0].id for passages in results] for results in found] == [["mars", "bee"]] * 8
    assert body["result"][0][0]["contents"].startswith('"Mars"\nMars is the fourth planet')


@pytest.mark.parametrize(
    ("retriever", "queries", "top_k", "kind", "message"),
    [
        (
            FixedRetriever({}),
            ["known", ""],
            3,
            UpstreamRefused,
            r"INVALID_ARGUMENT: queries\[1\]: is empty",
        ),
        (
            FixedRetriever({}),
            ["known"],
            101,
            UpstreamRefused,
            "INVALID_ARGUMENT: top_k: .* got 101",
        ),
        (
            None,
            ["known"],
            3,
            UpstreamProtocolError,
            r"0 results for 1 queries",
        ),
    ],
)
async def test_errors_of_a_search_are_typed(
    retriever: PlainRetriever | None,
    queries: list[str],
    top_k: int,
    kind: type[UpstreamError],
    message: str,
) -> None:
    """A bad request is refused with the server's message; too few results are a protocol error."""
    async with remote(retriever) as client:
        with pytest.raises(kind, match=message):
            await client.search(queries, top_k)


async def test_an_address_without_the_service_is_named() -> None:
    """A closed port and a gRPC server without the service raise errors with the address."""
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    client = RemoteRetriever(address, timeout_s=30.0)
    with pytest.raises(UpstreamRefused, match="UNIMPLEMENTED"):
        await client.search(["known"], 3)
    await server.stop(None)
    with pytest.raises(UpstreamUnavailable, match=address) as raised:
        await client.search(["known"], 3)
    assert raised.value.endpoint == address
    await client.close()


async def test_cancelling_stops_the_search_at_the_server() -> None:
    """Cancelling the client's search cancels it at the server."""
    stuck = StuckRetriever()
    async with remote(stuck) as retriever:
        search = asyncio.create_task(retriever.search(["known"], 3))
        await stuck.asked.wait()
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search
        async with asyncio.timeout(30):
            await stuck.cancelled.wait()


async def test_a_slow_server_is_unavailable() -> None:
    """A search longer than `timeout_s` fails."""
    async with (
        served(StuckRetriever()) as address,
        open_retriever(
            RetrievalConfig(address=address, timeout_s=0.2), lambda _step: None
        ) as retriever,
    ):
        with pytest.raises(UpstreamUnavailable, match="DEADLINE_EXCEEDED"):
            await retriever.search(["known"], 3)


async def test_an_unavailable_server_is_retried() -> None:
    """A short failure is hidden; after three attempts the search fails."""
    passing = FailingRetriever(2)
    lasting = FailingRetriever(99)
    async with remote(passing) as retriever:
        assert await retriever.search(["known"], 3) == [[]]
    async with remote(lasting) as retriever:
        with pytest.raises(UpstreamUnavailable, match="UNAVAILABLE"):
            await retriever.search(["known"], 3)
    assert (passing.asked, lasting.asked) == (3, 3)


@pytest.mark.parametrize(
    ("queries", "top_k", "message"),
    [
        ([], 3, "must be 1 to 256 queries, got 0"),
        (["x"] * 257, 3, "got 257"),
        (["x", " \n"], 3, r"queries\[1\]: is empty"),
        (["x" * 8193], 3, r"queries\[0\]: has 8193 characters, but at most 8192"),
        (["x"], -1, "top_k: must be 1 to 100, or 0 for the default of 3, got -1"),
        (["x"], 101, "top_k: must be .* got 101"),
        (
            ["x"] * 26,
            100,
            "26 queries with 100 passages each exceed the limit of 2560",
        ),
    ],
)
def test_searches_beyond_the_limits_are_refused(
    queries: list[str], top_k: int, message: str
) -> None:
    """The message names the query and the limit."""
    with pytest.raises(BadRequest, match=message):
        checked_top_k(queries, top_k, 3)


def test_the_largest_search_is_allowed() -> None:
    """The limits are 256 queries, 8192 characters and 2560 passages; 0 means the default."""
    assert checked_top_k(["x" * 8192] * 256, 10, 3) == 10
    assert (checked_top_k(["x"] * 25, 100, 3), checked_top_k(["x"], 0, 3)) == (100, 3)
