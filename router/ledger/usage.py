"""Usage: sums over the calls of many runs, and their cost with other models."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from router.models import Usage
from router.trace import Price, RoleName
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


class Instead(NamedTuple):
    """Another model for a role, and the share of the tokens that it would use."""

    model: str
    token_share: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Instead":
        """Parse `MODEL` or `MODEL*SHARE`. Raises `ValueError`."""
        model, _, share = text.partition("*")
        instead = cls(model.strip(), float(share or 1))
        if not instead.model or not 0 < instead.token_share <= 1000:
            raise ValueError(
                "write MODEL or MODEL*SHARE, with a share of the tokens above 0, at most 1000"
            )
        return instead


def with_other_models(
    totals: Iterable[RoleTotal],
    prices: Mapping[str, Price],
    instead: Mapping[RoleName, Instead] = {},
) -> list[RoleTotal]:
    """Price totals again: with `prices` for the models in it, and as booked for others.

    `instead`: replacements by role, all of whose models are in `prices`.
    """
    return [
        _priced(total, prices, instead.get(total.role, Instead(total.model))) for total in totals
    ]


def _priced(total: RoleTotal, prices: Mapping[str, Price], other: Instead) -> RoleTotal:
    if (price := prices.get(other.model)) is None:
        return total

    share = other.token_share
    cached = None if total.cached_tokens is None else round(share * total.cached_tokens)
    usage = Usage(
        round(share * total.prompt_tokens), round(share * total.completion_tokens), cached
    )
    return msgspec.structs.replace(
        total,
        model=other.model,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        attempts_without_cost=total.attempts_without_usage,
        nano_usd=None if total.attempts_without_usage else price.cost(usage),
    )
