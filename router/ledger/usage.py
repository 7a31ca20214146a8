"""Usage: sums over the calls of many runs."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from router.trace import RoleName
from router.trace.call import RoleTotal, UsageSums

Dimension = Literal["tenant", "role", "model", "executor_version", "manager"]
Bucket = Literal["hour", "day", "month"]


class UsageQuery(msgspec.Struct, frozen=True):
    """Selection and grouping of the calls to sum."""

    start: float | None = None
    """Calls that started at this Unix time or later; None for no bound."""
    end: float | None = None
    """Calls that started before this Unix time; None for no bound."""
    tenant: str | None = None
    """None for all tenants."""
    by: tuple[Dimension, ...] = ("role", "model")
    bucket: Bucket | None = None
    """One row per hour, day or month (UTC); None for no such grouping."""


class UsageRow(UsageSums, frozen=True, kw_only=True):
    """Sums of one group; dimensions that were not grouped by are None."""

    bucket_start: float | None = None
    """Unix time, seconds."""
    tenant: str | None = None
    role: RoleName | None = None
    model: str | None = None
    executor_version: str | None = None
    manager: str | None = None


class UsageReport(msgspec.Struct, frozen=True):
    """Usage of a span of time."""

    runs: int
    """Number of stored runs that started in the span."""
    rows: tuple[UsageRow, ...]
    """Rows in the order of time, then of the dimensions."""


class Usages(Protocol):
    """Sums stored calls."""

    async def usage(self, query: UsageQuery) -> UsageReport:
        """Return the sums. Raises `BadRequest` for a span whose calls are partly deleted, and
        `StoreFailed`.
        """


def dollars(totals: Sequence[RoleTotal]) -> float | None:
    """Return the cost of totals in dollars; None if the cost of any call is unknown."""
    if any(total.attempts_without_cost for total in totals):
        return None
    return sum(total.nano_usd or 0 for total in totals) / 1e9
