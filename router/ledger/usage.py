"""Usage: sums over the calls of many runs, and what they would have cost with other models."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from router.models import Usage
from router.trace import Price, RoleName
from router.trace.call import RoleTotal, UsageSums

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
        """The sums. Raises `BadRequest` for a span whose calls are partly deleted, and
        `StoreFailed`.
        """


def dollars(many: Sequence[RoleTotal]) -> float | None:
    """Return their cost; None where that of any call is unknown."""
    unknown = any(one.attempts_without_cost for one in many)
    return None if unknown else sum(one.nano_usd or 0 for one in many) / 1e9


class Instead(NamedTuple):
    """Another model in a role, and the share of the tokens that it reads and writes."""

    model: str
    token_share: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Instead":
        """The reader of `MODEL` and `MODEL*SHARE`. Raises `ValueError`."""
        model, _, share = text.partition("*")
        found = cls(model.strip(), float(share or 1))
        if not found.model or not 0 < found.token_share <= 1000:
            raise ValueError(
                "write MODEL or MODEL*SHARE, with a share of the tokens above 0, 1000 at most"
            )
        return found


def with_other_models(
    many: Iterable[RoleTotal], prices: Mapping[str, Price], instead: Mapping[RoleName, Instead] = {}
) -> list[RoleTotal]:
    """Price the totals anew: models in `prices` cost what stands there, others what was booked.
    `instead`: by role; all of its models are in `prices`.
    """
    return [_priced(one, prices, instead.get(one.role, Instead(one.model))) for one in many]


def _priced(one: RoleTotal, prices: Mapping[str, Price], other: Instead) -> RoleTotal:
    if (price := prices.get(other.model)) is None:
        return one
    share = other.token_share
    cached = None if one.cached_tokens is None else round(share * one.cached_tokens)
    usage = Usage(round(share * one.prompt_tokens), round(share * one.completion_tokens), cached)
    return msgspec.structs.replace(
        one,
        model=other.model,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        attempts_without_cost=one.attempts_without_usage,
        nano_usd=None if one.attempts_without_usage else price.cost(usage),
    )
