"""The protocol of retrievers, and a retriever that reports whether it is up."""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from router.calls import Readiness
from router.errors import UpstreamError
from router.protocol import Passage


class Retriever(Protocol):
    """Finds passages. Raises `UpstreamUnavailable`, `UpstreamRefused` or
    `UpstreamProtocolError`.
    """

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """Return the `top_k` nearest passages of each query, best first; fewer if the index is
        smaller. `document`: search only this one, and return its passages in document order; none
        if it is unknown.
        """


class IndexRetriever(Retriever, Protocol):
    """A retriever that identifies the index it searches."""

    @property
    def index_id(self) -> str | None:
        """Unchanged exactly as long as every query returns the same passages; None if unknown."""


_WITHIN_S = 5.0
_EVERY_S = 5.0
_SOON_S = 1.0
"""Timeout of a probe, its interval, and its minimum interval after a failure."""


class WatchedRetriever:
    """A retriever that tells `Readiness` whether it can search."""

    def __init__(self, retriever: IndexRetriever, readiness: Readiness) -> None:
        """`readiness`: the registry to report to."""
        self._retriever = retriever
        self._readiness = readiness
        self._doubt = asyncio.Event()

    @property
    def index_id(self) -> str | None:
        """See `IndexRetriever.index_id`."""
        return self._retriever.index_id

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """See `Retriever.search`."""
        try:
            return await self._retriever.search(queries, top_k, document)
        except UpstreamError:
            self._doubt.set()
            raise

    async def probe(self) -> None:
        """Search, and report the result to the readiness registry. After a failure, search for a
        random query, which no cache can answer.
        """
        why: str | None = None
        query = f"health {secrets.token_hex(8)}" if self._doubt.is_set() else "health"
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self._retriever.search([query], 1)
            self._doubt.clear()
        except (UpstreamError, TimeoutError) as error:
            self._doubt.set()
            why = str(error) or f"no answer within {_WITHIN_S:g} s"
        self._readiness.report("retrieval", ["retrieval"], why)

    async def follow(self) -> None:
        """Probe at intervals, and soon after a search that failed; forever."""
        while True:
            await asyncio.sleep(_SOON_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await self._doubt.wait()
            await self.probe()
