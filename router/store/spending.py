"""Spending against quotas: what tenants have spent and reserved in a day and in a month (UTC)."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal

import msgspec

from router.access import Tenant
from router.amount import NOTHING, Amount, Remaining
from router.errors import PriceUnknown, QuotaExhausted

_DAY_S = 86400
_SOON_S = 1.0
Period = tuple[str, str]
"""A tenant and a day or a month, as 2026-11-21 or 2026-11."""
Unit = Literal["day", "month"]
_LIMITED: tuple[Literal["tokens", "nano_usd"], ...] = ("tokens", "nano_usd")
MOST = 2 * 10**16
"""No limit may be higher, so that sums of what is spent stay far below what databases hold: twenty million dollars."""


class Tally(msgspec.Struct):
    """The sums of one tenant and one period."""

    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0
    reserved_tokens: int = 0
    reserved_nano_usd: int = 0

    @property
    def spent(self) -> Amount:
        """The amount that is gone."""
        return Amount(self.tokens, self.nano_usd)

    @property
    def reserved(self) -> Amount:
        """The amount that may come back."""
        return Amount(self.reserved_tokens, self.reserved_nano_usd)


class Spending:
    """The spending of some tenants: as it stands on record, and what has changed since."""

    def __init__(self, recorded: Mapping[Period, Tally]) -> None:
        """`recorded` holds the rows of tenants with quotas; those of others are only added to."""
        self._recorded = recorded
        self.changes: dict[Period, Tally] = {}

    def count_request(self, tenant: Tenant, at: float, in_flight: int) -> None:
        """Count one more run, while `in_flight` others run. Raises `QuotaExhausted`; then it is not counted."""
        if tenant.runs_in_flight is not None and in_flight >= tenant.runs_in_flight:
            raise QuotaExhausted(
                f"tenant {tenant.name}: {in_flight} runs are in flight, and runs_in_flight is {tenant.runs_in_flight}; "
                "wait until one of them has ended.",
                retry_after_s=_SOON_S,
            )
        for period, unit in _periods(at):
            limit = getattr(tenant, f"requests_per_{unit}")
            if limit is not None and self._requests((tenant.name, period)) >= limit:
                raise _exhausted(tenant, f"requests_per_{unit} is {limit}", unit, at)
        self.add_requests(tenant.name, at, 1)

    def check(self, tenant: Tenant, at: float, amount: Amount, held: Amount = NOTHING) -> None:
        """Raise `QuotaExhausted` where `amount` is more than what is left; `PriceUnknown` where nobody can tell.

        `held`: what is reserved for whoever asks, and will not come back before it is done.
        """
        if not tenant.limited:
            return
        for period, unit in _periods(at):
            spent, reserved = self._taken((tenant.name, period))
            for of in _LIMITED:
                name = f"{of}_per_{unit}"
                limit: int | None = getattr(tenant, name)
                if limit is None:
                    continue
                if getattr(amount, of) is None:
                    raise PriceUnknown(
                        f"tenant {tenant.name} has a limit in dollars for each {unit}, and the price of the next "
                        "call's model is not known; give it in [prices] of the config, or limit tokens instead."
                    )
                now, alone = (
                    Remaining(of, limit - getattr(spent, of) - (getattr(taken, of) or 0)) for taken in (reserved, held)
                )
                if not now.holds(amount):
                    contended = alone.holds(amount)
                    left, said = now if contended else alone, f"{name} is {limit}"
                    raise _exhausted(tenant, said, unit, at, (left, amount), contended=contended)

    def reserve(self, tenant: str, at: float, amount: Amount) -> None:
        """Set `amount` aside."""
        self._add(tenant, at, NOTHING, amount.tokens, amount.nano_usd or 0)

    def release(self, tenant: str, at: float, amount: Amount, charged: Amount = NOTHING) -> None:
        """Give back what was set aside, less what was spent of it."""
        self._add(tenant, at, charged, -amount.tokens, -(amount.nano_usd or 0))

    def _add(self, tenant: str, at: float, charged: Amount, reserved_tokens: int, reserved_nano_usd: int) -> None:
        if charged == NOTHING and not reserved_tokens and not reserved_nano_usd:
            return
        for period, _ in _periods(at):
            change = self._change(tenant, period)
            change.tokens += charged.tokens
            change.nano_usd += charged.nano_usd or 0
            change.reserved_tokens += reserved_tokens
            change.reserved_nano_usd += reserved_nano_usd

    def add_requests(self, tenant: str, at: float, count: int) -> None:
        """Count `count` more runs, whatever the limits are."""
        for period, _ in _periods(at):
            self._change(tenant, period).requests += count

    def _change(self, tenant: str, period: str) -> Tally:
        key = tenant, period
        if key not in self.changes:
            self.changes[key] = Tally()
        return self.changes[key]

    def _requests(self, key: Period) -> int:
        return sum(tally.requests for tally in self._tallies(key))

    def _tallies(self, key: Period) -> list[Tally]:
        return [tallies[key] for tallies in (self._recorded, self.changes) if key in tallies]

    def _taken(self, key: Period) -> tuple[Amount, Amount]:
        """The amounts that are spent and reserved."""
        tallies = self._tallies(key)
        spent = sum((tally.spent for tally in tallies), NOTHING)
        return spent, sum((tally.reserved for tally in tallies), NOTHING)


def periods(at: float) -> list[str]:
    """The day and the month that a Unix time is in."""
    return [period for period, _ in _periods(at)]


def _periods(at: float) -> tuple[tuple[str, Unit], tuple[str, Unit]]:
    return _periods_of(int(at // _DAY_S))


@lru_cache(maxsize=64)
def _periods_of(day: int) -> tuple[tuple[str, Unit], tuple[str, Unit]]:
    date = f"{datetime.fromtimestamp(day * _DAY_S, UTC):%Y-%m-%d}"
    return (date, "day"), (date[:7], "month")


def _exhausted(
    tenant: Tenant,
    limit: str,
    unit: Unit,
    at: float,
    lack: tuple[Remaining, Amount] | None = None,
    *,
    contended: bool = False,
) -> QuotaExhausted:
    left, lacking = (lack[0], f": {lack[0].against(lack[1])}") if lack else (None, "")
    if contended:
        return QuotaExhausted(
            f"tenant {tenant.name}: {limit}, and what is left is reserved for runs that are under way{lacking}.",
            retry_after_s=_SOON_S,
            contended=True,
            left=left,
        )
    now = datetime.fromtimestamp(at, UTC)
    begins = now.replace(hour=0, minute=0, second=0, microsecond=0)
    anew = begins + timedelta(days=1) if unit == "day" else (begins.replace(day=1) + timedelta(days=32)).replace(day=1)
    return QuotaExhausted(
        f"tenant {tenant.name}: {limit}, and what is left does not suffice{lacking}; it begins anew at "
        f"{anew:%Y-%m-%d %H:%M} UTC.",
        retry_after_s=(anew - now).total_seconds(),
        left=left,
    )
