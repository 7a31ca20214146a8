"""An event loop in a thread of its own, for commands whose main thread waits for a person."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, TypeVar

Opened = TypeVar("Opened")


@contextmanager
def in_background(service: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """Keep `service` open while this is open; what it opens. Raises what it raises."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    opened: Future[Opened] = Future()

    async def keep() -> None:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        async with service as value:
            opened.set_result(value)
            await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(asyncio.run, keep())
        try:
            either: list[Future[Any]] = [opened, ended]
            wait(either, return_when=FIRST_COMPLETED)
            if ended.done():
                ended.result()
            yield opened.result()
        finally:
            loop, task = begun.result()
            with suppress(RuntimeError):  # the loop is closed where opening failed
                loop.call_soon_threadsafe(task.cancel)
            with suppress(asyncio.CancelledError):
                ended.result()
