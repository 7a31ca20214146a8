"""Adapter that lets retrievers of tests search an index."""

from collections.abc import Sequence
from typing import Protocol

from router.errors import UpstreamRefused
from router.protocol import Passage
from router.trace.scope import DEFAULT_INDEX, NO_FILTER, DocumentFilter


class PlainRetriever(Protocol):
    """A retriever without a filter for documents."""

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]: ...


class Unfiltered:
    """A retriever that cannot filter documents and does not identify its index."""

    index_id = None

    def __init__(self, retriever: PlainRetriever) -> None:
        self._retriever = retriever

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        if only != NO_FILTER:
            raise UpstreamRefused("this retriever cannot filter documents", endpoint=DEFAULT_INDEX)
        return await self._retriever.search(queries, top_k, document)
