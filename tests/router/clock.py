"""An event loop whose clock stands still until a test moves it, so that no test waits for time
to pass.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock(asyncio.SelectorEventLoop):
    """Tells the time that it is told."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and everything happen that is due by then."""
        await self.settle()
        self.now += seconds
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that needs no more time."""
        for _ in range(200):
            await asyncio.sleep(0)


def with_clock(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run `main` on a clock of its own."""
    clock = Clock()
    with asyncio.Runner(loop_factory=lambda: clock) as runner:
        return runner.run(main(clock))


async def ended(work: Awaitable[T]) -> T:
    """What `work` returns; fails where it hangs in real time."""
    async with asyncio.timeout(10):
        return await work
