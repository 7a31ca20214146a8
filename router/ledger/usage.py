"""Usage: sums over the calls of many runs."""

from typing import Literal, Protocol

import msgspec

from router.trace import RoleName
from router.trace.call import UsageSums

Dimension = Literal["tenant", "role", "model", "executor_version", "manager"]
Bucket = Literal["hour", "day", "month"]


class UsageQuery(msgspec.Struct, frozen=True):
    """Calls that are to be summed, and how."""

    start: float | None = None
    """Calls that started at this Unix time or later; None for no bound."""
    end: float | None = None
    """Calls that started before this Unix time; None for no bound."""
    tenant: str | None = None
    """None sums those of all tenants."""
    by: tuple[Dimension, ...] = ("role", "model")
    bucket: Bucket | None = None
    """A row for each hour, day or month (UTC); None for one span."""


class UsageRow(UsageSums, frozen=True, kw_only=True):
    """One sum; what was not grouped by is None."""

    bucket_start: float | None = None
    """Unix time, seconds."""
    tenant: str | None = None
    role: RoleName | None = None
    model: str | None = None
    executor_version: str | None = None
    manager: str | None = None


class UsageReport(msgspec.Struct, frozen=True):
    """The sums."""

    runs: int
    """Runs that started in that time and are still stored."""
    rows: tuple[UsageRow, ...]
    """By time, then by what was grouped by."""


class Usages(Protocol):
    """Sums over stored calls."""

    async def usage(self, query: UsageQuery) -> UsageReport:
        """The sums. Raises `BadRequest` for a span whose calls are partly deleted, and `StoreFailed`."""
