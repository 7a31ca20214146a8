"""Quotas: what tenants have spent and reserved in a day and in a month (UTC), against what they
may.

A gateway that has a database to itself knows all that is spent. Where several share one, each has
leases: parts of what is left, which it may spend without asking. What the database has as spent and
all leases together are never more than a limit; so whatever becomes of a gateway, and of its
transactions, what it has reserved counts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal

import msgspec

from router.access import Tenant
from router.amount import NOTHING, Amount, Remaining
from router.errors import PriceUnknown, QuotaExhausted
from router.store.records import RecordedRun
from router.trace import Call

_DAY_S = 86400
_SOON_S = 1.0
Period = tuple[str, str]
"""A tenant and a day or a month, as 2026-11-21 or 2026-11."""
Unit = Literal["day", "month"]
LIMITED: tuple[Literal["tokens", "nano_usd"], ...] = ("tokens", "nano_usd")
MOST = 2 * 10**16
"""No limit may be higher, so that sums of what is spent stay far below what databases hold:
twenty million dollars.
"""


class Tally(msgspec.Struct):
    """The sums of one tenant and one period. Where gateways share quotas: of what of them the
    database has, and what they may come to with what is reserved, by this gateway's lease.
    """

    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0
    reserved_tokens: int = 0
    reserved_nano_usd: int = 0
    booked_tokens: int = 0
    booked_nano_usd: int = 0
    most_tokens: int = 0
    most_nano_usd: int = 0

    def used(self, of: str) -> int:
        """The part of the lease that is reserved, or spent and not in the database."""
        return int(
            getattr(self, of) - getattr(self, f"booked_{of}") + getattr(self, f"reserved_{of}")
        )

    def free(self, of: str) -> int:
        """The part of the lease that is neither."""
        return int(
            getattr(self, f"most_{of}") - getattr(self, of) - getattr(self, f"reserved_{of}")
        )

    def lease(self, of: str, spent: int, lease: int) -> None:
        """Note what a transaction has read as spent, and what it has left as the lease."""
        news = spent - getattr(self, f"booked_{of}")
        for name, value in (
            (of, getattr(self, of) + news),
            (f"booked_{of}", spent),
            (f"most_{of}", spent + lease),
        ):
            setattr(self, name, value)


class Quotas:
    """The sums of all tenants, as far as this gateway knows them, and what it may add to them."""

    def __init__(self, *, shared: bool = False) -> None:
        """`shared`: by several gateways, so that nothing is spent without a lease, and runs are
        not counted here.
        """
        self._shared = shared
        self.tenants: Mapping[str, Tenant] = {}
        self.tallies = defaultdict[Period, Tally](Tally)
        self.in_flight: Counter[str] = Counter()
        """Runs that are under way."""

    def tenant(self, name: str) -> Tenant:
        """Its settings; without any, nothing is limited."""
        return self.tenants.get(name) or Tenant(name)

    def begin(self, name: str, at: float, kept: Amount) -> None:
        """Count one more run, and reserve what it keeps for its answer. Raises `BudgetExhausted`;
        then it is not counted.
        """
        tenant = self.tenant(name)
        self.check(tenant, at, kept, None, answers=False)
        if not self._shared:
            see_counts(tenant, at, self.in_flight[name], self.tallies)
        for period in periods(at):
            self.tallies[name, period].requests += 1
        self.in_flight[name] += 1
        self.reserve(name, at, kept)

    def check(
        self, tenant: Tenant, at: float, amount: Amount, run: RecordedRun | None, *, answers: bool
    ) -> None:
        """Raise `QuotaExhausted` where `amount` is more than what is left; `PriceUnknown` where
        nobody can tell.

        `run`: the one that asks, if it has begun: what it keeps for its answer will not come back
        before it is done, but does where this `answers`.
        """
        if not tenant.limited:
            return
        kept, kept_in = (run.kept, periods(run.start.started_at)) if run else (NOTHING, [])
        for period, unit in _periods(at):
            tally = self.tallies[tenant.name, period]
            for of in LIMITED:
                name = f"{of}_per_{unit}"
                limit: int | None = getattr(tenant, name)
                if limit is None:
                    continue
                if getattr(amount, of) is None:
                    raise PriceUnknown(
                        f"tenant {tenant.name} has a limit in dollars for each {unit}, "
                        "and the price of the next "
                        "call's model is not known; give it in [prices] of the config, "
                        "or limit tokens instead."
                    )
                left = limit - getattr(tally, of)
                own = getattr(kept, of) or 0
                free = left - getattr(tally, f"reserved_{of}")
                free = min(free, tally.free(of)) if self._shared else free
                now = Remaining(of, free + own if answers and period in kept_in else free)
                if now.holds(amount):
                    continue
                said = f"tenant {tenant.name}: {name} is {limit}"
                alone = Remaining(of, left if answers else left - own)
                if not alone.holds(amount):
                    raise _used_up(said, unit, at, alone, f": {alone.against(amount)}")
                said += (
                    ", and what is left is reserved for runs that are under way: "
                    f"{now.against(amount)}."
                )
                raise QuotaExhausted(said, retry_after_s=_SOON_S, contended=True, left=now)

    def reserve(self, name: str, at: float, amount: Amount, *, sign: int = 1) -> None:
        """Set `amount` aside; with a `sign` of -1, give it back."""
        if amount != NOTHING:
            for period in periods(at):
                tally = self.tallies[name, period]
                tally.reserved_tokens += sign * amount.tokens
                tally.reserved_nano_usd += sign * (amount.nano_usd or 0)

    def settle(self, call: Call) -> None:
        """Give back what was set aside for a call, and count what it has spent."""
        self.reserve(call.tenant, call.started_at, call.reserved, sign=-1)
        add_spent(self.tallies, [call])

    def end(self, run: RecordedRun) -> None:
        """Give back what a run still has set aside; it is not in flight any more."""
        for at, amount in run.reserved:
            self.reserve(run.start.tenant, at, amount, sign=-1)
        self.in_flight[run.start.tenant] -= 1


def see_counts(tenant: Tenant, at: float, running: int, tallies: Mapping[Period, Tally]) -> None:
    """Raise `QuotaExhausted` where one more run is too much beside so many that are in flight,
    and those asked for.
    """
    if tenant.runs_in_flight is not None and running >= tenant.runs_in_flight:
        raise QuotaExhausted(
            f"tenant {tenant.name}: {running} runs are in flight, and runs_in_flight is "
            f"{tenant.runs_in_flight}; "
            "wait until one of them has ended.",
            retry_after_s=_SOON_S,
        )
    for period, unit in _periods(at):
        limit = getattr(tenant, f"requests_per_{unit}")
        if limit is not None and tallies.get((tenant.name, period), Tally()).requests >= limit:
            raise _used_up(f"tenant {tenant.name}: requests_per_{unit} is {limit}", unit, at)


def limit_of(tenant: Tenant, of: str, period: str) -> int | None:
    """The most that may be spent of it in a period."""
    limit: int | None = getattr(
        tenant, f"{of}_per_{'day' if len(period) > len('2026-11') else 'month'}"
    )
    return limit


def add_spent(tallies: defaultdict[Period, Tally], calls: Iterable[Call]) -> None:
    """Add what calls have spent to the sums of their tenants."""
    for call in calls:
        charged = call.charged
        for period in periods(call.started_at):
            tally = tallies[call.tenant, period]
            tally.tokens += charged.tokens
            tally.nano_usd += charged.nano_usd or 0


def periods(at: float) -> list[str]:
    """The day and the month that a Unix time is in."""
    return [period for period, _ in _periods(at)]


def _periods(at: float) -> tuple[tuple[str, Unit], tuple[str, Unit]]:
    return _periods_of(int(at // _DAY_S))


@lru_cache(maxsize=64)
def _periods_of(day: int) -> tuple[tuple[str, Unit], tuple[str, Unit]]:
    date = f"{datetime.fromtimestamp(day * _DAY_S, UTC):%Y-%m-%d}"
    return (date, "day"), (date[:7], "month")


def _used_up(
    said: str, unit: Unit, at: float, left: Remaining | None = None, lacking: str = ""
) -> QuotaExhausted:
    now = datetime.fromtimestamp(at, UTC)
    begins = now.replace(hour=0, minute=0, second=0, microsecond=0)
    anew = (
        begins + timedelta(days=1)
        if unit == "day"
        else (begins.replace(day=1) + timedelta(days=32)).replace(day=1)
    )
    said += (
        f", and what is left does not suffice{lacking}; it begins anew at "
        f"{anew:%Y-%m-%d %H:%M} UTC."
    )
    return QuotaExhausted(said, retry_after_s=(anew - now).total_seconds(), left=left)
