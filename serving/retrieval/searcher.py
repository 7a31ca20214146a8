"""Retrieval from an index in this process."""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from router.errors import UpstreamRefused
from router.passage import Passage
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index

MAX_BATCH = 256
"""No further caller joins a batch of this many queries."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    queries: tuple[str, ...]
    top_k: int
    found: Future[list[list[Passage]]] = field(default_factory=Future)


class IndexSearcher:
    """A `Retriever` over an `Index`: embeds and searches in one thread of its own, whose callers share batches.

    Whatever is asked while a batch is under way forms the next one; who is cancelled before that is left out of it.
    """

    def __init__(self, index: Index, embedder: Embedder) -> None:
        self._index = index
        self._embedder = embedder
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, "index-searcher")

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """As `Retriever.search`; raises what the embedder raises."""
        if not queries:
            return []
        waiting = _Waiting(tuple(queries), top_k)
        self._waiting.append(waiting)
        self._thread.submit(self._serve)
        return await asyncio.wrap_future(waiting.found)

    def swap(self, index: Index) -> None:
        """Search `index` from the next batch on; whatever is under way ends with the one before."""
        self._index = index

    async def close(self) -> None:
        """Finish what was asked and end the thread. Index and embedder stay the caller's."""
        await asyncio.to_thread(self._thread.shutdown)

    def _serve(self) -> None:
        if batch := self._next_batch():
            self._answer(batch)

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and size < MAX_BATCH:
            waiting = self._waiting.popleft()
            if waiting.found.set_running_or_notify_cancel():
                batch.append(waiting)
                size += len(waiting.queries)
        return batch

    def _answer(self, batch: list[_Waiting]) -> None:
        try:
            found = iter(self._find(batch))
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
                waiting.found.set_result([next(found)[: waiting.top_k] for _ in waiting.queries])

    def _find(self, batch: list[_Waiting]) -> list[list[Passage]]:
        queries = [query for waiting in batch for query in waiting.queries]
        vectors = self._embedder.embed(queries, queries=True)
        return self._index.search(vectors, queries, max(waiting.top_k for waiting in batch))
