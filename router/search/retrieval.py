"""Protocol of retrievers, and a wrapper that probes a retriever and reports whether it works."""

import asyncio
import secrets
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from router.background import at_most
from router.calls import Readiness
from router.errors import UpstreamError
from router.ledger import Ledger
from router.protocol import Passage
from router.trace.scope import NO_FILTER, DocumentFilter
from router.trace.values import Reranking


class IndexRetriever(Protocol):
    """Protocol of an object that finds passages in an index."""

    @property
    def index_id(self) -> str | None:
        """Identifier of the index. It changes whenever a query might return other passages. None if
        the contents of the index are unknown.
        """

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Return the `top_k` best passages for each query, best first. There are fewer if the index
        has fewer.

        `document`: the name of a document. If given, only this document is searched, and its
        passages are returned in document order. For an unknown document, no passages are returned.
        `only`: properties that the documents must have.

        Raises `UpstreamUnavailable`, `UpstreamRefused` or `UpstreamProtocolError`. Also raises
        `UpstreamRefused` if this retriever cannot filter documents.
        """


class Booking(NamedTuple):
    """The ledger and the sub-query to which the model calls of a search are charged."""

    ledger: Ledger
    sub_query_index: int
    """The number of the sub-query for which an executor searches."""


BOOKING = ContextVar[Booking | None]("booking", default=None)
"""Booking of the current task's search; None outside of runs, where calls are not booked. It is not
an argument of `IndexRetriever.search`, because only a retriever with a reranker calls a model.
"""


class Reranked(list[Passage]):
    """List of the passages for one query, with the record of the reranker's call for this query."""

    def __init__(self, passages: list[Passage], reranking: Reranking) -> None:
        super().__init__(passages)
        self.reranking = reranking
        """Record of the reranker's call. If the call failed, the passages have the order of the
        search.
        """


_WITHIN_S = 5.0
_EVERY_S = 5.0
_SOON_S = 1.0
"""`_WITHIN_S`: timeout of a probe. `_EVERY_S`: seconds between probes. `_SOON_S`: minimum seconds
between probes after a failure.
"""


@dataclass(frozen=True)
class WatchedRetriever:
    """A retriever that is probed regularly, and that reports to `Readiness` whether it works."""

    retriever: IndexRetriever
    """The retriever that is probed, and that searches."""
    readiness: Readiness
    source: str = "retrieval"
    """Name under which the retriever reports to `readiness`, such as `retrieval`."""
    _doubt: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def index_id(self) -> str | None:
        """See `IndexRetriever.index_id`."""
        return self.retriever.index_id

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """See `IndexRetriever.search`."""
        try:
            return await self.retriever.search(queries, top_k, document, only)
        except UpstreamError:
            self._doubt.set()
            raise

    async def probe(self) -> None:
        """Run a test query, and report to the readiness registry whether it succeeded. After a
        failure, the query contains random characters, so that no cache can answer it.
        """
        why: str | None = None
        query = f"health {secrets.token_hex(8)}" if self._doubt.is_set() else "health"
        try:
            async with asyncio.timeout(_WITHIN_S):
                await self.retriever.search([query], 1)
            self._doubt.clear()
        except (UpstreamError, TimeoutError) as error:
            self._doubt.set()
            why = str(error) or f"no reply within {_WITHIN_S:g} s"
        self.readiness.report(self.source, ["retrieval"], why)

    async def follow(self) -> None:
        """Probe forever: every `_EVERY_S` seconds, and sooner after a search that failed."""
        while True:
            await asyncio.sleep(_SOON_S)
            async with at_most(_EVERY_S):
                await self._doubt.wait()
            await self.probe()
