"""Quotas: the amounts that tenants have spent and reserved in the current day and month (UTC), and
checks against the tenants' limits.

A gateway with its own database knows everything that is spent, so it checks a call in memory:

    spent + reserved + amount <= limit

Gateways that share a database hold leases instead. A lease is a part of a tenant's limit, in one
period, that one gateway may spend without a transaction. The database guarantees that

    spent in the database + all leases <= limit

A gateway reserves calls within its lease, and requests a larger lease if that is too small. The
transaction that stores a run moves the run's spending from the lease to the sums in the database.
So no limit is ever exceeded: if a gateway is killed, or a transaction fails, the lease still
counts.
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
"""A tenant, and a day such as 2026-11-21 or a month such as 2026-11."""
Unit = Literal["day", "month"]
LIMITED: tuple[Literal["tokens", "nano_usd"], ...] = ("tokens", "nano_usd")


class Tally(msgspec.Struct):
    """Sums of one tenant in one period, as far as this gateway knows them. Fields with `nano_usd`
    are like those with `tokens`, in billionths of a dollar.
    """

    requests: int = 0
    tokens: int = 0
    """Tokens that have been spent."""
    nano_usd: int = 0
    reserved_tokens: int = 0
    """Tokens that are reserved for calls in flight and for answers."""
    reserved_nano_usd: int = 0
    booked_tokens: int = 0
    """The part of `tokens` that is in a shared database; 0 if the database is not shared."""
    booked_nano_usd: int = 0
    lease_end_tokens: int = 0
    """Upper limit of `tokens` plus `reserved_tokens`, up to which the lease allows spending."""
    lease_end_nano_usd: int = 0

    def used(self, of: str) -> int:
        """Return the used part of the lease: what is reserved, or is spent and not yet in the
        database. `of`: `tokens` or `nano_usd`, as in the other methods.
        """
        booked = getattr(self, f"booked_{of}")
        return int(getattr(self, of) - booked + getattr(self, f"reserved_{of}"))

    def free(self, of: str) -> int:
        """Return the unused part of the lease."""
        return int(
            getattr(self, f"lease_end_{of}") - getattr(self, of) - getattr(self, f"reserved_{of}")
        )

    def lease(self, of: str, spent: int, lease: int) -> None:
        """Update the sums after a transaction. `spent`: the amount that the database has as spent.
        `lease`: the lease that the transaction has written.
        """
        by_others = spent - getattr(self, f"booked_{of}")
        setattr(self, of, getattr(self, of) + by_others)
        setattr(self, f"booked_{of}", spent)
        setattr(self, f"lease_end_{of}", spent + lease)


class Quotas:
    """The sums of all tenants, and checks against their limits."""

    def __init__(self, *, shared: bool = False) -> None:
        """`shared`: True if several gateways share the quotas. Then nothing is spent without a
        lease, and the limits on requests and runs in flight are checked in the database.
        """
        self._shared = shared
        self.tenants: Mapping[str, Tenant] = {}
        self.tallies = defaultdict[Period, Tally](Tally)
        self.in_flight: Counter[str] = Counter()
        """Number of running runs by tenant."""

    def tenant(self, name: str) -> Tenant:
        """Return the settings of a tenant. A tenant without stored settings has no limits."""
        return self.tenants.get(name) or Tenant(name)

    def begin(self, name: str, at: float, kept: Amount) -> None:
        """Count a new run of the tenant `name`, and reserve `kept` for its answer. `at`: Unix time
        of its start. Raises `BudgetExhausted`; then the run is not counted.
        """
        tenant = self.tenant(name)
        self.check(
            tenant,
            at,
            kept,
            None,
            answers=False,
        )
        if not self._shared:
            see_counts(tenant, at, self.in_flight[name], self.tallies)

        for period in periods(at):
            self.tallies[name, period].requests += 1
        self.in_flight[name] += 1
        self.reserve(name, at, kept)

    def check(
        self,
        tenant: Tenant,
        at: float,
        amount: Amount,
        run: RecordedRun | None,
        *,
        answers: bool,
    ) -> None:
        """Raise `QuotaExhausted` if `amount` exceeds what is left of the tenant's quotas. Raise
        `PriceUnknown` if the tenant has a limit on money, and the cost of `amount` is unknown.

        `at`: Unix time that decides the day and month. `run`: the run that the amount is for; None
        if it has not begun. `answers`: True if the amount is for the answer, so that it may use
        what the run has reserved for its answer. Other amounts cannot use it, and need not wait
        until it is released.
        """
        if not tenant.limited:
            return
        kept = run.kept if run else NOTHING
        kept_in = periods(run.start.started_at) if run else []
        for period, unit in _periods(at):
            tally = self.tallies[tenant.name, period]
            for of in LIMITED:
                name = f"{of}_per_{unit}"
                limit: int | None = getattr(tenant, name)
                if limit is None:
                    continue
                if getattr(amount, of) is None:
                    raise PriceUnknown(
                        f"tenant {tenant.name} has a limit in dollars per {unit}, and the price "
                        "of the next call's model is unknown; set the price in [prices] of the "
                        "config, or limit tokens instead."
                    )

                unspent = limit - getattr(tally, of)
                own = getattr(kept, of) or 0
                free = unspent - getattr(tally, f"reserved_{of}")
                if self._shared:
                    free = min(free, tally.free(of))
                if answers and period in kept_in:
                    free += own
                now = Remaining(of, free)
                if now.holds(amount):
                    continue

                message = f"tenant {tenant.name}: {name} is {limit}"
                later = Remaining(of, unspent if answers else unspent - own)
                if not later.holds(amount):
                    raise _used_up(
                        message,
                        unit,
                        at,
                        later,
                        f": {later.against(amount)}",
                    )
                raise QuotaExhausted(
                    f"{message}, and what is left is reserved for other calls: "
                    f"{now.against(amount)}.",
                    retry_after_s=_SOON_S,
                    contended=True,
                    left=now,
                )

    def reserve(
        self,
        name: str,
        at: float,
        amount: Amount,
        *,
        sign: int = 1,
    ) -> None:
        """Reserve `amount` for the tenant `name`, or if `sign` is -1, release it. `at`: Unix time
        that decides the day and month.
        """
        if amount != NOTHING:
            for period in periods(at):
                tally = self.tallies[name, period]
                tally.reserved_tokens += sign * amount.tokens
                tally.reserved_nano_usd += sign * (amount.nano_usd or 0)

    def settle(self, call: Call) -> None:
        """Release the amount that was reserved for a call, and count the amount that the call has
        spent.
        """
        self.reserve(call.tenant, call.started_at, call.reserved, sign=-1)
        add_spent(self.tallies, [call])

    def end(self, run: RecordedRun) -> None:
        """Release all amounts that are still reserved for a run, and remove the run from the runs
        in flight.
        """
        for at, amount in run.reserved:
            self.reserve(run.start.tenant, at, amount, sign=-1)
        self.in_flight[run.start.tenant] -= 1


def see_counts(
    tenant: Tenant,
    at: float,
    running: int,
    tallies: Mapping[Period, Tally],
) -> None:
    """Raise `QuotaExhausted` if one more run would exceed the tenant's limit on runs in flight or
    on requests. `running`: number of the tenant's runs that are running now.
    """
    if tenant.runs_in_flight is not None and running >= tenant.runs_in_flight:
        raise QuotaExhausted(
            f"tenant {tenant.name}: {running} runs are running, and the limit runs_in_flight is "
            f"{tenant.runs_in_flight}; wait until one of them has ended.",
            retry_after_s=_SOON_S,
        )
    for period, unit in _periods(at):
        limit = getattr(tenant, f"requests_per_{unit}")
        if limit is not None and tallies.get((tenant.name, period), Tally()).requests >= limit:
            raise _used_up(f"tenant {tenant.name}: requests_per_{unit} is {limit}", unit, at)


def limit_of(tenant: Tenant, of: str, period: str) -> int | None:
    """Return a tenant's limit in a period; None for no limit. `of`: `tokens` or `nano_usd`."""
    unit = "day" if len(period) > len("2026-11") else "month"
    limit: int | None = getattr(tenant, f"{of}_per_{unit}")
    return limit


