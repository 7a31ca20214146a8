"""Background tasks, task groups, worker threads, and errors that are logged instead of raised."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import structlog

from router.errors import RolegateError

_log = structlog.get_logger("gateway")
T = TypeVar("T")
_FREED = 50
"""Parts that are freed in one step."""


@asynccontextmanager
async def background_tasks(*endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines while the context is open, then cancel them and wait for their ends. A task
    that fails is logged.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in endless]
    for task in tasks:
        task.add_done_callback(_log_failure)

    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task.failed", task=getattr(task.get_coro(), "__qualname__", ""), exc_info=error)


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Open an `asyncio.TaskGroup` that raises its first error itself, without the group around it.

    The other tasks are cancelled, as in any task group; their errors are dropped.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__


@contextmanager
def errors_logged(
    log: structlog.typing.FilteringBoundLogger, event: str, **known: str
) -> Iterator[None]:
    """Log an error that ends the block instead of raising it. A `RolegateError` is logged without
    its traceback.
    """
    try:
        yield
    except RolegateError as error:
        log.warning(event, error=f"{type(error).__name__}: {error}", **known)
    except Exception:
        log.exception(event, **known)


def free_slowly(parts: Iterable[object], after_s: float) -> None:
    """Keep the parts of a large object for some seconds, in which its users let go of it, and then
    free them in steps: freeing a table with all its cells in one step would hold the event loop.
    """
    asyncio.get_running_loop().call_later(after_s, _free, list(parts))


def _free(parts: list[object]) -> None:
    del parts[-_FREED:]
    if parts:
        asyncio.get_running_loop().call_soon(_free, parts)


class Worker:
    """A single thread for work that would block the event loop.

    A thread that computes holds up the event loop for 5 ms at a time, so there are only two,
    however much work is queued.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)

    async def __call__(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return the result of `work(*arguments)`, once all earlier work is done."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


in_worker = Worker("worker")
"""Worker for requests and for tables that are being filled."""
in_viewer = Worker("viewer")
"""Worker for those who view runs."""
