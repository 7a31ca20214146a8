"""Retrieval from an index in this process.

Embedding is faster in batches. So one thread embeds and searches, and all searches that arrive
while it works form its next batch. Each search waits for a future, which the event loop resolves
when the batch is done.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread

from cachetools import LRUCache

from router.errors import UpstreamRefused
from router.protocol import Passage
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index

_Results = dict[str, list[Passage]]
"""Passages by query."""
_Scope = tuple[int, str | None]
"""`top_k`, and the document to search; None for all documents."""


@dataclass(frozen=True, slots=True)
class _Searched:
    """An index, and a cache of its results."""

    index: Index
    cache: LRUCache[tuple[str, _Scope], list[Passage]]
    """Used on the event loop only."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A search that waits for its batch."""

    queries: tuple[str, ...]
    """Queries without duplicates."""
    scope: _Scope
    results: asyncio.Future[_Results]


class IndexSearcher:
    """A `Retriever` over an `Index`, with one thread that embeds and searches in batches.

    Results do not depend on the batch, as far as an embedding endpoint guarantees that.
    """

    def __init__(
        self,
        index: Index,
        embedder: Embedder,
        *,
        max_batch: int = 64,
        cache: int = 10_000,
    ) -> None:
        """`max_batch`: a batch with so many queries is full. `cache`: max number of queries whose
        passages are cached, until the index is swapped.
        """
        self._embedder = embedder
        self._batch_queries = max_batch
        self._cache_queries = cache
        self._searched = _Searched(index, LRUCache(cache))
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        """None ends the thread."""
        self._thread = Thread(target=self._serve, name="index-searcher", daemon=True)
        self._thread.start()

    @property
    def index_id(self) -> str:
        """Identity of the current index."""
        return self._searched.index.manifest.corpus_sha256

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """See `Retriever.search`. Ignores surplus white space. Raises what the embedder raises."""
        normalized = [" ".join(query.split()) for query in queries]
        cache = self._searched.cache
        scope = (top_k, document)
        results = {}
        for query in normalized:
            if (passages := cache.get((query, scope))) is not None:
                results[query] = passages

        missing = tuple(dict.fromkeys(query for query in normalized if query not in results))
        if missing:
            request = _Request(missing, scope, asyncio.get_running_loop().create_future())
            self._requests.put(request)
            results |= await request.results
        else:
            await asyncio.sleep(0)  # a loop of cached searches does not block other tasks
        return [list(results[query]) for query in normalized]

    def swap(self, index: Index) -> None:
        """Search `index` from the next batch on; the current batch ends with the previous index."""
        self._searched = _Searched(index, LRUCache(self._cache_queries))

    async def close(self) -> None:
        """Finish the waiting searches and end the thread. Index and embedder stay open."""
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        while batch := self._next_batch():
            searched = self._searched
            outcomes = self._outcomes(batch, searched.index)
            batch[0].results.get_loop().call_soon_threadsafe(_deliver, batch, outcomes, searched)

    def _next_batch(self) -> list[_Request]:
        """Wait for a request, and return all that are waiting; an empty list ends the thread."""
        batch: list[_Request] = []
        size = 0
        while not batch or (size < self._batch_queries and not self._requests.empty()):
            request = self._requests.get()
            if request is None:
                if batch:
                    self._requests.put(None)  # end after this batch
                break
            if not request.results.cancelled():
                batch.append(request)
                size += len(request.queries)
        return batch

    def _outcomes(self, batch: list[_Request], index: Index) -> list[_Results | Exception]:
        """Return the results of each request, or its error."""
        try:
            results = self._search(batch, index)
        except UpstreamRefused as error:
            if len(batch) == 1:
                return [error]
            # The query of one request must not fail the others
            return [self._outcomes([request], index)[0] for request in batch]
        except Exception as error:
            return [error] * len(batch)
        return [
            {query: results[query, request.scope] for query in request.queries} for request in batch
        ]

    def _search(
        self, batch: list[_Request], index: Index
    ) -> dict[tuple[str, _Scope], list[Passage]]:
        """Return the passages by query and scope. Each query is embedded once."""
        rows = {query: row for row, query in enumerate(_distinct(batch))}
        vectors = self._embedder.embed(list(rows), queries=True)
        results: dict[tuple[str, _Scope], list[Passage]] = {}
        for scope in {request.scope for request in batch}:
            queries = _distinct(request for request in batch if request.scope == scope)
            ranked = index.search(vectors[[rows[query] for query in queries]], queries, *scope)
            keys = ((query, scope) for query in queries)
            results.update(zip(keys, ranked, strict=True))
        return results


def _deliver(
    batch: list[_Request], outcomes: list[_Results | Exception], searched: _Searched
) -> None:
    """Resolve the futures of a batch, and cache the results."""
    for request, outcome in zip(batch, outcomes, strict=True):
        is_open = not request.results.done()  # done if the search was cancelled
        if isinstance(outcome, Exception):
            if is_open:
                request.results.set_exception(outcome)
            continue

        for query, passages in outcome.items():
            with suppress(ValueError):  # the cache has no space at all
                searched.cache[query, request.scope] = passages
        if is_open:
            request.results.set_result(outcome)


def _distinct(batch: Iterable[_Request]) -> list[str]:
    return list(dict.fromkeys(query for request in batch for query in request.queries))
