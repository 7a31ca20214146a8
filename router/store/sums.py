"""What is summed over calls."""

from typing import Any

from sqlalchemy import ColumnElement, func

from router.store.schema import CALLS, USAGE_HOURS

COUNTS = (
    "attempts",
    "attempts_without_usage",
    "attempts_without_cost",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "wasted_tokens",
    "nano_usd",
)
"""The columns of `usage_hours` that hold sums."""


def sums_of_calls() -> list[ColumnElement[Any]]:
    """One column for each of `COUNTS`, over rows of `calls`."""
    calls = CALLS.c
    sums = {
        "attempts": func.count(),
        "attempts_without_usage": func.count() - func.count(calls.prompt_tokens),
        "attempts_without_cost": func.count() - func.count(calls.nano_usd),
        "prompt_tokens": func.coalesce(func.sum(calls.prompt_tokens), 0),
        "completion_tokens": func.coalesce(func.sum(calls.completion_tokens), 0),
    }
    return [sums.get(name, func.sum(calls.get(name))).label(name) for name in COUNTS]


def sums_of_hours() -> list[ColumnElement[Any]]:
    """The same over rows of `usage_hours`."""
    return [func.sum(USAGE_HOURS.c[name]).label(name) for name in COUNTS]
