import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from router.errors import UpstreamRefused, UpstreamUnavailable
from serving.retrieval.embedder import MiniLM, Vectors
from serving.retrieval.index import Index
from serving.retrieval.searcher import IndexSearcher


class GatedEmbedder:
    """MiniLM, whose calls wait for the gate; what says "refuse" or "break" does not get through."""

    identity = MiniLM.identity
    dimension = MiniLM.dimension
    max_tokens = MiniLM.max_tokens

    def __init__(self, embedder: MiniLM) -> None:
        self._embedder = embedder
        self.gate = threading.Event()
        self.asked = threading.Event()
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return self._embedder.count_tokens(texts)

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        self.batches.append(list(texts))
        self.threads.add(threading.current_thread().name)
        self.asked.set()
        assert self.gate.wait(30)
        if "refuse" in texts:
            raise UpstreamRefused("too long", endpoint="here")
        if "break" in texts:
            raise UpstreamUnavailable("broken", endpoint="here")
        return self._embedder.embed(texts, queries=queries)


@pytest.fixture
def gated(embedder: MiniLM) -> GatedEmbedder:
    return GatedEmbedder(embedder)


@pytest.fixture
async def searcher(index: Index, gated: GatedEmbedder) -> AsyncIterator[IndexSearcher]:
    searcher = IndexSearcher(index, gated)
    yield searcher
    gated.gate.set()
    await searcher.close()


async def busy(searcher: IndexSearcher, gated: GatedEmbedder) -> asyncio.Task[list[list[str]]]:
    """A search that holds the thread until the gate opens."""
    task = asyncio.create_task(found(searcher, ["the red planet"], 1))
    assert await asyncio.to_thread(gated.asked.wait, 30)
    return task


async def found(searcher: IndexSearcher, queries: Sequence[str], top_k: int) -> list[list[str]]:
    return [[passage.id for passage in passages] for passages in await searcher.search(queries, top_k)]


async def started(*searches: asyncio.Task[list[list[str]]]) -> None:
    """Let every search get as far as its first wait."""
    for _ in searches:
        await asyncio.sleep(0)


async def test_the_event_loop_is_free_while_a_search_runs(searcher: IndexSearcher, gated: GatedEmbedder) -> None:
    """Embedding and searching happen in the searcher's thread; the loop goes on meanwhile."""
    first = await busy(searcher, gated)

    assert not first.done()
    gated.gate.set()
    assert await first == [["mars"]]
    assert gated.threads == {"index-searcher_0"}


async def test_callers_share_a_batch(searcher: IndexSearcher, gated: GatedEmbedder) -> None:
    """What is asked while a batch is under way forms the next one; each caller gets its own, cut to its `top_k`."""
    first = await busy(searcher, gated)
    second = asyncio.create_task(found(searcher, ["Who makes honey?"], 1))
    third = asyncio.create_task(found(searcher, ["Which pet hunts mice?", "largest creature ever"], 2))
    await started(second, third)
    gated.gate.set()

    assert await first == [["mars"]]
    assert await second == [["bee"]]
    assert [(passages[0], len(passages)) for passages in await third] == [("cat", 2), ("whale", 2)]
    assert gated.batches[1:] == [["Who makes honey?", "Which pet hunts mice?", "largest creature ever"]]


async def test_who_is_cancelled_is_left_out(searcher: IndexSearcher, gated: GatedEmbedder) -> None:
    """A search that is cancelled before its batch starts costs nothing, and the others do not notice."""
    first = await busy(searcher, gated)
    second = asyncio.create_task(found(searcher, ["Who makes honey?"], 1))
    third = asyncio.create_task(found(searcher, ["Which pet hunts mice?"], 1))
    await started(second, third)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gated.gate.set()

    assert (await first, await third) == ([["mars"]], [["cat"]])
    assert gated.batches[1:] == [["Which pet hunts mice?"]]


async def test_a_refused_query_fails_its_caller_only(searcher: IndexSearcher, gated: GatedEmbedder) -> None:
    """A refused batch is tried again caller by caller."""
    first = await busy(searcher, gated)
    second = asyncio.create_task(found(searcher, ["refuse"], 1))
    third = asyncio.create_task(found(searcher, ["Which pet hunts mice?"], 1))
    await started(second, third)
    gated.gate.set()

    assert (await first, await third) == ([["mars"]], [["cat"]])
    with pytest.raises(UpstreamRefused):
        await second


async def test_a_broken_embedder_fails_the_batch(searcher: IndexSearcher, gated: GatedEmbedder) -> None:
    """Every caller of the batch gets the error, and the searcher lives on."""
    gated.gate.set()

    with pytest.raises(UpstreamUnavailable):
        await searcher.search(["break"], 1)
    assert await found(searcher, ["Who makes honey?"], 1) == [["bee"]]


async def test_no_queries_find_nothing(searcher: IndexSearcher, gated: GatedEmbedder) -> None:
    """An empty batch does not reach the embedder."""
    assert await searcher.search([], 3) == []
    assert gated.batches == []
