"""What is down of what the services need, and word of every change."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Literal

import structlog

_log = structlog.get_logger("readiness")
Need = Literal["delegation", "execution", "answer", "retrieval", "store"]
"""A role's model, the passages, or the database."""


class Readiness:
    """A board on which whoever watches a part of the deployment says how it is."""

    def __init__(self) -> None:
        self._down: dict[str, tuple[list[Need], str]] = {}
        self._news = asyncio.Event()

    def say(self, source: str, needs: Collection[Need], why: str | None) -> None:
        """`source`, such as `engines.executor`, which `needs` depend on, is down, and `why`; None: it is there."""
        before = self._down.pop(source, None)
        if why is not None:
            self._down[source] = list(needs), why
        if (before and before[1]) == why:
            return
        if why is None:
            _log.info("readiness.up", source=source)
        else:
            _log.warning("readiness.down", source=source, why=why)
        self._news.set()
        self._news = asyncio.Event()

    def down(self, needs: Collection[Need]) -> str | None:
        """Why one of `needs` cannot be met; None where nothing is in the way."""
        return next((f"{source}: {why}" for source, (of, why) in self._down.items() if set(of) & set(needs)), None)

    @property
    def all(self) -> dict[str, tuple[list[Need], str]]:
        """Everything that is down: by source, what depends on it and why."""
        return dict(self._down)

    async def changes(self) -> AsyncIterator[None]:
        """Once now, and after every change; those that come close together may count as one."""
        while True:
            news = self._news
            yield
            await news.wait()
