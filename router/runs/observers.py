"""Whoever watches what happens, without having a say in it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from router.protocol import Passage
from router.search.retrieval import IndexRetriever
from router.trace import Run


class Observer(Protocol):
    """Hears of requests, runs and searches, in the task that works on them. It must be quick,
    and raise nothing.
    """

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """A request of `method`, such as `/rolegate.v1.AnswerService/Answer`. `metadata`: what
        came with it.
        """

    def request_ended(self, method: str, code: str, duration_s: float) -> None:
        """It was answered. `code`: as gRPC or HTTP names it, such as `OK` or `404`."""

    def run_began(self) -> None:
        """A run is on record, and is worked on from here on."""

    def run_ended(self, run: Run, *, private: bool) -> None:
        """It has ended, with all its calls. `private`: whether its texts must not be kept."""

    def searched(self, query: str, began_at: float, duration_s: float, error: str | None) -> None:
        """A query was searched for. `began_at`: Unix time, seconds. `error`: the error's class;
        None where it went well.
        """


class Observers:
    """Several as one; none are the one for a gateway that nobody watches."""

    def __init__(self, each: Iterable[Observer] = ()) -> None:
        self._each = tuple(each)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._each)

    def request_began(self, method: str, metadata: Mapping[str, str]) -> None:
        """See `Observer.request_began`."""
        for observer in self._each:
            observer.request_began(method, metadata)

    def request_ended(self, method: str, code: str, duration_s: float) -> None:
        """See `Observer.request_ended`."""
        for observer in self._each:
            observer.request_ended(method, code, duration_s)

    def run_began(self) -> None:
        """See `Observer.run_began`."""
        for observer in self._each:
            observer.run_began()

    def run_ended(self, run: Run, *, private: bool) -> None:
        """See `Observer.run_ended`."""
        for observer in self._each:
            observer.run_ended(run, private=private)

    def searched(self, query: str, began_at: float, duration_s: float, error: str | None) -> None:
        """See `Observer.searched`."""
        for observer in self._each:
            observer.searched(query, began_at, duration_s, error)


class ObservedRetriever:
    """A retriever whose searches are observed."""

    def __init__(self, retriever: IndexRetriever, observer: Observer) -> None:
        self._retriever = retriever
        self._observer = observer

    @property
    def index_id(self) -> str | None:
        """See `IndexRetriever.index_id`."""
        return self._retriever.index_id

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """See `Retriever.search`."""
        began_at = time.time()
        begun = time.monotonic()
        error = "CancelledError"
        try:
            found = await self._retriever.search(queries, top_k, document)
            error = ""
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            for query in queries:
                self._observer.searched(query, began_at, time.monotonic() - begun, error or None)
        return found
