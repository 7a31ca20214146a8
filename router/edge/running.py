"""Work in a task of its own, whose news is passed on while it goes on."""

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
        """`work` is given a function to tell with, and waits for no reader."""
        self._told: list[Item] = []
        self._news = asyncio.Event()
        self._work = work

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work(self._tell))
        self._task.add_done_callback(lambda _task: self._news.set())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[list[Item]]:
        """Items that were told since the last time, until the work ends."""
        while True:
            await self._news.wait()
            self._news.clear()
            ended = self._task.done()
            if self._told:
                told, self._told = self._told, []
                yield told
            if ended:
                return

    async def result(self) -> Result:
        """Wait for the work; return what it returns, raise what it raises."""
        return await self._task

    def _tell(self, item: Item) -> None:
        self._told.append(item)
        self._news.set()
