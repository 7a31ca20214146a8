"""A retriever that reports its readiness."""

import asyncio
from collections.abc import Sequence

import pytest

from router.background import background_tasks
from router.calls import Readiness
from router.errors import UpstreamUnavailable
from router.protocol import Passage
from router.search.retrieval import WatchedRetriever
from router.trace.scope import NO_FILTER, DocumentFilter
from tests.router.clock import Clock, with_clock


class Failing:
    """An index that remembers its results, and whose embedder works, is down, or hangs."""

    index_id = "an index"

    def __init__(self) -> None:
        self.works: bool | None = True
        self.known = set[str]()

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        if not self.known.issuperset(queries):
            if self.works is None:
                await asyncio.Event().wait()
            if not self.works:
                raise UpstreamUnavailable("connection refused", endpoint="e")
            self.known.update(queries)
        return [[] for _ in queries]


def test_it_is_down_until_a_search_has_worked() -> None:
    """There is no other traffic. A result from the cache does not count after a failure."""

    async def main(clock: Clock) -> None:
        inner = Failing()
        readiness = Readiness()
        retriever = WatchedRetriever(inner, readiness)
        async with background_tasks(retriever.follow()):
            for works, why in ((False, "connection refused"), (None, "no reply within 5 s")):
                inner.works = True
                for _ in range(10):
                    await clock.advance(1)
                assert readiness.down(["retrieval"]) is None
                inner.works = works
                search = asyncio.create_task(
                    retriever.search(["Heat"] if works is None else ["Ali"], 1)
                )
                await clock.settle()
                if works is None:
                    search.cancel()
                    inner.known.clear()
                else:
                    with pytest.raises(UpstreamUnavailable):
                        await search
                for _ in range(20):
                    await clock.advance(1)
                assert why in str(readiness.down(["retrieval"]))
                assert readiness.down(["answer", "store"]) is None

    with_clock(main)


def test_a_single_failed_search_is_no_outage() -> None:
    """The next one works."""

    async def main(clock: Clock) -> None:
        inner = Failing()
        readiness = Readiness()
        news = 0
        retriever = WatchedRetriever(inner, readiness)

        async def count() -> None:
            nonlocal news
            async for _ in readiness.changes():
                news += 1

        async with background_tasks(retriever.follow(), count()):
            inner.works = False
            with pytest.raises(UpstreamUnavailable):
                await retriever.search(["Heat"], 1)
            inner.works = True
            for _ in range(10):
                await clock.advance(1)
        assert (news, readiness.all) == (1, {})

    with_clock(main)
