import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from router.errors import UpstreamRefused, UpstreamUnavailable
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM, Vectors
from serving.retrieval.index import Index
from serving.retrieval.searcher import IndexSearcher
from tests.serving.retrieval.conftest import WriteCorpus

WORDS = (
    "whale bee planet river king museum novel honey cat red city bridge born film station wrote"
).split()


class GatedEmbedder:
    """MiniLM whose calls wait for a gate; texts with "refuse" or "break" fail."""

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
def crowd(write_corpus: WriteCorpus, tmp_path: Path, embedder: MiniLM) -> Index:
    """An index of 120 passages, many of them similar."""
    rows = [
        {"id": str(row), "title": WORDS[row % 10], "text": sentence(row, 4 + row % 20)}
        for row in range(120)
    ]
    build_index([write_corpus(rows)], tmp_path / "crowd", embedder)
    return Index.open(tmp_path / "crowd", embedder)


def sentence(seed: int, length: int) -> str:
    """Return a text of so many words, always the same."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(length))


@pytest.fixture
async def searcher(index: Index, gated: GatedEmbedder) -> AsyncIterator[IndexSearcher]:
    searcher = IndexSearcher(index, gated)
    yield searcher
    gated.gate.set()
    await searcher.close()


async def busy(searcher: IndexSearcher, gated: GatedEmbedder) -> asyncio.Task[list[list[str]]]:
    """Start a search that blocks the thread until the gate opens."""
    task = asyncio.create_task(found(searcher, ["the red planet"], 1))
    assert await asyncio.to_thread(gated.asked.wait, 30)
    return task


async def found(searcher: IndexSearcher, queries: Sequence[str], top_k: int) -> list[list[str]]:
    return [
        [passage.id for passage in passages] for passages in await searcher.search(queries, top_k)
    ]


async def started(*searches: asyncio.Task[list[list[str]]]) -> None:
    """Let every search run up to its first wait."""
    for _ in searches:
        await asyncio.sleep(0)


async def test_the_event_loop_is_free_while_a_search_runs(
    searcher: IndexSearcher, gated: GatedEmbedder
) -> None:
    """Embedding and searching run in the searcher's thread."""
    first = await busy(searcher, gated)
    assert not first.done()
    gated.gate.set()
    assert await first == [["mars"]]
    assert gated.threads == {"index-searcher"}


async def test_callers_share_a_batch(searcher: IndexSearcher, gated: GatedEmbedder) -> None:
    """Searches during a batch form the next one; each caller gets its results, and equal queries
    are embedded once.
    """
    first = await busy(searcher, gated)
    second = asyncio.create_task(found(searcher, ["Who makes honey?"], 1))
    third = asyncio.create_task(
        found(searcher, ["Which pet hunts mice?", "largest creature ever"], 2)
    )
    await started(second, third)
    gated.gate.set()
    assert await first == [["mars"]]
    assert await second == [["bee"]]
    assert [(passages[0], len(passages)) for passages in await third] == [("cat", 2), ("whale", 2)]
    assert gated.batches[1:] == [
        ["Who makes honey?", "Which pet hunts mice?", "largest creature ever"]
    ]


async def test_a_cancelled_search_is_left_out(
    searcher: IndexSearcher, gated: GatedEmbedder
) -> None:
    """It is not embedded if its batch has not started, and the others are not affected."""
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


async def test_a_refused_query_fails_its_caller_only(
    searcher: IndexSearcher, gated: GatedEmbedder
) -> None:
    """A refused batch is retried caller by caller."""
    first = await busy(searcher, gated)
    second = asyncio.create_task(found(searcher, ["refuse"], 1))
    third = asyncio.create_task(found(searcher, ["Which pet hunts mice?"], 1))
    await started(second, third)
    gated.gate.set()
    assert (await first, await third) == ([["mars"]], [["cat"]])
    with pytest.raises(UpstreamRefused):
        await second


async def test_a_broken_embedder_fails_the_batch(
    searcher: IndexSearcher, gated: GatedEmbedder
) -> None:
    """All callers of the batch get the error, and later searches work."""
    gated.gate.set()
    with pytest.raises(UpstreamUnavailable):
        await searcher.search(["break"], 1)
    assert await found(searcher, ["Who makes honey?"], 1) == [["bee"]]


async def test_results_do_not_depend_on_the_batch(crowd: Index, embedder: MiniLM) -> None:
    """Passages, order and scores are the same in any batch."""
    queries = [sentence(1000 + number, 1 + number % 25) for number in range(48)]
    searcher = IndexSearcher(crowd, embedder, cache=0)
    together = await searcher.search(queries, 5)
    for query, passages in zip(queries, together, strict=True):
        assert (await searcher.search([query], 5)) == [passages]
    await searcher.close()


async def test_each_caller_gets_its_own_number_of_passages(
    crowd: Index, gated: GatedEmbedder
) -> None:
    """The `top_k` of other callers makes no difference."""
    searcher = IndexSearcher(crowd, gated, cache=0)
    first = await busy(searcher, gated)
    few, many = [asyncio.create_task(found(searcher, ["a whale"], top_k)) for top_k in (1, 40)]
    await started(few, many)
    gated.gate.set()
    await first
    assert [await few, await many] == [
        await found(searcher, ["a whale"], top_k) for top_k in (1, 40)
    ]
    assert gated.batches[1] == ["a whale"]
    await searcher.close()


async def test_repeated_queries_are_cached(searcher: IndexSearcher, gated: GatedEmbedder) -> None:
    """White space is ignored; a swap clears the cache; no queries give no results."""
    gated.gate.set()
    assert await searcher.search([], 3) == []
    first = await searcher.search(["Who makes honey?", "Which pet hunts mice?"], 1)
    assert (
        await searcher.search(["  Which pet\nhunts mice? ", "Who makes honey?"], 1) == first[::-1]
    )
    assert len(gated.batches) == 1
    await searcher.search(["Who makes honey?"], 2)
    assert len(gated.batches) == 2


async def test_a_swap_clears_the_cache(
    searcher: IndexSearcher, gated: GatedEmbedder, crowd: Index
) -> None:
    """Results of the previous index that arrive after the swap are not cached for the new one."""
    first = await busy(searcher, gated)
    before = searcher.index_id
    searcher.swap(crowd)
    gated.gate.set()
    assert await first == [["mars"]]
    assert await found(searcher, ["the red planet"], 1) != [["mars"]]
    assert searcher.index_id != before


async def test_batches_are_limited(index: Index, gated: GatedEmbedder) -> None:
    """Further searches form the next batch."""
    searcher = IndexSearcher(index, gated, max_batch=2)
    first = await busy(searcher, gated)
    others = [asyncio.create_task(found(searcher, [word], 1)) for word in WORDS[:5]]
    await started(*others)
    gated.gate.set()
    await asyncio.gather(first, *others)
    assert [len(batch) for batch in gated.batches] == [1, 2, 2, 1]
    await searcher.close()
