import io
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from router.calls.health import Readiness
from router.edge.http.server import HTTPServer
from router.errors import UpstreamUnavailable
from router.protocol.evidence import Passage
from router.search.retrieval import FixedRetriever, Retriever
from serving.retrieval.embedder import MiniLM
from serving.retrieval.index import Index
from serving.retrieval.searcher import IndexSearcher
from serving.retrieval.services import MAX_BODY_BYTES, retrieval_app

PASSAGES = [Passage(str(number), f"Title {number}", f"Text {number}", 0.9 - number / 10) for number in range(5)]


async def test_a_name_that_is_not_the_server_s() -> None:
    """A web page of elsewhere can have its own name made to lead here, and read what is found then."""
    server = HTTPServer(retrieval_app(FixedRetriever({"known": PASSAGES})), 0.0, hosts=["search.example"])
    async with aiohttp.ClientSession(f"http://{await server.start('127.0.0.1:0', '--http')}") as session:
        for host, status, key in (("evil.example", 421, "error"), ("search.example:1", 200, "result")):
            asked = session.post("/retrieve", json={"queries": ["known"]}, headers={"Host": host})
            async with asked as response:
                assert (response.status, list(await response.json())) == (status, [key])
    await server.drain()


async def test_its_health() -> None:
    """503 while nothing can be searched, without a word of why."""
    readiness = Readiness()
    server = HTTPServer(retrieval_app(FixedRetriever({}), readiness=readiness), 0.0)
    async with aiohttp.ClientSession(f"http://{await server.start('127.0.0.1:0', '--http')}") as session:
        for why, status, said in (("connection refused", 503, "unavailable"), (None, 200, "ok")):
            readiness.say("retrieval", ["retrieval"], why)
            async with session.get("/health") as response:
                assert (response.status, await response.json()) == (status, {"status": said})
    await server.drain()


class DeadRetriever:
    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        raise UpstreamUnavailable("refused", endpoint="10.0.0.7:50051")


class Client:
    """Posts to `/retrieve` of one running application."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def retrieve(self, body: object) -> tuple[int, Any]:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.session.post("/retrieve", data=data) as response:
            return response.status, await response.json()


async def client_of(retriever: Retriever) -> AsyncIterator[Client]:
    runner = web.AppRunner(retrieval_app(retriever))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
        yield Client(session)
    await runner.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async for client in client_of(FixedRetriever({"known": PASSAGES})):
        yield client


@pytest.fixture
async def dead_client() -> AsyncIterator[Client]:
    async for client in client_of(DeadRetriever()):
        yield client


@pytest.fixture
async def index_client(index: Index, embedder: MiniLM) -> AsyncIterator[Client]:
    searcher = IndexSearcher(index, embedder)
    async for client in client_of(searcher):
        yield client
    await searcher.close()


async def test_search_r1_with_scores(client: Client) -> None:
    """`queries`, `topk`, `return_scores`: documents with their scores, one list a query."""
    status, body = await client.retrieve({"queries": ["known", "unknown"], "topk": 1, "return_scores": True})

    document = {"id": "0", "contents": '"Title 0"\nText 0'}
    assert (status, body) == (200, {"result": [[{"document": document, "score": 0.9}], []]})


async def test_search_r1_without_scores(client: Client) -> None:
    """Without `return_scores` the documents come bare; without `topk` there are three of them."""
    status, body = await client.retrieve({"queries": ["known"]})

    assert status == 200
    assert [document["id"] for document in body["result"][0]] == ["0", "1", "2"]
    assert set(body["result"][0][0]) == {"id", "contents"}


async def test_query_list(client: Client) -> None:
    """`query_list` and `k`: lists of documents."""
    status, body = await client.retrieve({"query_list": ["known"], "k": 2})

    documents = [{"id": str(number), "contents": f'"Title {number}"\nText {number}'} for number in range(2)]
    assert (status, body) == (200, {"result": [documents]})


async def test_a_real_index_answers(index_client: Client) -> None:
    """The application over an index finds by meaning."""
    status, body = await index_client.retrieve({"queries": ["the red planet"], "topk": 1, "return_scores": True})

    assert status == 200
    assert body["result"][0][0]["document"]["contents"].startswith('"Mars"\nMars is the fourth planet')


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "The body cannot be used"),
        (b"{not json", "The body cannot be used"),
        (b'{"queries": ["caf\xe9"]}', "The body cannot be used"),
        ({"queries": "known"}, "Expected `array | null`, got `str` - at `$.queries`"),
        ({"topk": 3}, 'either as "queries" or as "query_list"'),
        ({"queries": ["known"], "query_list": ["known"]}, 'either as "queries" or as "query_list"'),
        ({"queries": []}, "0 were sent; send 1 to 256"),
        ({"queries": ["known", ""]}, "queries[1]: empty"),
        ({"query_list": ["known"], "k": 101}, "top_k: 101; send 1 to 100"),
    ],
)
async def test_a_bad_body_is_answered_in_plain_words(client: Client, body: object, said: str) -> None:
    """400 with what is wrong and where."""
    status, answer = await client.retrieve(body)

    assert status == 400
    assert said in answer["error"]


async def test_an_oversized_body_is_refused(client: Client) -> None:
    """Above 1 MiB: 413, and the server goes on."""
    status, answer = await client.retrieve(b" " * (MAX_BODY_BYTES + 1))

    assert status == 413
    assert "larger than 1048576 bytes" in answer["error"]
    assert (await client.retrieve({"queries": ["known"]}))[0] == 200


async def test_a_dead_retriever_is_503_without_internals(dead_client: Client) -> None:
    """The client learns that it may try again, and no address."""
    status, answer = await dead_client.retrieve({"queries": ["known"]})

    assert (status, answer) == (503, {"error": "The search is not available at the moment; try again."})


async def test_health(client: Client) -> None:
    """`GET /health` answers once the server does."""
    async with client.session.get("/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
