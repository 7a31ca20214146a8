"""Observers, such as metrics and tracing: they are called for each request, run and search."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from router.frozen import Frozen
from router.protocol import Passage
from router.search.retrieval import IndexRetriever
from router.trace import Run
from router.trace.scope import NO_FILTER, DocumentFilter


class Observer(Protocol):
    """Callbacks for requests, runs and searches, called in the task that works on them. They must
    return quickly and must not raise.
    """

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """Called when a request arrives. `method`: the gRPC method or the HTTP path, such as
        `/rolegate.v1.AnswerService/Answer`. `metadata`: the headers of the request.
        """

    def request_ended(
        self,
        method: str,
        code: str,
        duration_s: float,
    ) -> None:
        """Called when a request was answered. `code`: the gRPC or HTTP status, such as `OK` or
        `404`. `duration_s`: seconds since the request arrived.
        """

    def run_began(self) -> None:
        """Called when the beginning of a run is recorded and the work on it starts."""

    def run_ended(self, run: Run, *, private: bool) -> None:
        """Called when a run has ended. `run`: the run with all its calls. `private`: True if the
        observer must not keep the texts of the run.
        """

    def searched(
        self,
        query: str,
        began_at: float,
        duration_s: float,
        error: str | None,
    ) -> None:
        """Called after a search for `query`. `began_at`: Unix time, in seconds. `error`: the name
        of the exception's class; None if the search succeeded.
        """


def _each(name: str) -> Callable[..., None]:
    """Return a method that calls the method `name` of all observers."""

    def call(self: "Observers", *values: Any, **named: Any) -> None:
        for observer in self.all:
            getattr(observer, name)(*values, **named)

    return call


class Observers:
    """An observer that passes every call on to any number of other observers."""

    def __init__(self, *observers: Observer) -> None:
        self.all = observers

    def __bool__(self) -> bool:
        """Return True if there is an observer."""
        return bool(self.all)

    request_began = _each("request_began")
    request_ended = _each("request_ended")
    run_began = _each("run_began")
    run_ended = _each("run_ended")
    searched = _each("searched")


class ObservedRetriever(Frozen):
    """A retriever that reports its searches to an observer."""

    retriever: IndexRetriever
    observer: Observer

    @property
    def index_id(self) -> str | None:
        """Identifier of the index; see `IndexRetriever.index_id`."""
        return self.retriever.index_id

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Search like `IndexRetriever.search`, and report each query to the observer."""
        began_at = time.time()
        begun = time.monotonic()
        error: str | None = None
        try:
            return await self.retriever.search(queries, top_k, document, only)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            for query in queries:
                self.observer.searched(query, began_at, time.monotonic() - begun, error)
