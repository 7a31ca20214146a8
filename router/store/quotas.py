"""Quotas: the amounts that tenants and keys have spent and reserved in the current minute, day and
month (UTC), and checks against their limits.

A gateway with its own database knows everything that is spent, so it checks a call in memory:

    spent + reserved + amount <= limit

Gateways that share a database hold leases instead. A lease is a part of a tenant's limit, in one
period, that one gateway may spend without a transaction. The database guarantees that

    spent in the database + all leases <= limit

A gateway reserves calls within its lease, and requests a larger lease if the lease is too small.
The transaction that stores a run moves the run's spending from the lease to the sums in the
database. So no limit is ever exceeded: if a gateway is killed, or a transaction fails, the lease
still counts.

A minute is a calendar minute, not the last 60 seconds: it is a period like a day, so that the same
locks and leases keep it exact over all gateways. A request counts in the minute in which its run
begins, a call in the minute in which it is opened. The amount that a run reserves for its answer
counts in the day and the month, but in no minute, because the answer may be written in a later
minute.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import product
from typing import Any, Literal

import msgspec

from router.access import Key, Tenant
from router.amount import NOTHING, Amount, Remaining
from router.errors import PriceUnknown, QuotaExhausted
from router.ledger import RunStart
from router.store.records import RecordedRun
from router.trace import Call
from router.trace.call import OpenedCall

_MINUTE_S = 60
_SOON_S = 1.0
Period = tuple[str, str]
"""Pair of an account and a period. The account is a tenant, or `key ID` for an API key. The period
is a minute such as 2026-11-21T13:00, a day such as 2026-11-21, or a month such as 2026-11, in UTC.
"""
Unit = Literal["minute", "day", "month"]
_UNITS: dict[int, Unit] = {16: "minute", 10: "day", 7: "month"}
"""Unit of a period by the length of the period's name. For example, 2026-11-21 has 10 characters
and is a day.
"""
LIMITED: tuple[Literal["tokens", "nano_usd"], ...] = ("tokens", "nano_usd")


class Tally(msgspec.Struct):
    """Sums of one account in one period, as far as this gateway knows them. Each field for tokens
    has a counterpart with `nano_usd` in its name, in billionths of a dollar.
    """

    requests: int = 0
    tokens: int = 0
    """Tokens that have been spent."""
    nano_usd: int = 0
    reserved_tokens: int = 0
    """Tokens that are reserved for calls in flight and for answers."""
    reserved_nano_usd: int = 0
    booked_tokens: int = 0
    """The part of `tokens` that is in the database already; 0 if the database is not shared."""
    booked_nano_usd: int = 0
    lease_end_tokens: int = 0
    """Max value that the lease allows for `tokens` plus `reserved_tokens`."""
    lease_end_nano_usd: int = 0

    def used(self, of: str) -> int:
        """Return the used part of the lease: the reserved amount, and the amount that is spent but
        not in the database yet. `of`: the unit, `tokens` or `nano_usd`, as in the other methods.
        """
        booked = getattr(self, f"booked_{of}")
        return int(getattr(self, of) - booked + getattr(self, f"reserved_{of}"))

    def free(self, of: str) -> int:
        """Return the unused part of the lease."""
        return int(
            getattr(self, f"lease_end_{of}") - getattr(self, of) - getattr(self, f"reserved_{of}")
        )

    def lease(self, of: str, spent: int, lease: int) -> None:
        """Update the sums after a transaction. `spent`: the amount spent by all gateways, according
        to the database. `lease`: the new size of this gateway's lease.
        """
        by_others = spent - getattr(self, f"booked_{of}")
        setattr(self, of, getattr(self, of) + by_others)
        setattr(self, f"booked_{of}", spent)
        setattr(self, f"lease_end_{of}", spent + lease)


class Settings(dict[str, Any]):
    """Settings of accounts by name: a `Tenant`, or a `Key` under its name `key ID`. Accounts
    without stored settings have no limits.
    """

    def __missing__(self, name: str) -> Tenant:
        return Tenant(name)


class Quotas:
    """The sums of all accounts, and checks against their limits."""

    def __init__(self, *, shared: bool) -> None:
        """`shared`: True if several gateways share the quotas. Then nothing is spent without a
        lease, and the database checks the limits on requests and on runs in flight.
        """
        self._shared = shared
        self.accounts = Settings()
        """Settings of all accounts. New settings replace the whole object."""
        self.tallies = defaultdict[Period, Tally](Tally)
        self.in_flight = Counter[str]()
        """Number of running runs by tenant."""

    def limited(self, start: RunStart) -> bool:
        """Return True if a quota limits the tokens or the money of a run. Then each model call must
        first reserve the most that it can spend.
        """
        limits = product(counted(start), LIMITED)
        return any(
            limit_of(self.accounts[account], of, period) is not None
            for (account, period), of in limits
        )

    def begin(self, start: RunStart) -> None:
        """Count a new run, and reserve `start.hold` for its answer. Raises `BudgetExhausted`; then
        the run is not counted.
        """
        holds = periods(start.tenant, start.started_at)
        self.check(holds, start.started_at, start.hold, None, answers=False)
        if not self._shared:
            see_counts(self.accounts, start, self.in_flight[start.tenant], self.tallies)

        for period in counted(start):
            self.tallies[period].requests += 1
        self.in_flight[start.tenant] += 1
        self.reserve(holds, start.hold)

    def check(
        self,
        spans: Iterable[Period],
        at: float,
        amount: Amount,
        run: RecordedRun | None,
        *,
        answers: bool,
    ) -> None:
        """Raise `QuotaExhausted` if `amount` is larger than the rest of a quota in one of `spans`.
        Raise `PriceUnknown` if there is a limit on money, and the cost of `amount` is unknown.

        `spans`: the accounts and periods in which `amount` counts. `at`: a Unix time within all
        `spans`. `run`: the run that the amount is for; None if it has not begun. `answers`: True if
        the amount is for the answer, so that it may use the amount that the run has reserved for
        its answer. Other calls of the run cannot use that amount.
        """
        kept_in = periods(run.start.tenant, run.start.started_at) if run else []
        for span in spans:
            account, period = span
            tally = self.tallies[span]
            unit = _UNITS[len(period)]
            for of in LIMITED:
                limit = limit_of(self.accounts[account], of, period)
                if limit is None:
                    continue
                if getattr(amount, of) is None:
                    raise PriceUnknown(
                        f"{_named(account)} has a limit in dollars per {unit}, and the price of "
                        "the next call's model is unknown; set it in [prices] of the config, or "
                        "limit tokens instead."
                    )

                unspent = limit - getattr(tally, of)
                own = (getattr(run.kept, of) or 0) if run and span in kept_in else 0
                free = unspent - getattr(tally, f"reserved_{of}")
                if self._shared:
                    free = min(free, tally.free(of))
                if answers:
                    free += own
                now = Remaining(of, free)
                if now.holds(amount):
                    continue

                message = f"{_named(account)}: {of}_per_{unit} is {limit}"
                later = Remaining(of, unspent if answers else unspent - own)
                if not later.holds(amount):
                    left: Remaining | None = later
                    if unit == "minute":
                        # A call can wait for the next minute. So `left` is None, unless the call
                        # exceeds the limit of a whole minute: then it must be shortened to that
                        # limit.
                        whole = Remaining(of, limit)
                        left = None if whole.holds(amount) else whole
                    raise _used_up(message, unit, at, left, f": {later.against(amount)}")
                raise QuotaExhausted(
                    f"{message}, and what is left is reserved for other calls: "
                    f"{now.against(amount)}; try again when those calls have ended.",
                    retry_after_s=_SOON_S,
                    contended=True,
                    left=None if unit == "minute" else now,
                )

    def reserve(self, spans: Iterable[Period], amount: Amount, *, sign: int = 1) -> None:
        """Reserve `amount` in all `spans`, or if `sign` is -1, release it."""
        if amount != NOTHING:
            for span in spans:
                tally = self.tallies[span]
                tally.reserved_tokens += sign * amount.tokens
                tally.reserved_nano_usd += sign * (amount.nano_usd or 0)

    def settle(self, call: Call) -> None:
        """Release the amount that was reserved for a call, and count the amount that the call has
        spent.
        """
        self.reserve(counted(call), call.reserved, sign=-1)
        add_spent(self.tallies, [call])

    def end(self, run: RecordedRun) -> None:
        """Release all amounts that are still reserved for a run, and remove the run from the runs
        in flight.
        """
        start = run.start
        self.reserve(periods(start.tenant, start.started_at), run.kept, sign=-1)
        for call in run.open.values():
            self.reserve(counted(call), call.reserved, sign=-1)
        self.in_flight[start.tenant] -= 1

    def forget_minutes(self, before: float) -> None:
        """Drop the sums of minutes that ended before a Unix time, unless a minute still has a
        reserved amount or a lease.
        """
        minute = names(before)[0]
        for span, tally in [*self.tallies.items()]:
            old = span[1] < minute and len(span[1]) == len(minute)
            if old and not tally.reserved_tokens and tally.free("tokens") <= 0:
                del self.tallies[span]


def see_counts(
    accounts: Settings,
    start: RunStart,
    running: int,
    tallies: Mapping[Period, Tally],
) -> None:
    """Raise `QuotaExhausted` if the run `start` would exceed a limit on runs in flight or on
    requests. `running`: number of the tenant's runs that are running now.
    """
    tenant = accounts[start.tenant]
    if tenant.runs_in_flight is not None and running >= tenant.runs_in_flight:
        raise QuotaExhausted(
            f"tenant {tenant.name}: {running} runs are running, and the limit runs_in_flight is "
            f"{tenant.runs_in_flight}; wait until one of them has ended.",
            retry_after_s=_SOON_S,
        )
    for account, period in counted(start):
        unit = _UNITS[len(period)]
        limit = limit_of(accounts[account], "requests", period)
        if limit is not None and tallies.get((account, period), Tally()).requests >= limit:
            message = f"{_named(account)}: requests_per_{unit} is {limit}"
            raise _used_up(message, unit, start.started_at)


def limit_of(account: Tenant | Key, of: str, period: str) -> int | None:
    """Return an account's limit in a period; None for no limit. `of`: `tokens`, `nano_usd` or
    `requests`.
    """
    limit: int | None = getattr(account, f"{of}_per_{_UNITS[len(period)]}", None)
    return limit


def add_spent(tallies: defaultdict[Period, Tally], calls: Iterable[Call]) -> None:
    """Add the amounts that calls have spent to the sums of their accounts."""
    for call in calls:
        charged = call.charged
        for period in counted(call):
            tally = tallies[period]
            tally.tokens += charged.tokens
            tally.nano_usd += charged.nano_usd or 0


def periods(tenant: str, at: float) -> list[Period]:
    """Return the day and the month that contain a Unix time, as periods of a tenant."""
    return [(tenant, name) for name in names(at)[1:]]


def counted(counts: RunStart | OpenedCall) -> list[Period]:
    """Return the periods in which a request or a call counts: minute, day and month of its tenant,
    and the minute of its key.
    """
    minute, *_ = of_tenant = names(counts.started_at)
    spans = [(counts.tenant, name) for name in of_tenant]
    return [*spans, (key_account(counts.key_id), minute)] if counts.key_id else spans


def key_account(key_id: str) -> str:
    """Return the name of a key's account. No tenant has such a name."""
    return f"key {key_id}"


