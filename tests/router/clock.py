"""An event loop whose clock moves only when a test moves it, so that no test waits for time to
pass.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock(asyncio.SelectorEventLoop):
    """A clock that a test moves."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        """Advance by `seconds`; everything that is due meanwhile happens."""
        await self.settle()
        self.now += seconds
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that needs no more time."""
        for _ in range(200):
            await asyncio.sleep(0)


def with_clock(main: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run `main` on a new clock."""
    clock = Clock()
    with asyncio.Runner(loop_factory=lambda: clock) as runner:
        return runner.run(main(clock))


async def ended(work: Awaitable[T]) -> T:
    """Return the result of `work`; fail if it hangs in real time."""
    async with asyncio.timeout(10):
        return await work
