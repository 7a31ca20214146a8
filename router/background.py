"""Work beside the requests: what goes on until it is cancelled, what would hold the event loop for
too long, and errors that are logged instead of raised.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import structlog

from router.errors import RolegateError

_log = structlog.get_logger("gateway")
T = TypeVar("T")


@asynccontextmanager
async def background_tasks(*endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let these go on while the context is open; then they are cancelled, and their ends waited
    for. One that fails is logged.
    """
    tasks = [asyncio.create_task(work) for work in endless]
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


@contextmanager
def errors_logged(
    log: structlog.typing.FilteringBoundLogger, event: str, **known: str
) -> Iterator[None]:
    """Log an error that ends the block, instead of raising it; with its trace where it is not
    one of ours.
    """
    try:
        yield
    except RolegateError as error:
        log.warning(event, error=f"{type(error).__name__}: {error}", **known)
    except Exception:
        log.exception(event, **known)


class Worker:
    """A thread for work that takes longer than one step of the event loop should, one piece at a
    time.

    A thread that computes keeps the event loop from its turn for 5 ms each time, so there are few
    of them, however much there is to do.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)

    async def __call__(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return what `work` returns, once all that was asked for before it is done."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


in_worker = Worker("worker")
"""For requests, and tables that are being filled."""
in_viewer = Worker("viewer")
"""For those who look at runs."""
