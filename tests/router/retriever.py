"""A retriever with fixed answers."""

import asyncio
from collections.abc import Mapping, Sequence

from router.protocol import Passage
from router.search import Indexes
from router.trace.scope import DEFAULT_INDEX, NO_FILTER, DocumentFilter


class FixedRetriever:
    """Retriever that answers from a mapping of queries to passages; others find nothing."""

    def __init__(self, passages: Mapping[str, Sequence[Passage]]) -> None:
        self._passages = passages
        self.queries: list[str] = []
        """All queries, in order."""

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
    ) -> list[list[Passage]]:
        """Look the queries up."""
        await asyncio.sleep(0)
        self.queries += queries
        results = []
        for query in queries:
            passages = self._passages.get(query, ())
            kept = [passage for passage in passages if document in (None, passage.document)]
            results.append(kept[:top_k])
        return results


class NamedRetriever(FixedRetriever):
    """Retriever of an index with an identifier. It does not filter documents."""

    index_id = "an index"

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Look the queries up."""
        return await super().search(queries, top_k, document)


def one_index(passages: Mapping[str, Sequence[Passage]]) -> Indexes:
    """Return the default index with fixed answers."""
    return Indexes({DEFAULT_INDEX: NamedRetriever(passages)})
