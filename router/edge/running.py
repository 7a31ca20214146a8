"""Work that runs beside the stream that tells of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Running(Generic[Item, Result]):
    """Runs work in a task of its own while the context is open; leaving it cancels the work and waits for its end.

    Not a TaskGroup, because the streams yield inside it: a task that failed there would cancel whoever sends, and the
    client would get CANCELLED instead of the error (PEP 789).
    """

    def __init__(self, work: Callable[[Callable[[Item], None]], Coroutine[Any, Any, Result]]) -> None:
        """`work` is given a function to tell with."""
        self._told: asyncio.Queue[Item | None] = asyncio.Queue()
        self._work = work

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work(self._told.put_nowait))
        self._task.add_done_callback(lambda _task: self._told.put_nowait(None))
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[Item]:
        """What is told, until the work ends."""
        while (item := await self._told.get()) is not None:
            yield item

    async def result(self) -> Result:
        """What the work returns; raises what it raises."""
        return await self._task
