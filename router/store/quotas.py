"""Quotas: what tenants have spent and reserved in a day and a month (UTC), against their limits.

A gateway with its own database knows everything that is spent, so it checks a call in memory:

    spent + reserved + amount <= limit

Gateways that share a database hold leases instead. A lease is a part of the limit that one gateway
may spend without asking, for one tenant and period. The database guarantees that

    spent in the database + all leases <= limit

A gateway reserves calls against its lease, and asks for a larger lease when that is too small.
Spending moves from the lease to the database in the transaction that stores the run. So no limit is
ever exceeded: if a gateway is killed, or a transaction fails, the lease still counts.
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
"""A tenant, and a day or a month as 2026-11-21 or 2026-11."""
Unit = Literal["day", "month"]
LIMITED: tuple[Literal["tokens", "nano_usd"], ...] = ("tokens", "nano_usd")
MAX_LIMIT = 2 * 10**16
"""Max value of a limit: twenty million dollars, so that sums of what is spent fit into a database's
integers.
"""


class Tally(msgspec.Struct):
    """Sums of one tenant in one period, as far as this gateway knows them."""

    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0
    reserved_tokens: int = 0
    reserved_nano_usd: int = 0
    booked_tokens: int = 0
    """The part of `tokens` that is in a shared database; 0 if the database is not shared."""
    booked_nano_usd: int = 0
    lease_end_tokens: int = 0
    """The end of the lease: max of `tokens` and `reserved_tokens` together."""
    lease_end_nano_usd: int = 0

    def used(self, of: str) -> int:
        """Return the part of the lease that is reserved, or spent and not yet in the database."""
        booked = getattr(self, f"booked_{of}")
        return int(getattr(self, of) - booked + getattr(self, f"reserved_{of}"))

    def free(self, of: str) -> int:
        """Return the unused part of the lease."""
        return int(
            getattr(self, f"lease_end_{of}") - getattr(self, of) - getattr(self, f"reserved_{of}")
        )

    def lease(self, of: str, spent: int, lease: int) -> None:
        """Take over what a transaction has read as spent and written as the lease."""
        by_others = spent - getattr(self, f"booked_{of}")
        setattr(self, of, getattr(self, of) + by_others)
        setattr(self, f"booked_{of}", spent)
        setattr(self, f"lease_end_{of}", spent + lease)


class Quotas:
    """Sums of all tenants and checks against their limits."""

    def __init__(self, *, shared: bool = False) -> None:
        """`shared`: several gateways share the quotas. Then nothing is spent without a lease, and
        the database counts requests and runs in flight.
        """
        self._shared = shared
        self.tenants: Mapping[str, Tenant] = {}
        self.tallies = defaultdict[Period, Tally](Tally)
        self.in_flight: Counter[str] = Counter()
        """Number of running runs by tenant."""

    def tenant(self, name: str) -> Tenant:
        """Return a tenant's settings; an unknown tenant has no limits."""
        return self.tenants.get(name) or Tenant(name)

    def begin(self, name: str, at: float, kept: Amount) -> None:
        """Count a new run, and reserve the amount for its answer. Raises `BudgetExhausted`; then
        the run is not counted.
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
        """Raise `QuotaExhausted` if `amount` exceeds what is left, and `PriceUnknown` if its cost
        is unknown and limited.

        `run`: the run that asks, if it has begun. Its reserve for the answer is available only if
        this call `answers`; otherwise waiting for it is useless.
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
                        "of the next call's model is unknown; give it in [prices] of the config, "
                        "or limit tokens instead."
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
                    f"{message}, and the rest is reserved for runs under way: "
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
        """Reserve `amount`; with a `sign` of -1, release it."""
        if amount != NOTHING:
            for period in periods(at):
                tally = self.tallies[name, period]
                tally.reserved_tokens += sign * amount.tokens
                tally.reserved_nano_usd += sign * (amount.nano_usd or 0)

    def settle(self, call: Call) -> None:
        """Release what was reserved for a call, and count what it has spent."""
        self.reserve(call.tenant, call.started_at, call.reserved, sign=-1)
        add_spent(self.tallies, [call])

    def end(self, run: RecordedRun) -> None:
        """Release what a run still has reserved, and count it as in flight no longer."""
        for at, amount in run.reserved:
            self.reserve(run.start.tenant, at, amount, sign=-1)
        self.in_flight[run.start.tenant] -= 1


def see_counts(
    tenant: Tenant,
    at: float,
    running: int,
    tallies: Mapping[Period, Tally],
) -> None:
    """Raise `QuotaExhausted` if one more run exceeds the limit on runs in flight (`running` now) or
    on requests.
    """
    if tenant.runs_in_flight is not None and running >= tenant.runs_in_flight:
        raise QuotaExhausted(
            f"tenant {tenant.name}: {running} runs are in flight, and runs_in_flight is "
            f"{tenant.runs_in_flight}; wait until one of them has ended.",
            retry_after_s=_SOON_S,
        )
    for period, unit in _periods(at):
        limit = getattr(tenant, f"requests_per_{unit}")
        if limit is not None and tallies.get((tenant.name, period), Tally()).requests >= limit:
            raise _used_up(f"tenant {tenant.name}: requests_per_{unit} is {limit}", unit, at)


def limit_of(tenant: Tenant, of: str, period: str) -> int | None:
    """Return a tenant's limit on tokens or money in a period; None for no limit."""
    unit = "day" if len(period) > len("2026-11") else "month"
    limit: int | None = getattr(tenant, f"{of}_per_{unit}")
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
    """Return the day and the month of a Unix time."""
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
        f"{message}, and the rest is too small{rest}; it resets at {reset:%Y-%m-%d %H:%M} UTC.",
        retry_after_s=(reset - now).total_seconds(),
        left=left,
    )
