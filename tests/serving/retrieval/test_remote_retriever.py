import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from rolegate.v1.retrieval_service_pb2 import SearchRequest, SearchResponse
from rolegate.v1.retrieval_service_pb2_grpc import (
    RetrievalServiceServicer,
    RetrievalServiceStub,
    add_RetrievalServiceServicer_to_server,
)

from router.edge.status import StatusInterceptor
from router.errors import UpstreamGarbled, UpstreamRefused, UpstreamUnavailable
from router.protocol.evidence import Passage
from router.search.retrieval import FixedRetriever
from serving.config.config import RetrievalConfig
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index
from serving.retrieval.opening import open_retriever
from serving.retrieval.remote import ERRORS, RemoteRetriever
from serving.retrieval.searcher import IndexSearcher
from serving.retrieval.services import RetrievalServicer

PASSAGES = [Passage(str(number), f"Title {number}", f"Text {number}", 0.5 - number / 10) for number in range(5)]


@asynccontextmanager
async def served(servicer: RetrievalServiceServicer) -> AsyncIterator[str]:
    """The address of a real server."""
    server = grpc.aio.server(interceptors=[StatusInterceptor()])
    add_RetrievalServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def remote(address: str) -> AsyncIterator[RemoteRetriever]:
    retriever = RemoteRetriever(address, timeout_s=30.0)
    try:
        yield retriever
    finally:
        await retriever.close()


async def test_passages_come_back_unchanged() -> None:
    """Id, title, text and score survive the wire; every query has its list, an empty one too."""
    fixed = FixedRetriever({"known": PASSAGES})
    async with served(RetrievalServicer(fixed)) as address, remote(address) as retriever:
        assert await retriever.search(["known", "unknown"], 2) == [PASSAGES[:2], []]
        assert await retriever.search([], 2) == []

    assert fixed.queries == ["known", "unknown"]


async def test_a_real_index_answers(index: Index, embedder: MiniLM) -> None:
    """The service over an index finds by meaning, also for many callers at once, and tells which index it is."""
    searcher = IndexSearcher(index, embedder)
    servicer = RetrievalServicer(searcher, index_id=lambda: searcher.index_id)
    async with served(servicer) as address, remote(address) as retriever:
        assert retriever.index_id is None
        found = await asyncio.gather(*[retriever.search(["the red planet", "honey"], 1) for _ in range(8)])
        assert retriever.index_id == index.manifest.corpus_sha256
    await searcher.close()

    assert [[passages[0].id for passages in results] for results in found] == [["mars", "bee"]] * 8


async def test_zero_takes_the_default() -> None:
    """`top_k` 0 on the wire gives the server's default."""
    servicer = RetrievalServicer(FixedRetriever({"known": PASSAGES}), default_top_k=4)
    async with served(servicer) as address, grpc.aio.insecure_channel(address) as channel:
        response = await RetrievalServiceStub(channel).Search(SearchRequest(queries=["known"]))

    assert len(response.results[0].passages) == 4


@pytest.mark.parametrize(
    ("queries", "top_k", "said"), [(["known", ""], 3, r"queries\[1\]: empty"), (["known"], 101, "top_k: 101")]
)
async def test_a_bad_request_is_refused(queries: list[str], top_k: int, said: str) -> None:
    """What the server refuses as bad input is `UpstreamRefused` here, with its words."""
    async with served(RetrievalServicer(FixedRetriever({}))) as address, remote(address) as retriever:
        with pytest.raises(UpstreamRefused, match=f"INVALID_ARGUMENT: {said}"):
            await retriever.search(queries, top_k)


async def test_a_dead_address_is_named() -> None:
    """Nobody listening is `UpstreamUnavailable`, with the address."""
    async with served(RetrievalServicer(FixedRetriever({}))) as address:
        pass
    async with remote(address) as retriever:
        with pytest.raises(UpstreamUnavailable, match=address) as raised:
            await retriever.search(["known"], 3)

    assert raised.value.endpoint == address


async def test_another_service_is_refused() -> None:
    """A gRPC server without `RetrievalService` is `UpstreamRefused`: another try would not help."""
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with remote(address) as retriever:
        with pytest.raises(UpstreamRefused, match="UNIMPLEMENTED"):
            await retriever.search(["known"], 3)
    await server.stop(None)


class ShortServicer(RetrievalServiceServicer):
    """Answers nothing to anything."""

    async def Search(
        self, request: SearchRequest, context: grpc.aio.ServicerContext[SearchRequest, SearchResponse]
    ) -> SearchResponse:
        return SearchResponse()


async def test_missing_results_are_garbled() -> None:
    """Fewer lists than queries is `UpstreamGarbled`."""
    async with served(ShortServicer()) as address, remote(address) as retriever:
        with pytest.raises(UpstreamGarbled, match="1 queries were sent, results for 0 came"):
            await retriever.search(["known"], 3)


class StuckRetriever:
    """Never answers; tells when it was asked and when it was cancelled."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return []


async def test_cancelling_stops_the_search_at_the_server() -> None:
    """Who is cancelled here no longer works there."""
    stuck = StuckRetriever()
    async with served(RetrievalServicer(stuck)) as address, remote(address) as retriever:
        search = asyncio.create_task(retriever.search(["known"], 3))
        await stuck.asked.wait()
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search
        async with asyncio.timeout(30):
            await stuck.cancelled.wait()


async def test_a_slow_server_is_unavailable() -> None:
    """A search that outlasts the config's `timeout_s` is given up."""
    async with served(RetrievalServicer(StuckRetriever())) as address:
        config = RetrievalConfig(address=address, timeout_s=0.2)
        async with open_retriever(config, lambda _step: None) as retriever:
            with pytest.raises(UpstreamUnavailable, match="DEADLINE_EXCEEDED"):
                await retriever.search(["known"], 3)


class FailingRetriever:
    """Is not available so many times, and then answers."""

    def __init__(self, times: int) -> None:
        self.left, self.asked = times, 0

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        self.asked += 1
        self.left -= 1
        if self.left >= 0:
            raise UpstreamUnavailable("the index is being read", endpoint="here")
        return [[] for _ in queries]


async def test_a_server_that_is_not_available_is_asked_again() -> None:
    """A moment's failure is not seen; one that goes on is, after three attempts."""
    passing, lasting = FailingRetriever(2), FailingRetriever(99)
    async with served(RetrievalServicer(passing)) as address, remote(address) as retriever:
        assert await retriever.search(["known"], 3) == [[]]
    async with served(RetrievalServicer(lasting)) as address, remote(address) as retriever:
        with pytest.raises(UpstreamUnavailable, match="UNAVAILABLE"):
            await retriever.search(["known"], 3)
    assert (passing.asked, lasting.asked) == (3, 3)


def test_every_status_has_its_error() -> None:
    """No status of gRPC is missed."""
    assert set(ERRORS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
