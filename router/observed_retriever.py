"""A retriever whose searches are watched."""

import time
from collections.abc import Sequence

from router.observer import Observer
from router.passage import Passage
from router.retrieval import IndexRetriever


class ObservedRetriever:
    """Is to its callers what the retriever is."""

    def __init__(self, retriever: IndexRetriever, observer: Observer) -> None:
        self._retriever, self._observer = retriever, observer

    @property
    def index_id(self) -> str | None:
        """As `IndexRetriever.index_id`."""
        return self._retriever.index_id

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """As `Retriever.search`."""
        began_at, begun, error = time.time(), time.monotonic(), "CancelledError"
        try:
            found, error = await self._retriever.search(queries, top_k), ""
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            for query in queries:
                self._observer.searched(query, began_at, time.monotonic() - begun, error or None)
        return found
