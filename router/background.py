"""The event loop's clock, background tasks, task groups, worker threads, and errors that are logged
instead of raised.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import structlog

from router.errors import RolegateError

_log = structlog.get_logger("gateway")
T = TypeVar("T")
_FREED = 50
"""Number of parts that `free_slowly` frees in one step of the event loop."""


def loop_time() -> float:
    """Return the time by the event loop's clock, in seconds. Deadlines are in this time."""
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def at_most(seconds: float) -> AsyncIterator[None]:
    """Cancel the body of the `async with` statement after `seconds` seconds. No error is raised;
    the program continues after the statement.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


@asynccontextmanager
async def background_tasks(*endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run each coroutine in a task while the context is open. On leaving, cancel the tasks and wait
    until they have ended. An exception that ends a task early is logged.
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
    """Open an `asyncio.TaskGroup` that raises the exception of the first failed task itself, not
    wrapped in an `ExceptionGroup`.

    As in any task group, the other tasks are then cancelled. Their exceptions are dropped.
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
    """Suppress exceptions in the body of the `with` statement, and log them as `event` with the
    fields `known`.

    A `RolegateError` is logged as a warning without traceback, any other exception as an error with
    traceback.
    """
    try:
        yield
    except RolegateError as error:
        log.warning(event, error=f"{type(error).__name__}: {error}", **known)
    except Exception:
        log.exception(event, **known)


def free_slowly(parts: Iterable[object], after_s: float) -> None:
    """Free the memory of a large object, given as its parts, without blocking the event loop for
    long.

    The parts are kept for `after_s` seconds. Meanwhile, all other users should drop their
    references to them. Then a few parts are released in each step of the event loop. Releasing a
    table with all its cells in one step would block the event loop noticeably.
    """
    asyncio.get_running_loop().call_later(after_s, _free, list(parts))


def _free(parts: list[object]) -> None:
    del parts[-_FREED:]
    if parts:
        asyncio.get_running_loop().call_soon(_free, parts)


class Worker:
    """A single thread for computations that would block the event loop; further work is queued.

    A thread that computes holds Python's global interpreter lock for up to 5 ms at a time and
    blocks the event loop meanwhile. So there are only a few workers, such as `in_worker` and
    `in_viewer`, and not one thread for each piece of work.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)

    async def __call__(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work(*arguments)` in the thread, after all work that was queued before, and return
        its result.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


in_worker = Worker("worker")
"""Worker for the computations of requests and of tables that are being filled."""
in_viewer = Worker("viewer")
"""Worker that prepares stored runs for clients that read them: for web pages, exports and `GetRun`.
"""