def add_spent(tallies: defaultdict[Period, Tally], calls: Iterable[Call]) -> None:
    """Add the amounts that calls have spent to the sums of their tenants."""
    for call in calls:
        charged = call.charged
        for period in periods(call.started_at):
            tally = tallies[call.tenant, period]
            tally.tokens += charged.tokens
            tally.nano_usd += charged.nano_usd or 0


def periods(at: float) -> list[str]:
    """Return the day and the month of a Unix time, such as 2026-11-21 and 2026-11."""
    return [period for period, _ in _periods(at)]


def _periods(at: float) -> tuple[tuple[str, Unit], tuple[str, Unit]]:
    return _periods_of(int(at // _DAY_S))


@lru_cache(maxsize=64)
def _periods_of(day: int) -> tuple[tuple[str, Unit], tuple[str, Unit]]:
    date = f"{datetime.fromtimestamp(day * _DAY_S, UTC):%Y-%m-%d}"
    return (date, "day"), (date[:7], "month")


def _used_up(
    message: str,
    unit: Unit,
    at: float,
    left: Remaining | None = None,
    rest: str = "",
) -> QuotaExhausted:
    now = datetime.fromtimestamp(at, UTC)
    start = now.replace(
        hour=0,
        minute=0,
        second=0,
        microsecond=0,
    )
    if unit == "day":
        reset = start + timedelta(days=1)
    else:
        reset = (start.replace(day=1) + timedelta(days=32)).replace(day=1)
    return QuotaExhausted(
        f"{message}, and not enough of it is left{rest}; the limit resets at "
        f"{reset:%Y-%m-%d %H:%M} UTC.",
        retry_after_s=(reset - now).total_seconds(),
        left=left,
    )
