"""Work without an end, beside what is done meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

_log = structlog.get_logger("tasks")


@asynccontextmanager
async def meanwhile(*endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let these go on while the context is open; then they are cancelled, and their ends waited for. One that fails is
    logged.
    """
    tasks = [asyncio.create_task(work) for work in endless]
    for task in tasks:
        task.add_done_callback(_tell_failure)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task.failed", task=getattr(task.get_coro(), "__qualname__", ""), exc_info=error)
