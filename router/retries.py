"""Trying again what is worth it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from router.errors import UpstreamError, UpstreamGarbled, UpstreamRefused, UpstreamUnavailable
from router.retry_budget import RetryBudget

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0
_LONGEST_WAIT_S = 30.0
"""The longest pause that an endpoint may ask for; a caller that is told of a longer one in time can go elsewhere."""
T = TypeVar("T")


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    *,
    attempts: int,
    budget: RetryBudget,
    until: float,
    elsewhere: Callable[[], bool],
) -> T:
    """What `attempt` returns, which is tried up to `attempts` times, with pauses that grow and that end before `until`,
    in the event loop's time. `elsewhere`: whether the next one goes to an endpoint that has not failed, at once, then.

    Raises the error of the last attempt.
    """
    budget.called()
    for number in count(1):
        try:
            return await attempt()
        except UpstreamRefused as error:  # a replica whose key or model's name is wrong adds no load by refusing
            if number == attempts or not error.lasting or not elsewhere():
                raise
            pause_s: float | None = 0.0
        except (UpstreamUnavailable, UpstreamGarbled) as error:
            pause_s = 0.0 if elsewhere() else _pause_s(error, number)
            late = pause_s is None or asyncio.get_running_loop().time() + pause_s > until
            if number == attempts or late or not budget.spend():
                raise
        await asyncio.sleep(pause_s or 0.0)
    raise AssertionError("the last attempt returns or raises")


def _pause_s(error: UpstreamError, number: int) -> float | None:
    """How long to wait before the same endpoint is asked again; None where it is not to be."""
    if not isinstance(error, UpstreamUnavailable) or not error.repeatable:
        return None
    if error.retry_after_s is not None:
        return error.retry_after_s if error.retry_after_s <= _LONGEST_WAIT_S else None
    return random.uniform(0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (number - 1)))
