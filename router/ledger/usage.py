"""Usage: sums of tokens and cost over the calls of many runs."""

from collections.abc import Sequence
from typing import Literal, Protocol

from router.frozen import Frozen
from router.trace import RoleName
from router.trace.call import RoleTotal, UsageSums

Dimension = Literal["tenant", "role", "model", "executor_version", "manager", "key_id"]
Bucket = Literal["hour", "day", "month"]


class UsageQuery(Frozen):
    """Selects the calls to sum, and says how to group them."""

    start: float | None = None
    """Select only calls that started at this Unix time or later; None for no bound."""
    end: float | None = None
    """Select only calls that started before this Unix time; None for no bound."""
    tenant: str | None = None
    """Select only calls of this tenant; None for all tenants."""
    by: tuple[Dimension, ...] = ("role", "model")
    """Dimensions by which the calls are grouped; the result has one row for each combination of
    their values.
    """
    bucket: Bucket | None = None
    """Also group by the hour, day or month (UTC) in which calls started; None not to group by time.
    """


class UsageRow(UsageSums, frozen=True, kw_only=True):
    """Sums over the calls of one group. A dimension is None if the query did not group by it."""

    bucket_start: float | None = None
    """Unix time in seconds at which the hour, day or month begins; None without buckets."""
    tenant: str | None = None
    role: RoleName | None = None
    model: str | None = None
    executor_version: str | None = None
    manager: str | None = None
    key_id: str | None = None
    """Identifier of the API key, without its secret; empty for calls whose key is not known."""


class UsageReport(Frozen):
    """The usage in a time span."""

    runs: int
    """Number of stored runs that started in the time span."""
    rows: tuple[UsageRow, ...]
    """Sums of the groups, sorted by time, then by the values of the dimensions."""


class Usages(Protocol):
    """Protocol of a store that sums calls."""

    async def usage(self, query: UsageQuery) -> UsageReport:
        """Return the usage that `query` selects. Raises `BadRequest` if the time span is empty, or
        begins or ends within an hour whose calls have been deleted. Raises `StoreFailed`.
        """


def dollars(totals: Sequence[RoleTotal]) -> float | None:
    """Return the sum of the roles' costs in dollars; None if the cost of any call is unknown."""
    if any(total.attempts_without_cost for total in totals):
        return None
    return sum(total.nano_usd or 0 for total in totals) / 1e9
