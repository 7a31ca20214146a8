"""Observers of requests, runs and searches, such as metrics and tracing."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from router.protocol import Passage
from router.search.retrieval import IndexRetriever
from router.trace import Run


class Observer(Protocol):
    """Called for each request, run and search, in the task that works on it. Must be fast and raise
    nothing.
    """

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """Called when a request of `method`, such as `/rolegate.v1.AnswerService/Answer`, arrives.
        `metadata`: its headers.
        """

    def request_ended(
        self,
        method: str,
        code: str,
        duration_s: float,
    ) -> None:
        """Called when it was answered. `code`: the gRPC or HTTP status, such as `OK` or `404`."""

    def run_began(self) -> None:
        """Called when a run is on record and work on it begins."""

    def run_ended(self, run: Run, *, private: bool) -> None:
        """Called when a run has ended, with all its calls. `private`: whether its texts must not be
        kept.
        """

    def searched(
        self,
        query: str,
        began_at: float,
        duration_s: float,
        error: str | None,
    ) -> None:
        """Called after a search. `began_at`: Unix time, seconds. `error`: the class of the error;
        None if it succeeded.
        """


class Observers:
    """Several observers as one; without any, it does nothing."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._observers)

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """See `Observer.request_began`."""
        for observer in self._observers:
            observer.request_began(method, metadata)

    def request_ended(
        self,
        method: str,
        code: str,
        duration_s: float,
    ) -> None:
        """See `Observer.request_ended`."""
        for observer in self._observers:
            observer.request_ended(method, code, duration_s)

    def run_began(self) -> None:
        """See `Observer.run_began`."""
        for observer in self._observers:
            observer.run_began()

    def run_ended(self, run: Run, *, private: bool) -> None:
        """See `Observer.run_ended`."""
        for observer in self._observers:
            observer.run_ended(run, private=private)

    def searched(
        self,
        query: str,
        began_at: float,
        duration_s: float,
        error: str | None,
    ) -> None:
        """See `Observer.searched`."""
        for observer in self._observers:
            observer.searched(query, began_at, duration_s, error)


class ObservedRetriever:
    """A retriever that reports its searches to an observer."""

    def __init__(self, retriever: IndexRetriever, observer: Observer) -> None:
        self._retriever = retriever
        self._observer = observer

    @property
    def index_id(self) -> str | None:
        """See `IndexRetriever.index_id`."""
        return self._retriever.index_id

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
    ) -> list[list[Passage]]:
        """See `Retriever.search`."""
        began_at = time.time()
        begun = time.monotonic()
        error: str | None = None
        try:
            return await self._retriever.search(queries, top_k, document)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            for query in queries:
                self._observer.searched(query, began_at, time.monotonic() - begun, error)
