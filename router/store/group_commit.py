"""Group commit of a gateway that shares a PostgreSQL database with other gateways.

A lease is a part of a tenant's limit that one gateway may spend (see `quotas.py`). Runs that want
to begin, requests for larger leases, and changes from the log wait until the previous transaction
is committed. Then one transaction writes them all. It locks the rows in `spending` of all tenants
and periods that it changes, always in the same order, so that gateways cannot deadlock. While it
holds the locks, no other gateway can begin runs or take leases of these tenants. Under the locks,
the transaction

1. resizes leases: to the requested amounts plus something in advance, as far as the limits and the
   leases of other gateways allow;
2. writes the changes from the log, which moves spending from the leases to `spending`;
3. begins runs, one after the other, within the limits on requests and on runs in flight.

If the outcome of a transaction is unknown, it may have changed the leases. So after a failure, all
leases are written again with the next commit. Until then, the gateway assumes that each lease has
the smaller of two sizes: its size before, and its size after the failed transaction.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection

from router.amount import Amount
from router.errors import QuotaExhausted, StoreFailed
from router.ledger import RunStart
from router.ledger.journal import EarlierRun
from router.store.database import FAILED, Database, unwritable
from router.store.members import Members, see_member
from router.store.names import Name, Named, name_of
from router.store.projection import changed, ended_calls, project, put_leases, write
from router.store.quotas import (
    LIMITED,
    Period,
    Quotas,
    Settings,
    Tally,
    add_spent,
    counted,
    limit_of,
    see_counts,
)
from router.store.records import Change

_AHEAD = 16
"""Max amount that is leased in advance, as a multiple of the requested amount."""
_LEFT_FOR_OTHERS = 8
"""In advance, a gateway leases at most 1/8 of the unleased part of a limit."""


class _Begin(NamedTuple):
    """A run that waits to begin. `answer` gets the result of `GroupCommit.begin`."""

    start: RunStart
    redact: bool
    accounts: Settings
    answer: "asyncio.Future[EarlierRun | None]"


class _Wish(NamedTuple):
    """A request for larger leases. `answer` gets True if they were granted."""

    wanted: Mapping[Period, Amount]
    answer: "asyncio.Future[bool]"


class _Size(NamedTuple):
    """Bounds for the new size of a lease, in tokens or in billionths of a dollar."""

    min_size: int
    """Size that serves at least one request: the used part of the lease, plus the smallest request.
    """
    wanted: int
    """Size that serves all requests, and is not smaller than the current size. If the gateway gives
    back a part of the lease, this is the size that remains.
    """
    asked: int
    """Sum of the amounts that calls and runs have requested; 0 if a part of the lease is given
    back.
    """
    limit: int | None
    """The account's limit in the lease's period; None for no limit."""


_Sizes = dict[Period, tuple[_Size, ...]]
_Leases = dict[Period, list[tuple[int, int]]]
"""For each account and period, two pairs (amount spent, size of the lease). The first pair is in
tokens, the second in billionths of a dollar.
"""


class GroupCommit:
    """Groups the writes of one gateway into transactions. All methods are called in the event
    loop's thread; only the transactions run in another thread.
    """

    def __init__(
        self,
        database: Database,
        members: Members,
        quotas: Quotas,
        log: str,
    ) -> None:
        self._database = database
        self._members = members
        self._quotas = quotas
        self._log = log
        self.news = asyncio.Event()
        """Set when something waits for `commit`."""
        self._begins = list[_Begin]()
        self._wishes = list[_Wish]()
        self._idle = set[Period]()
        """Accounts and periods for which the next commit gives back a part of the lease."""
        self._doubtful = False
        """True after a failed transaction, until all leases are written again, because it is
        unknown which leases the database has.
        """

    @property
    def waiting(self) -> bool:
        """True if anything waits for `commit`."""
        return bool(self._begins or self._wishes or self._idle)

    async def begin(self, start: RunStart, redact: bool) -> EarlierRun | None:
        """Begin a run with the next commit, and return None. If an earlier run of the tenant has
        the same `request_id`, the new run does not begin, and the earlier run is returned.
        `redact`: True if the texts of the run must not be stored.

        Raises `QuotaExhausted` and `StoreFailed`. After `StoreFailed` or a cancellation, the run
        may have begun in the database.
        """
        answer = asyncio.Future[EarlierRun | None]()
        self._begins.append(_Begin(start, redact, self._quotas.accounts, answer))
        self.news.set()
        return await answer

    async def lease(self, wanted: Mapping[Period, Amount]) -> bool:
        """Enlarge leases with the next commit, so that the amounts in `wanted` can be reserved
        within them. Return False if the limits do not allow that. Raises `StoreFailed`.
        """
        answer = asyncio.Future[bool]()
        self._wishes.append(_Wish(wanted, answer))
        self.news.set()
        return await answer

    def give_back(self) -> None:
        """Give back unused parts of leases with the next commit: half of the free part of a lease,
        or the whole lease if the gateway uses no part of it.
        """
        tallies = self._quotas.tallies.items()
        self._idle |= {key for key, tally in tallies if any(tally.free(of) > 0 for of in LIMITED)}
        if self._idle:
            self.news.set()

    async def commit(self, changes: Sequence[Change]) -> set[str]:
        """Write changes from the log, and everything that waits for a commit, in one transaction.
        Return the identifiers of the runs in `changes` that other gateways have closed. Raises
        `StoreFailed`.
        """
        begins = [begin for begin in self._begins if not begin.answer.done()]
        self._begins = []
        wishes = self._wishes
        self._wishes = []
        if begins or wishes or changes or self._idle:
            return await self._commit(begins, wishes, changes)
        return set()

    async def _commit(
        self, begins: Sequence[_Begin], wishes: Sequence[_Wish], changes: Sequence[Change]
    ) -> set[str]:
        sizes = self._sizes(wishes)
        self._idle = set()
        try:
            outcomes, leases, closed = await self._database.write(
                self._write, self._members.epoch, begins, sizes, changes
            )
        except BaseException as error:  # a cancellation, too: callers must not wait forever
            self._doubtful = True
            # The database refuses the data of one of the runs, but does not say which run. So write
            # each run in its own transaction.
            if unwritable(error) and begins and len(begins) + len(changes) > 1:
                for begin in begins:
                    with suppress(StoreFailed):
                        await self._commit([begin], (), ())
                return await self._commit((), wishes, changes)

            failure = StoreFailed(str(error) or FAILED)
            for answer in [item.answer for item in begins] + [item.answer for item in wishes]:
                _resolve(answer, failure)
            raise

        self._note(leases, changes)
        for begin, outcome in zip(begins, outcomes, strict=True):
            _resolve(begin.answer, outcome)
        for wish in wishes:
            granted = True
            for key in wish.wanted:
                for (_, lease), size in zip(leases[key], sizes[key], strict=True):
                    granted = granted and (size.limit is None or lease >= size.min_size)
            _resolve(wish.answer, granted)
        return closed

    def _write(
        self,
        connection: Connection,
        epoch: int,
        begins: Sequence[_Begin],
        sizes: _Sizes,
        changes: Sequence[Change],
    ) -> tuple[list[EarlierRun | QuotaExhausted | None], _Leases, set[str]]:
        """Carry out the transaction. Return the outcome of each of `begins`, the new leases, and
        the runs in `changes` that other gateways have closed.
        """
        see_member(connection, epoch)
        keys = set(sizes) | set(changed(changes))
        for begin in begins:
            keys.update(counted(begin.start))
        spent = _locked(connection, sorted(keys))

        leases = _leases(connection, self._log, sizes, spent) if sizes else {}
        closed = project(connection, self._log, changes) if changes else set()
        if begins and any(change.forgotten for change in changes):
            # Read the sums again: runs that are forgotten no longer count as requests.
            spent = _locked(connection, sorted(keys))
        outcomes = _begin(connection, self._log, begins, spent) if begins else []
        return outcomes, leases, closed

    def _note(self, leases: _Leases, changes: Sequence[Change]) -> None:
        """Update the tallies (sums in memory) after a transaction. The tallies get the amounts
        spent and the sizes of leases, as the database has them now.
        """
        for key, pairs in leases.items():
            for of, (spent, lease) in zip(LIMITED, pairs, strict=True):
                self._quotas.tallies[key].lease(of, spent, lease)

        booked = defaultdict[Period, Tally](Tally)
        add_spent(booked, ended_calls(changes))
        for key, sums in booked.items():
            self._quotas.tallies[key].booked_tokens += sums.tokens
            self._quotas.tallies[key].booked_nano_usd += sums.nano_usd

        if self._doubtful:
            self._doubtful = False
            self._idle = set(self._quotas.tallies)
            self.news.set()

    def _sizes(self, wishes: Sequence[_Wish]) -> _Sizes:
        """Return the bounds for the new sizes of leases. Parts that will be given back are removed
        from the tallies here, so that no call uses them before the transaction.
        """
        asked: dict[Period, list[Amount]] = defaultdict(list)
        for wish in wishes:
            for key, amount in wish.wanted.items():
                asked[key].append(amount)
        return {
            key: tuple(self._size(key, of, asked[key]) for of in LIMITED)
            for key in (*asked, *self._idle)
        }

    def _size(self, key: Period, of: str, asked: Sequence[Amount]) -> _Size:
        tally = self._quotas.tallies[key]
        used = tally.used(of)
        amounts = [getattr(amount, of) or 0 for amount in asked]
        limit = limit_of(self._quotas.accounts[key[0]], of, key[1])
        if asked:
            # Keep the free part of the lease, because it may be used before the transaction ends.
            wanted = max(sum(amounts), tally.free(of))
            return _Size(used + min(amounts), used + wanted, sum(amounts), limit)

        kept = max(0, tally.free(of)) // 2 if used else 0
        setattr(tally, f"lease_end_{of}", getattr(tally, f"booked_{of}") + used + kept)
        return _Size(used + kept, used + kept, 0, limit)


def _resolve(answer: "asyncio.Future[Any]", outcome: object) -> None:
    if answer.done():  # cancelled
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


_LOCK = """
INSERT INTO spending (tenant, period, requests, tokens, nano_usd)
SELECT tenant, period, 0, 0, 0
FROM unnest(%(tenants)s::text[], %(names)s::text[]) AS wanted (tenant, period)
ORDER BY tenant, period ON CONFLICT (tenant, period) DO UPDATE SET requests = spending.requests
RETURNING tenant, period, requests, tokens, nano_usd
"""
_HELD = """
SELECT tenant, period, log, tokens, nano_usd FROM leases
WHERE (tenant, period) IN (SELECT * FROM unnest(%(tenants)s::text[], %(names)s::text[]))
"""
_NAMES = """
SELECT tenant, request_id, run_id, fingerprint, status, started_at FROM runs
WHERE (tenant, request_id) IN (SELECT * FROM unnest(%(tenants)s::text[], %(names)s::text[]))
"""
_IN_FLIGHT = (
    "SELECT tenant, count(*) FROM runs WHERE tenant = ANY(%(tenants)s) AND status = "
    "'running' GROUP BY tenant"
)


def _locked(connection: Connection, keys: Sequence[Period]) -> dict[Period, Tally]:
    """Lock the rows of these tenants and periods in `spending`, and return their sums. `keys` must
    be sorted, so that all gateways lock in the same order.
    """
    rows = connection.exec_driver_sql(_LOCK, _parameters(keys))
    return {(tenant, period): Tally(*sums) for tenant, period, *sums in rows}


def _leases(
    connection: Connection,
    log: str,
    sizes: _Sizes,
    spent: dict[Period, Tally],
) -> _Leases:
    """Write the leases of this gateway in the sizes `sizes`, as far as the limits allow, and return
    them. `log`: name of the gateway's log. `spent`: the locked sums.
    """
    own = Counter[tuple[str, str, str]]()
    others = Counter[tuple[str, str, str]]()
    for tenant, period, holder, *sums in connection.exec_driver_sql(_HELD, _parameters(sizes)):
        for of, lease in zip(LIMITED, sums, strict=True):
            (own if holder == log else others)[tenant, period, of] += lease

    leases: _Leases = {}
    for key, wanted in sizes.items():
        leases[key] = []
        for of, size in zip(LIMITED, wanted, strict=True):
            booked = getattr(spent[key], of)
            leases[key].append((booked, _granted(size, own[*key, of], booked + others[*key, of])))
    granted = {key: [lease for _, lease in pairs] for key, pairs in leases.items()}
    put_leases(connection, log, granted)
    return leases


def _parameters(keys: Iterable[Period | Name]) -> dict[str, list[str]]:
    return {"tenants": [key[0] for key in keys], "names": [key[1] for key in keys]}


def _granted(size: _Size, own: int, taken: int) -> int:
    """Return the new size of a lease. The lease grows only if it then has room for at least the
    smallest request. `own`: size of the lease so far. `taken`: the amount spent, plus the leases of
    other gateways.
    """
    if size.limit is None:
        return 0
    left = size.limit - taken
    ahead = min(_AHEAD * size.asked, max(0, left - size.wanted) // _LEFT_FOR_OTHERS)
    granted = min(size.wanted + ahead, left)
    return max(min(own, size.wanted), granted if granted >= size.min_size else 0)


def _begin(
    connection: Connection,
    log: str,
    begins: Sequence[_Begin],
    spent: dict[Period, Tally],
) -> list[EarlierRun | QuotaExhausted | None]:
    """Write the runs that may begin. Return an outcome for each of `begins`: None if the run has
    begun, else the earlier run or the error.
    """
    named = _named(connection, begins)
    running = _in_flight(connection, begins)
    outcomes = list[EarlierRun | QuotaExhausted | None]()
    begun = list[Change]()
    for start, redact, accounts, _ in begins:
        name = name_of(start)
        if (earlier := named.get(name)) and earlier.holds(start.started_at):
            outcomes.append(earlier.earlier_run(start))
            continue
        try:
            see_counts(accounts, start, running[start.tenant], spent)
        except QuotaExhausted as error:
            outcomes.append(error)
            continue

        running[start.tenant] += 1
        for period in counted(start):
            spent[period].requests += 1
        if start.request_id:
            named[name] = Named.of(start)
        begun.append(Change(start, redact))
        outcomes.append(None)
    write(connection, log, begun)
    return outcomes


def _named(connection: Connection, begins: Sequence[_Begin]) -> dict[Name, Named]:
    """Return the stored runs that have the same tenants and `request_id`s as these runs."""
    names = [name_of(begin.start) for begin in begins if begin.start.request_id]
    if not names:
        return {}
    rows = connection.exec_driver_sql(_NAMES, _parameters(names))
    return {(tenant, request_id): Named(*fields) for tenant, request_id, *fields in rows}


def _in_flight(connection: Connection, begins: Sequence[_Begin]) -> Counter[str]:
    """Return the number of running runs by tenant, for tenants with a limit on running runs."""
    tenants = (begin.accounts[begin.start.tenant] for begin in begins)
    limited = [tenant.name for tenant in tenants if tenant.runs_in_flight is not None]
    if not limited:
        return Counter()
    return Counter(dict(connection.exec_driver_sql(_IN_FLIGHT, {"tenants": limited}).all()))
