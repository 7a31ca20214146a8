"""A retriever, as the rest of the code sees it, and a double with a fixed answer for tests and examples."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from router.passage import Passage


class Retriever(Protocol):
    """Finds passages. Raises `UpstreamUnavailable`, `UpstreamRefused` or `UpstreamGarbled`."""

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """The `top_k` nearest passages of each query, best first; fewer where the index is smaller."""


class IndexRetriever(Retriever, Protocol):
    """One that can tell which index it searches."""

    @property
    def index_id(self) -> str | None:
        """The same exactly as long as every query finds the same; None where that is not known."""


class FixedRetriever:
    """Answers from a mapping of query to passages; unknown queries find nothing."""

    def __init__(self, passages: Mapping[str, Sequence[Passage]]) -> None:
        self._passages = passages
        self.queries: list[str] = []
        """Every query that was asked, in order."""

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Look the queries up."""
        await asyncio.sleep(0)
        self.queries += queries
        return [list(self._passages.get(query, ()))[:top_k] for query in queries]
