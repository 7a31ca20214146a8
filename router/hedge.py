"""Hedging: a second attempt beside one that takes longer than most."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_KEPT, _LEAST = 200, 20
T = TypeVar("T")


class Durations:
    """How long the last calls took that went well."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_KEPT)

    def add(self, duration_s: float) -> None:
        """Count one."""
        self._last.append(duration_s)

    def percentile(self, share: float) -> float | None:
        """What `share` percent of them took at most, in seconds; None while too few are known."""
        if len(self._last) < _LEAST:
            return None
        return sorted(self._last)[min(len(self._last) - 1, int(len(self._last) * share / 100))]


async def hedged(
    first: Coroutine[Any, Any, T], second: Callable[[], Coroutine[Any, Any, T] | None], after_s: float
) -> T:
    """What the first of both to succeed returns; the other one is cancelled. `second` is begun after `after_s` seconds,
    unless it gives nothing to begin. Raises what `first` raises where neither succeeds.
    """

    async def told(attempt: Coroutine[Any, Any, T]) -> T | Exception:
        try:
            return await attempt
        except Exception as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(told(first))]
        await asyncio.wait(tasks, timeout=after_s)
        if not tasks[0].done() and (another := second()) is not None:
            tasks.append(group.create_task(told(another)))
        running = set(tasks)
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not isinstance(found := task.result(), Exception):
                    for loser in running:
                        loser.cancel()
                    return found
    failure = tasks[0].result()
    assert isinstance(failure, Exception)
    raise failure