def names(at: float) -> tuple[str, str, str]:
    """Return the minute, the day and the month of a Unix time, such as 2026-11-21T13:00, 2026-11-21
    and 2026-11.
    """
    return _names_of(int(at // _MINUTE_S))


@lru_cache(maxsize=1024)
def _names_of(minute: int) -> tuple[str, str, str]:
    name = f"{datetime.fromtimestamp(minute * _MINUTE_S, UTC):%Y-%m-%dT%H:%M}"
    return name, name[:10], name[:7]


def _named(account: str) -> str:
    return account if " " in account else f"tenant {account}"


def _used_up(
    message: str,
    unit: Unit,
    at: float,
    left: Remaining | None = None,
    rest: str = "",
) -> QuotaExhausted:
    now = datetime.fromtimestamp(at, UTC)
    minute = now.replace(second=0, microsecond=0)
    day = minute.replace(hour=0, minute=0)
    resets = {
        "minute": minute + timedelta(minutes=1),
        "day": day + timedelta(days=1),
        "month": (day.replace(day=1) + timedelta(days=32)).replace(day=1),
    }
    return QuotaExhausted(
        f"{message}, and not enough of it is left{rest}; the limit resets at "
        f"{resets[unit]:%Y-%m-%d %H:%M} UTC.",
        retry_after_s=(resets[unit] - now).total_seconds(),
        left=left,
    )
