"""Work in a thread that ends early when whoever waits for it is cancelled."""

import asyncio
from collections.abc import Callable
from threading import Event
from typing import TypeVar

T = TypeVar("T")

Check = Callable[[], None]
"""Raises `Stopped` once the work is to end; to be called now and then."""


class Stopped(Exception):
    """The work was told to end."""


async def stoppable(work: Callable[[Check], T]) -> T:
    """What `work` returns or raises, run in a thread. Cancelled, it waits until `work` has ended."""
    stopped = Event()

    def check() -> None:
        if stopped.is_set():
            raise Stopped

    working = asyncio.ensure_future(asyncio.to_thread(work, check))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stopped.set()
        await asyncio.gather(working, return_exceptions=True)
        raise
