"""Formats of numbers, times and names on pages, as filters of the templates."""

import time
from collections.abc import Callable
from typing import Any

from router.edge.status import message_of
from router.runs.archive import shortened

UNKNOWN = "unknown"


def money(nano_usd: int | None) -> str:
    """Return an amount in billionths of a dollar as dollars. From one dollar on, it is rounded to
    cents; smaller amounts have up to three significant digits. Return `unknown` for None.
    """
    if nano_usd is None:
        return UNKNOWN
    dollars = nano_usd / 1e9
    if dollars >= 1 or not nano_usd:
        return f"${dollars:,.2f}"
    return f"${dollars:.3g}" if dollars >= 1e-4 else f"${dollars:.1e}"


def count(number: int | None) -> str:
    """Return a number with thousands separators; `unknown` for None."""
    return UNKNOWN if number is None else f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def seconds(duration_s: float | None) -> str:
    """Return a duration in seconds as a text such as `340 ms`, `2.5 s` or `3 min 20 s`; `unknown`
    for None.
    """
    if duration_s is None:
        return UNKNOWN
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    return f"{int(duration_s // 60)} min {int(duration_s % 60)} s"


def moment(at: float) -> str:
    """Return a Unix time as date and time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def words(name: str | None) -> str:
    """Return the name of an enum value as words, such as `not found`. The outcome `filled` of a
    table becomes `done`, because another figure shows how many of its cells are filled.
    """
    return "done" if name == "filled" else (name or "").replace("_", " ")


FILTERS: dict[str, Callable[..., Any]] = {
    "money": money,
    "count": count,
    "counted": counted,
    "seconds": seconds,
    "moment": moment,
    "words": words,
    "shortened": shortened,
    "message": message_of,
}
"""The filters that templates may use, by name."""
