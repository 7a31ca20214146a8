"""Tasks for the work of streamed requests and of detached requests. The work of a detached request
continues after its connection is closed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, Self, TypeVar

from router.access import Access, caller
from router.edge.status import logged_failure
from router.trace import Event, Run
from router.trace.values import OnEvent, RunStarted

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[OnEvent], Coroutine[Any, Any, Run]]
"""The work of a request: an async function whose argument is a callback for the events of the
run.
"""


class Running(Generic[Item, Result]):
    """Runs the work of a streamed request in its own task. The code that sends the response
    iterates over the items that the work emits. Leaving the context cancels the work and waits for
    its end.

    This class does not use a `TaskGroup`, because streams yield inside the context. If the work
    failed, a task group would cancel the sending code, and the client would get CANCELLED instead
    of the error (see PEP 789).
    """

    def __init__(
        self, work: Callable[[Callable[[Item], None]], Coroutine[Any, Any, Result]]
    ) -> None:
        """`work`: called with a function that emits an item. That function returns immediately,
        even if the client reads slowly.
        """
        self._items = list[Item]()
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
        """Yield lists of the items that were emitted since the last list, until the work ends."""
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
        """Wait until the work has ended. Return its result, or raise its error."""
        return await self._task

    def _emit(self, item: Item) -> None:
        self._items.append(item)
        self._changed.set()


class Detached:
    """Starts runs that continue after the end of the request. Keeps references to the tasks of the
    runs, so that they are not garbage-collected.
    """

    def __init__(self, access: Access) -> None:
        """`access`: cancels a run when the key of its request is revoked."""
        self._access = access
        self._tasks = set[asyncio.Task[Run]]()

    async def start(self, work: Work) -> str:
        """Start the work in a task. Return the identifier of the run as soon as the beginning of
        the run is recorded. If the work fails before that, raise its error.
        """
        begun = asyncio.Future[str]()

        def on_event(event: Event) -> None:
            if isinstance(event, RunStarted) and not begun.done():
                begun.set_result(event.run_id)

        async def admitted() -> Run:
            with self._access.serving(caller()):
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


def _log_failure(task: asyncio.Task[Run]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logged_failure(error)
