"""Retrieval from an index in this process."""

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

_Found = dict[str, list[Passage]]
"""By query."""
_Where = tuple[int, str | None]
"""The number of passages that are wanted, and the document to search; None for all."""


@dataclass(frozen=True, slots=True)
class _Searched:
    """An index, and the passages of the last queries."""

    index: Index
    cache: LRUCache[tuple[str, _Where], list[Passage]]
    """Used on the event loop only."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    queries: tuple[str, ...]
    """All different."""
    where: _Where
    found: asyncio.Future[_Found]


class IndexSearcher:
    """A `Retriever` over an `Index`: embeds and searches in one thread of its own, whose callers
    share batches.

    Whatever is asked while a batch is under way forms the next one, but for searches that are
    cancelled before that; the event loop is woken once a batch. A query finds the same in any
    company, up to what an embedder's endpoint may make of it.
    """

    def __init__(
        self, index: Index, embedder: Embedder, *, most: int = 64, cache: int = 10_000
    ) -> None:
        """`most`: no further caller joins a batch of so many queries. `cache`: how many queries'
        passages are kept until the index is swapped.
        """
        self._embedder = embedder
        self._most = most
        self._cache = cache
        self._searched = _Searched(index, LRUCache(cache))
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        """None ends the thread."""
        self._thread = Thread(target=self._serve, name="index-searcher", daemon=True)
        self._thread.start()

    @property
    def index_id(self) -> str:
        """The identity of the index that is searched now."""
        return self._searched.index.manifest.corpus_sha256

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """See `Retriever.search`; surplus space makes no difference. Raises what the embedder
        raises.
        """
        asked = [" ".join(query.split()) for query in queries]
        cache = self._searched.cache
        where = (top_k, document)
        found = {
            query: passages
            for query in asked
            if (passages := cache.get((query, where))) is not None
        }
        if missing := tuple(dict.fromkeys(query for query in asked if query not in found)):
            waiting = _Waiting(missing, where, asyncio.get_running_loop().create_future())
            self._waiting.put(waiting)
            found |= await waiting.found
        else:
            await asyncio.sleep(0)  # whoever asks again and again lets others in
        return [list(found[query]) for query in asked]

    def swap(self, index: Index) -> None:
        """Search `index` from the next batch on; whatever is under way ends with the one before."""
        self._searched = _Searched(index, LRUCache(self._cache))

    async def close(self) -> None:
        """Finish what was asked and end the thread. Index and embedder stay the caller's."""
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        while batch := self._next_batch():
            searched = self._searched
            ends = self._ends(batch, searched.index)
            batch[0].found.get_loop().call_soon_threadsafe(_deliver, batch, ends, searched)

    def _next_batch(self) -> list[_Waiting]:
        """Everything that waits, once there is anything; nothing at the end."""
        batch: list[_Waiting] = []
        size = 0
        while not batch or (size < self._most and not self._waiting.empty()):
            waiting = self._waiting.get()
            if waiting is None:
                if batch:
                    self._waiting.put(None)  # for the next time
                break
            if not waiting.found.cancelled():
                batch.append(waiting)
                size += len(waiting.queries)
        return batch

    def _ends(self, batch: list[_Waiting], index: Index) -> list[_Found | Exception]:
        """What each of the batch finds, or the error that it ends with."""
        try:
            found = self._find(batch, index)
        except UpstreamRefused as error:
            if len(batch) == 1:
                return [error]
            # One caller's query must not fail the others'.
            return [end for waiting in batch for end in self._ends([waiting], index)]
        except Exception as error:
            return [error] * len(batch)
        return [
            {query: found[query, waiting.where] for query in waiting.queries} for waiting in batch
        ]

    def _find(self, batch: list[_Waiting], index: Index) -> dict[tuple[str, _Where], list[Passage]]:
        """The passages by query and place, each query embedded once."""
        rows = {query: row for row, query in enumerate(_distinct(batch))}
        vectors = self._embedder.embed(list(rows), queries=True)
        found: dict[tuple[str, _Where], list[Passage]] = {}
        for where in {waiting.where for waiting in batch}:
            queries = _distinct(waiting for waiting in batch if waiting.where == where)
            ranked = index.search(vectors[[rows[query] for query in queries]], queries, *where)
            found |= {
                (query, where): passages for query, passages in zip(queries, ranked, strict=True)
            }
        return found


def _deliver(batch: list[_Waiting], ends: list[_Found | Exception], searched: _Searched) -> None:
    """Wake the callers of a batch, and keep what was found."""
    for waiting, end in zip(batch, ends, strict=True):
        if isinstance(end, Exception):
            if not waiting.found.done():  # they may have left
                waiting.found.set_exception(end)
            continue
        for query, passages in end.items():
            with suppress(ValueError):  # none are kept
                searched.cache[query, waiting.where] = passages
        if not waiting.found.done():
            waiting.found.set_result(end)


def _distinct(batch: Iterable[_Waiting]) -> list[str]:
    return list(dict.fromkeys(query for waiting in batch for query in waiting.queries))
