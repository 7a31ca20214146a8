"""Retrieval from an index in this process."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from cachetools import LRUCache

from router.errors import UpstreamRefused
from router.protocol import Passage
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index

_Found = dict[str, list[Passage]]
"""By query."""


@dataclass(frozen=True, slots=True)
class _Searched:
    """An index, and the passages of the last queries."""

    index: Index
    cache: LRUCache[tuple[str, int], list[Passage]]
    """By query and `top_k`; used on the event loop only."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    queries: tuple[str, ...]
    """All different."""
    top_k: int
    found: Future[tuple[_Found, _Searched]] = field(default_factory=Future)


class IndexSearcher:
    """A `Retriever` over an `Index`: embeds and searches in one thread of its own, whose callers share batches.

    Whatever is asked while a batch is under way forms the next one, but for searches that are cancelled before that.
    A query finds the same in any company, up to what an embedder's endpoint may make of it.
    """

    def __init__(self, index: Index, embedder: Embedder, *, most: int = 64, cache: int = 10_000) -> None:
        """`most`: no further caller joins a batch of so many queries. `cache`: how many queries' passages are kept
        until the index is swapped.
        """
        self._embedder, self._most, self._cache = embedder, most, cache
        self._searched = _Searched(index, LRUCache(cache))
        self._waiting: SimpleQueue[_Waiting] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1, "index-searcher")

    @property
    def index_id(self) -> str:
        """The identity of the index that is searched now."""
        return self._searched.index.manifest.corpus_sha256

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """See `Retriever.search`; surplus space makes no difference. Raises what the embedder raises."""
        asked, cache = [" ".join(query.split()) for query in queries], self._searched.cache
        found = {query: passages for query in asked if (passages := cache.get((query, top_k))) is not None}
        if missing := tuple(dict.fromkeys(query for query in asked if query not in found)):
            waiting = _Waiting(missing, top_k)
            self._waiting.put(waiting)
            self._thread.submit(self._serve)
            fresh, searched = await asyncio.wrap_future(waiting.found)
            for query, passages in fresh.items():
                with suppress(ValueError):  # none are kept
                    searched.cache[query, top_k] = passages
            found |= fresh
        else:
            await asyncio.sleep(0)  # whoever asks again and again lets others in
        return [list(found[query]) for query in asked]

    def swap(self, index: Index) -> None:
        """Search `index` from the next batch on; whatever is under way ends with the one before."""
        self._searched = _Searched(index, LRUCache(self._cache))

    async def close(self) -> None:
        """Finish what was asked and end the thread. Index and embedder stay the caller's."""
        await asyncio.to_thread(self._thread.shutdown)

    def _serve(self) -> None:
        if batch := self._next_batch():
            self._answer(batch)

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while size < self._most:
            try:
                waiting = self._waiting.get_nowait()
            except Empty:
                break
            if waiting.found.set_running_or_notify_cancel():
                batch.append(waiting)
                size += len(waiting.queries)
        return batch

    def _answer(self, batch: list[_Waiting]) -> None:
        searched = self._searched
        try:
            found = self._find(batch, searched.index)
        except UpstreamRefused as error:
            if len(batch) == 1:
                batch[0].found.set_exception(error)
                return
            for waiting in batch:  # one caller's query must not fail the others'
                self._answer([waiting])
        except Exception as error:
            for waiting in batch:
                waiting.found.set_exception(error)
        else:
            for waiting in batch:
                own = {query: found[query, waiting.top_k] for query in waiting.queries}
                waiting.found.set_result((own, searched))

    def _find(self, batch: list[_Waiting], index: Index) -> dict[tuple[str, int], list[Passage]]:
        """The passages by query and `top_k`, each query embedded once."""
        rows = {query: row for row, query in enumerate(_distinct(batch))}
        vectors = self._embedder.embed(list(rows), queries=True)
        found: dict[tuple[str, int], list[Passage]] = {}
        for top_k in {waiting.top_k for waiting in batch}:
            queries = _distinct(waiting for waiting in batch if waiting.top_k == top_k)
            ranked = index.search(vectors[[rows[query] for query in queries]], queries, top_k)
            found |= {(query, top_k): passages for query, passages in zip(queries, ranked, strict=True)}
        return found


def _distinct(batch: Iterable[_Waiting]) -> list[str]:
    return list(dict.fromkeys(query for waiting in batch for query in waiting.queries))
