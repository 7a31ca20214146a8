"""A second attempt beside a slow one."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from router.calls.limits import Durations, hedged
from tests.router.clock import Clock, with_clock


async def takes(seconds: float, said: str | Exception) -> str:
    """Say it after that time."""
    await asyncio.sleep(seconds)
    if isinstance(said, Exception):
        raise said
    return said


@pytest.mark.parametrize(
    ("first", "second", "said", "after_s"),
    [
        (takes(0.5, "first"), None, "first", 0.5),
        (takes(3.0, "first"), takes(5.0, "second"), "first", 3.0),
        (takes(9.0, "first"), takes(1.0, "second"), "second", 2.0),
        (takes(9.0, "first"), takes(1.0, KeyError("second")), "first", 9.0),
        (takes(2.0, KeyError("first")), takes(4.0, "second"), "second", 5.0),
        (takes(2.0, KeyError("first")), takes(1.5, KeyError("second")), None, 2.5),
        (takes(0.5, KeyError("first")), None, None, 0.5),
    ],
)
def test_the_first_to_succeed(
    first: Coroutine[Any, Any, str], second: Coroutine[Any, Any, str] | None, said: str | None, after_s: float
) -> None:
    """The second one begins after a second; the loser is cancelled. Where both fail the first error counts."""

    async def main(clock: Clock) -> None:
        begun = clock.time()
        task = asyncio.create_task(hedged(first, lambda: second, 1.0))
        while not task.done():
            await clock.advance(0.25)
        assert clock.time() - begun == after_s
        if said is None:
            with pytest.raises(KeyError, match="first"):
                await task
        else:
            assert await task == said

    with_clock(main)


def test_percentiles() -> None:
    """Of twenty or more, and of the last two hundred."""
    durations = Durations()
    for number in range(19):
        durations.add(number)
    assert durations.percentile(50) is None
    for number in range(300):
        durations.add(number)
    assert (durations.percentile(50), durations.percentile(95)) == (200, 290)
