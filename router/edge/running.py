"""Work in a task of its own: its news is passed on while it goes on, or it outlives whoever
asked for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, Self, TypeVar

from router.edge.status import logged_failure
from router.trace import Event, Run
from router.trace.values import OnEvent, RunStarted

Item = TypeVar("Item")
Result = TypeVar("Result")


class Running(Generic[Item, Result]):
    """Runs work in a task of its own while the context is open; leaving it cancels the work and
    waits for its end.

    Not a TaskGroup, because the streams yield inside it: a task that failed there would cancel
    whoever sends, and the client would get CANCELLED instead of the error (PEP 789).
    """

    def __init__(
        self, work: Callable[[Callable[[Item], None]], Coroutine[Any, Any, Result]]
    ) -> None:
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
                told = self._told
                self._told = []
                yield told
            if ended:
                return

    async def result(self) -> Result:
        """Wait for the work; return what it returns, raise what it raises."""
        return await self._task

    def _tell(self, item: Item) -> None:
        self._told.append(item)
        self._news.set()


class Detached:
    """Runs that outlive whoever asked for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Run]] = set()

    async def start(self, work: Callable[[OnEvent], Coroutine[Any, Any, Run]]) -> str:
        """Begin to work; the run's identifier, once it is on record. Raises what comes in
        between.
        """
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_event(event: Event) -> None:
            if isinstance(event, RunStarted) and not begun.done():
                begun.set_result(event.run_id)

        task = asyncio.create_task(work(on_event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        either: tuple[asyncio.Future[Any], ...] = (begun, task)
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not begun.done():
                task.cancel()
            raise
        if not begun.done():
            return (await task).id
        task.add_done_callback(_log_failure)
        return begun.result()

    async def drain(self, grace_s: float) -> None:
        """Give what is running `grace_s` seconds to finish, and then cancel it."""
        if tasks := set(self._tasks):
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[Run]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logged_failure(error)
