"""Retrieval from an index in this process.

Embedding is faster in batches. So a single thread embeds and searches for all callers. Searches
that arrive while the thread works on a batch form the next batch. Each caller awaits a future,
which is resolved on the event loop when the batch is done.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

from cachetools import LRUCache

from router.errors import UpstreamRefused
from router.frozen import Frozen
from router.protocol import Passage
from router.trace.scope import NO_FILTER, DocumentFilter
from serving.retrieval.embedder import Embedder
from serving.retrieval.index import Index

_Results = dict[str, list[Passage]]
"""Passages that were found, by the text of the query."""
_Scope = tuple[int, str | None, DocumentFilter]
"""The arguments of a search other than its queries: `top_k`, the document to search (None for all
documents), and the filter for documents.
"""


class _Searched(Frozen):
    """The current index, and a cache of search results."""

    index: Index
    cache: LRUCache[tuple[str, _Scope], list[Passage]]
    """Passages by query and scope. Only the event loop may use it, not the thread."""


class _Request(Frozen):
    """A search that waits for the thread."""

    queries: tuple[str, ...]
    """Queries, each only once."""
    scope: _Scope
    results: asyncio.Future[_Results]


class IndexSearcher:
    """An `IndexRetriever` for an `Index`, with one thread that embeds and searches in batches.

    The results of a query do not depend on other queries in the same batch, except with an
    embedding endpoint whose vectors depend on the batch.
    """

    def __init__(
        self,
        index: Index,
        embedder: Embedder,
        *,
        max_batch: int = 64,
        cache: int = 10_000,
    ) -> None:
        """`max_batch`: when a batch has this number of queries, no further search is added to it.
        `cache`: max number of queries whose passages are cached.
        """
        self._embedder = embedder
        self._batch_queries = max_batch
        self._cache_queries = cache
        self._searched = _Searched(index, LRUCache(cache))
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        """Searches that wait for the thread. The item None makes the thread end."""
        self._thread = Thread(target=self._serve, name="index-searcher", daemon=True)
        self._thread.start()

    @property
    def index_id(self) -> str:
        """Identifier of the current index: the digest of its passages, followed by the name of the
        vector store if searches are approximate.
        """
        manifest = self._searched.index.manifest
        return f"{manifest.corpus_sha256} {manifest.vectors}".removesuffix(" Flat")

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Search the index, as `IndexRetriever.search` specifies. Several white space characters in
        a query count as one space. Raises the errors of the embedder.
        """
        if only != NO_FILTER:
            # The first search with a filter reads all passages. Other searches must not wait for
            # that, so another thread reads them.
            await asyncio.to_thread(self._searched.index.passages.admitted, only)
        normalized = [" ".join(query.split()) for query in queries]
        cache = self._searched.cache
        scope = (top_k, document, only)
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
            await asyncio.sleep(0)  # let other tasks run between cached searches
        return [list(results[query]) for query in normalized]

    def swap(self, index: Index) -> None:
        """Replace the index, and empty the cache. The next batch searches `index`; the batch on
        which the thread works still uses the previous index.
        """
        self._searched = _Searched(index, LRUCache(self._cache_queries))

    async def close(self) -> None:
        """Finish all waiting searches and end the thread. The index and the embedder stay open."""
        self._requests.put(None)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        while batch := self._next_batch():
            searched = self._searched
            outcomes = self._outcomes(batch, searched.index)
            batch[0].results.get_loop().call_soon_threadsafe(_deliver, batch, outcomes, searched)

    def _next_batch(self) -> list[_Request]:
        """Wait until there is a request. Return the waiting requests, but not more than a full
        batch. Return an empty list if the thread should end.
        """
        batch = list[_Request]()
        size = 0
        while not batch or (size < self._batch_queries and not self._requests.empty()):
            request = self._requests.get()
            if request is None:
                if batch:
                    self._requests.put(None)  # put it back, to end after this batch
                break
            if not request.results.cancelled():
                batch.append(request)
                size += len(request.queries)
        return batch

    def _outcomes(self, batch: list[_Request], index: Index) -> list[_Results | Exception]:
        """Return the outcome of each request in the batch, in order: the results of the request, or
        an error.
        """
        try:
            results = self._search(batch, index)
        except UpstreamRefused as error:
            if len(batch) == 1:
                return [error]
            # The embedder refused one of the queries. Search for each request alone, so that the
            # others do not fail.
            return [self._outcomes([request], index)[0] for request in batch]
        except Exception as error:
            return [error] * len(batch)
        return [
            {query: results[query, request.scope] for query in request.queries} for request in batch
        ]

    def _search(
        self, batch: list[_Request], index: Index
    ) -> dict[tuple[str, _Scope], list[Passage]]:
        """Search for all queries of a batch; return the passages by query and scope. A query that
        occurs several times is embedded once.
        """
        rows = {query: row for row, query in enumerate(_distinct(batch))}
        vectors = self._embedder.embed(list(rows), queries=True)
        results = dict[tuple[str, _Scope], list[Passage]]()
        for scope in {request.scope for request in batch}:
            queries = _distinct(request for request in batch if request.scope == scope)
            ranked = index.search(vectors[[rows[query] for query in queries]], queries, *scope)
            keys = ((query, scope) for query in queries)
            results.update(zip(keys, ranked, strict=True))
        return results


def _deliver(
    batch: list[_Request], outcomes: list[_Results | Exception], searched: _Searched
) -> None:
    """Resolve the futures of a batch with its `outcomes`, and cache the results in `searched`. Runs
    on the event loop.
    """
    for request, outcome in zip(batch, outcomes, strict=True):
        is_open = not request.results.done()  # done if the search was cancelled
        if isinstance(outcome, Exception):
            if is_open:
                request.results.set_exception(outcome)
            continue

        for query, passages in outcome.items():
            with suppress(ValueError):  # the size of the cache is 0
                searched.cache[query, request.scope] = passages
        if is_open:
            request.results.set_result(outcome)


def _distinct(batch: Iterable[_Request]) -> list[str]:
    return list(dict.fromkeys(query for request in batch for query in request.queries))
