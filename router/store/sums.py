"""What is summed over calls."""

from typing import Any

from sqlalchemy import BigInteger, ColumnElement, case, cast, func, literal_column

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

MOST = 2 * 10**16
"""No sum that is kept counts for more, so that hundreds of them still add up to what every database holds. It is twenty
million dollars."""


def whole(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """`column` as a whole number from 0 to `MOST`, whatever older releases have written there."""
    zero: ColumnElement[Any] = literal_column("0")
    most: ColumnElement[Any] = literal_column(str(MOST))
    return case((column < zero, zero), (column > most, most), else_=cast(column, BigInteger))


def sums_of_calls() -> list[ColumnElement[Any]]:
    """One column for each of `COUNTS`, over rows of `calls`."""
    calls = CALLS.c
    sums = {
        "attempts": func.count(),
        "attempts_without_usage": func.count() - func.count(calls.prompt_tokens),
        "attempts_without_cost": func.count() - func.count(calls.nano_usd),
    }
    for name in COUNTS[3:]:
        sums[name] = func.sum(whole(calls[name]))
    for name in ("prompt_tokens", "completion_tokens"):
        sums[name] = func.coalesce(sums[name], 0)
    return [sums[name].label(name) for name in COUNTS]


def sums_of_hours() -> list[ColumnElement[Any]]:
    """The same over rows of `usage_hours`."""
    return [func.sum(whole(USAGE_HOURS.c[name])).label(name) for name in COUNTS]
