"""A retriever with fixed answers."""

import asyncio
from collections.abc import Mapping, Sequence

from router.protocol import Passage


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
