"""Ways to ask many times."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

Ask = Callable[[int], Awaitable[object]]
"""Asks once, given a number that nobody else gets."""


async def in_flight(ask: Ask, times: int, at_once: int) -> list[float]:
    """Ask `times` times, always `at_once` at a time; seconds of each."""
    seconds: list[float] = []
    left = iter(range(times))

    async def keep_asking() -> None:
        seconds.extend([await timed(ask, number) for number in left])

    async with asyncio.TaskGroup() as group:
        for _ in range(min(times, at_once)):
            group.create_task(keep_asking())
    return seconds


async def at_rate(ask: Ask, times: int, a_second: float, seed: int = 0) -> list[float]:
    """Ask `times` times, `a_second` times a second on average, as independent callers do; seconds of each."""
    chance, due = random.Random(seed), asyncio.get_running_loop().time()
    tasks = []
    async with asyncio.TaskGroup() as group:
        for number in range(times):
            due += chance.expovariate(a_second)
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            tasks.append(group.create_task(timed(ask, number)))
    return [task.result() for task in tasks]


async def timed(ask: Ask, number: int) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    await ask(number)
    return time.perf_counter() - begun
