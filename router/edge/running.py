"""Background tasks of streamed and detached requests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import nullcontext
from typing import Any, Generic, Self, TypeVar

from router.access import Access, caller
from router.edge.status import logged_failure
from router.trace import Event, Run
from router.trace.values import OnEvent, RunStarted

Item = TypeVar("Item")
Result = TypeVar("Result")


class Running(Generic[Item, Result]):
    """Runs work in its own task while the context is open; leaving it cancels the work and waits
    for its end.

    Not a TaskGroup, because streams yield inside the context: a failing task would cancel the
    sender, and the client would get CANCELLED instead of the error (PEP 789).
    """

    def __init__(
        self, work: Callable[[Callable[[Item], None]], Coroutine[Any, Any, Result]]
    ) -> None:
        """`work`: takes a function that emits items; it never waits for the reader."""
        self._items: list[Item] = []
        self._changed = asyncio.Event()
        self._work = work

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work(self._emit))
        self._task.add_done_callback(lambda _task: self._changed.set())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[list[Item]]:
        """Yield the items emitted since the last time, until the work ends."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            ended = self._task.done()
            if self._items:
                items = self._items
                self._items = []
                yield items
            if ended:
                return

    async def result(self) -> Result:
        """Wait for the work and return its result, or raise its error."""
        return await self._task

    def _emit(self, item: Item) -> None:
        self._items.append(item)
        self._changed.set()


class Detached:
    """Runs that outlive their requests."""

    def __init__(self, access: Access | None = None) -> None:
        """`access`: cancels runs whose key is revoked."""
        self._access = access
        self._tasks: set[asyncio.Task[Run]] = set()

    async def start(self, work: Callable[[OnEvent], Coroutine[Any, Any, Run]]) -> str:
        """Start the work. Return the run's identifier once the run is recorded; raise the error if
        it fails before that.
        """
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def on_event(event: Event) -> None:
            if isinstance(event, RunStarted) and not begun.done():
                begun.set_result(event.run_id)

        async def admitted() -> Run:
            with self._access.serving(caller()) if self._access else nullcontext():
                return await work(on_event)

        task = asyncio.create_task(admitted())
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
        """Let running work finish for `grace_s` seconds, then cancel it."""
        if tasks := set(self._tasks):
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[Run]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logged_failure(error)
