"""Figures as pages show them."""

import time
from collections.abc import Callable
from typing import Any

from router.runs.archive import shortened

UNKNOWN = "unknown"


def money(nano_usd: int | None) -> str:
    """Billionths of a dollar as dollars, to the cent or three figures; unknown is not zero."""
    if nano_usd is None:
        return UNKNOWN
    dollars = nano_usd / 1e9
    return (
        f"${dollars:,.2f}"
        if dollars >= 1 or not nano_usd
        else f"${dollars:.3g}"
        if dollars >= 1e-4
        else f"${dollars:.1e}"
    )


def usd(dollars: float | None) -> str:
    """Dollars, likewise."""
    return money(None if dollars is None else round(dollars * 1e9))


def count(number: int | None) -> str:
    """A number with its thousands apart."""
    return UNKNOWN if number is None else f"{number:,}"


def seconds(duration_s: float | None) -> str:
    """A duration: `340 ms`, `2.5 s`, `3 min 20 s`."""
    if duration_s is None:
        return UNKNOWN
    if duration_s < 1:
        return f"{duration_s * 1000:.0f} ms"
    return (
        f"{duration_s:.1f} s"
        if duration_s < 60
        else f"{int(duration_s // 60)} min {int(duration_s % 60)} s"
    )


def moment(at: float) -> str:
    """A Unix time in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def words(name: str | None) -> str:
    """A name of a value in words: `not found`."""
    return (name or "").replace("_", " ")


FILTERS: dict[str, Callable[..., Any]] = {
    "money": money,
    "usd": usd,
    "count": count,
    "seconds": seconds,
    "moment": moment,
    "words": words,
    "shortened": shortened,
}
"""Filters of templates, by name."""
