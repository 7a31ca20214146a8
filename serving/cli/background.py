"""An event loop in a thread of its own, for commands whose main thread waits for a person."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, TypeVar

Opened = TypeVar("Opened")

_WAKES_EVERY_S = 0.1


def wait_for_any(futures: Sequence[Future[Any]]) -> None:
    """Until one of them is done. An interrupt that comes just before a thread sleeps is noticed when it wakes, so this
    wakes now and then.
    """
    while not wait(futures, _WAKES_EVERY_S, FIRST_COMPLETED).done:
        pass


@contextmanager
def in_background(service: AbstractAsyncContextManager[Opened]) -> Iterator[Opened]:
    """Keep `service` open while this is open; what it opens. Raises what it raises."""
    opened: Future[Opened] = Future()
    left: Future[None] = Future()

    async def keep() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def leave(_left: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop is closed where opening failed
                loop.call_soon_threadsafe(task.cancel)

        left.add_done_callback(leave)  # at once, where an interrupt came before this
        async with service as value:
            opened.set_result(value)
            await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # an interrupt while a thread starts would leave it unknown to the pool
        try:
            ended = pool.submit(asyncio.run, keep())
            either: list[Future[Any]] = [opened, ended]
            wait_for_any(either)
            if ended.done():
                ended.result()
            yield opened.result()
        finally:
            left.set_result(None)
        with suppress(asyncio.CancelledError):
            ended.result()
