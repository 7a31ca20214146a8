"""Work that runs beside the stream that tells of it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Generic, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_MOST = 256
"""Items that wait for a slow reader before they are merged."""


class Running(Generic[Item, Result]):
    """Runs work in a task of its own while the context is open; leaving it cancels the work and waits for its end.

    Not a TaskGroup, because the streams yield inside it: a task that failed there would cancel whoever sends, and the
    client would get CANCELLED instead of the error (PEP 789).
    """

    def __init__(
        self,
        work: Callable[[Callable[[Item], None]], Coroutine[Any, Any, Result]],
        merged: Callable[[Iterable[Item]], Iterable[Item]] | None = None,
    ) -> None:
        """`work` is given a function to tell with, and waits for no reader. `merged`: few items that tell what many
        would have told, for a reader that is slower than work which tells much; None for work that tells little.
        """
        self._told: deque[Item] = deque()
        self._most = _MOST
        self._news = asyncio.Event()
        self._work, self._merged = work, merged

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work(self._tell))
        self._task.add_done_callback(lambda _task: self._news.set())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[Item]:
        """What is told, until the work ends."""
        while True:
            while self._told:
                yield self._told.popleft()
            if self._task.done():
                return
            self._news.clear()
            await self._news.wait()

    async def result(self) -> Result:
        """What the work returns; raises what it raises."""
        return await self._task

    def _tell(self, item: Item) -> None:
        if self._merged is not None and len(self._told) >= self._most:
            self._told = deque(self._merged(self._told))
            self._most = max(_MOST, 2 * len(self._told))
        self._told.append(item)
        self._news.set()
