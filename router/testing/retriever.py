"""A retriever with fixed answers."""

import asyncio
from collections.abc import Mapping, Sequence

from router.protocol import Passage


class FixedRetriever:
    """Answers from a mapping of query to passages; unknown queries find nothing."""

    def __init__(self, passages: Mapping[str, Sequence[Passage]]) -> None:
        self._passages = passages
        self.queries: list[str] = []
        """Every query that was asked, in order."""

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """Look the queries up."""
        await asyncio.sleep(0)
        self.queries += queries
        found = (
            [each for each in self._passages.get(query, ()) if document in (None, each.document)]
            for query in queries
        )
        return [each[:top_k] for each in found]
