"""Group commit on a PostgreSQL that gateways share: what waits is written in one transaction; while
that commits, the next gathers.

A run is put on record before it begins, and is acknowledged when its end is committed. Quotas are
spent from leases.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection

from router.access import Tenant
from router.amount import Amount
from router.errors import QuotaExhausted, StoreFailed
from router.ledger import RunStart
from router.ledger.journal import EarlierRun
from router.store.database import FAILED, Database, storable, unwritable
from router.store.members import Members, see_member
from router.store.names import Named, name_of
from router.store.projection import changed, project, put_leases, write
from router.store.quotas import (
    LIMITED,
    Period,
    Quotas,
    Tally,
    add_spent,
    limit_of,
    periods,
    see_counts,
)
from router.store.records import Change

_AHEAD = 16
_LEFT_FOR_OTHERS = 8
"""A lease is larger than what is asked for: by so many times that, but no more than this part
of what is left.
"""


class _Begin(NamedTuple):
    start: RunStart
    redact: bool
    tenant: Tenant
    answer: "asyncio.Future[EarlierRun | None]"


class _Wish(NamedTuple):
    tenant: str
    at: float
    wanted: Amount
    answer: "asyncio.Future[bool]"


class _Size(NamedTuple):
    """The size that a lease is to have, for one of `LIMITED`."""

    least: int
    """What is used of it, with the smallest amount that is asked for."""
    wanted: int
    """The same with all that are; or what is to be kept of it."""
    asked: int
    limit: int | None


_Sizes = dict[Period, tuple[_Size, ...]]
_Leases = dict[Period, list[tuple[int, int]]]
"""What is spent, and the lease, for each of `LIMITED`."""


class GroupCommit:
    """Writes for one gateway. All is for the thread of its event loop, but for what runs in
    transactions.
    """

    def __init__(self, database: Database, members: Members, quotas: Quotas, log: str) -> None:
        self._database = database
        self._members = members
        self._quotas = quotas
        self._log = log
        self.news = asyncio.Event()
        """Set where something waits, so that `commit` is to be called."""
        self._begins: list[_Begin] = []
        self._wishes: list[_Wish] = []
        self._idle: set[Period] = set()
        """Leases of which something is to be given back."""
        self._doubtful = False
        """Whether a transaction failed, so that nobody knows what it has left as leases."""

    @property
    def waiting(self) -> bool:
        """Whether anything waits."""
        return bool(self._begins or self._wishes or self._idle)

    async def begin(self, start: RunStart, redact: bool) -> EarlierRun | None:
        """Put a run on record; None once that is done. Raises `QuotaExhausted` and `StoreFailed`;
        after the latter, and where this is cancelled, it may be on record.
        """
        answer: asyncio.Future[EarlierRun | None] = asyncio.get_running_loop().create_future()
        self._begins.append(_Begin(start, redact, self._quotas.tenant(start.tenant), answer))
        self.news.set()
        return await answer

    async def lease(self, tenant: str, at: float, wanted: Amount) -> bool:
        """Ask for a lease of so much more; False where nothing more is to be had. Raises
        `StoreFailed`.
        """
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._wishes.append(_Wish(tenant, at, wanted, answer))
        self.news.set()
        return await answer

    def give_back(self) -> None:
        """Give back what is free of leases: all where nothing is used, or else half of it."""
        tallies = self._quotas.tallies.items()
        self._idle |= {key for key, tally in tallies if any(tally.free(of) > 0 for of in LIMITED)}
        if self._idle:
            self.news.set()

    async def commit(self, changes: Sequence[Change]) -> set[str]:
        """Write changes and all that waits; the runs among them that others had closed. Raises
        `StoreFailed`.
        """
        begins = [each for each in self._begins if not each.answer.done()]
        self._begins = []
        wishes = self._wishes
        self._wishes = []
        return (
            await self._commit(begins, wishes, changes)
            if begins or wishes or changes or self._idle
            else set()
        )

    async def _commit(
        self, begins: Sequence[_Begin], wishes: Sequence[_Wish], changes: Sequence[Change]
    ) -> set[str]:
        sizes = self._sizes(wishes)
        self._idle = set()
        work = partial(
            self._write, epoch=self._members.epoch, begins=begins, sizes=sizes, changes=changes
        )
        try:
            answers, leases, closed = await self._database.write(work)
        except BaseException as error:  # who waits is told of a cancellation, too
            self._doubtful = True
            # Which one it is, nobody knows
            if unwritable(error) and begins and len(begins) + len(changes) > 1:
                for each in begins:
                    with suppress(StoreFailed):
                        await self._commit([each], (), ())
                return await self._commit((), wishes, changes)
            for answer in [each.answer for each in begins] + [each.answer for each in wishes]:
                _resolve(answer, StoreFailed(str(error) or FAILED))
            raise
        self._note(leases, changes)
        for begin, told in zip(begins, answers, strict=True):
            _resolve(begin.answer, told)
        for wish in wishes:
            keys = [(wish.tenant, period) for period in periods(wish.at)]
            pairs = (pair for key in keys for pair in zip(leases[key], sizes[key], strict=True))
            _resolve(
                wish.answer,
                all(size.limit is None or lease >= size.least for (_, lease), size in pairs),
            )
        return closed

    def _write(
        self,
        connection: Connection,
        epoch: int,
        begins: Sequence[_Begin],
        sizes: _Sizes,
        changes: Sequence[Change],
    ) -> tuple[list[EarlierRun | QuotaExhausted | None], _Leases, set[str]]:
        """The transaction."""
        see_member(connection, epoch)
        keys = set(sizes) | set(changed(changes))
        keys |= {
            (each.start.tenant, period)
            for each in begins
            for period in periods(each.start.started_at)
        }
        spent = _locked(connection, sorted(keys))
        leases = _leases(connection, self._log, sizes, spent) if sizes else {}
        closed = project(connection, self._log, changes) if changes else set()
        if begins and any(change.forgotten for change in changes):
            spent = _locked(connection, sorted(keys))  # with fewer requests
        return _begin(connection, self._log, begins, spent) if begins else [], leases, closed

    def _note(self, leases: _Leases, changes: Sequence[Change]) -> None:
        """Note what the database has as spent now, and as leases."""
        for key, found in leases.items():
            for of, (spent, lease) in zip(LIMITED, found, strict=True):
                self._quotas.tallies[key].lease(of, spent, lease)
        booked = defaultdict[Period, Tally](Tally)
        add_spent(booked, [call for change in changes if change.run for call in change.run.calls])
        for key, sums in booked.items():
            self._quotas.tallies[key].booked_tokens += sums.tokens
            self._quotas.tallies[key].booked_nano_usd += sums.nano_usd
        if self._doubtful:
            self._doubtful, self._idle = False, set(self._quotas.tallies)
            self.news.set()

    def _sizes(self, wishes: Sequence[_Wish]) -> _Sizes:
        """The sizes that leases are to have. What is to be given back is not used from now on."""
        asked: dict[Period, list[Amount]] = defaultdict(list)
        for wish in wishes:
            for period in periods(wish.at):
                asked[wish.tenant, period].append(wish.wanted)
        return {
            key: tuple(self._size(key, of, asked[key]) for of in LIMITED)
            for key in (*asked, *self._idle)
        }

    def _size(self, key: Period, of: str, asked: Sequence[Amount]) -> _Size:
        tenant = self._quotas.tenant(key[0])
        tally = self._quotas.tallies[key]
        used = tally.used(of)
        amounts = [getattr(each, of) or 0 for each in asked]
        limit = limit_of(tenant, of, key[1])
        if asked:
            wanted = max(sum(amounts), tally.free(of))  # what is free by now may be used meanwhile
            return _Size(used + min(amounts), used + wanted, sum(amounts), limit)
        kept = max(0, tally.free(of)) // 2 if used else 0
        setattr(tally, f"most_{of}", getattr(tally, f"booked_{of}") + used + kept)
        return _Size(used + kept, used + kept, 0, limit)


def _resolve(answer: "asyncio.Future[Any]", outcome: object) -> None:
    if answer.done():  # nobody waits any more
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)


_LOCK = """
INSERT INTO spending (tenant, period, requests, tokens, nano_usd)
SELECT tenant, period, 0, 0, 0
FROM unnest(%(tenants)s::text[], %(periods)s::text[]) AS wanted (tenant, period)
ORDER BY tenant, period ON CONFLICT (tenant, period) DO UPDATE SET requests = spending.requests
RETURNING tenant, period, requests, tokens, nano_usd
"""
_HELD = """
SELECT tenant, period, log, tokens, nano_usd FROM leases
WHERE (tenant, period) IN (SELECT * FROM unnest(%(tenants)s::text[], %(periods)s::text[]))
"""
_NAMES = """
SELECT tenant, request_id, run_id, fingerprint, status, started_at FROM runs
WHERE (tenant, request_id) IN (SELECT * FROM unnest(%(tenants)s::text[], %(request_ids)s::text[]))
"""
_IN_FLIGHT = (
    "SELECT tenant, count(*) FROM runs WHERE tenant = ANY(%(tenants)s) AND status = "
    "'running' GROUP BY tenant"
)


def _locked(connection: Connection, keys: Sequence[Period]) -> dict[Period, Tally]:
    """What is spent, locked in one order by all, so that nobody else begins, ends or leases for
    these tenants.
    """
    tenants = [key[0] for key in keys]
    of = [key[1] for key in keys]
    rows = connection.exec_driver_sql(_LOCK, {"tenants": tenants, "periods": of})
    return {(tenant, period): Tally(*sums) for tenant, period, *sums in rows}


def _leases(connection: Connection, log: str, sizes: _Sizes, spent: dict[Period, Tally]) -> _Leases:
    """Give leases the sizes that they are to have, as far as what is left suffices."""
    asked = {"tenants": [key[0] for key in sizes], "periods": [key[1] for key in sizes]}
    own = Counter[tuple[str, str, str]]()
    others = Counter[tuple[str, str, str]]()
    for tenant, period, holder, *sums in connection.exec_driver_sql(_HELD, asked):
        for of, lease in zip(LIMITED, sums, strict=True):
            (own if holder == log else others)[tenant, period, of] += lease
    leases: _Leases = {}
    for key, wanted in sizes.items():
        leases[key] = []
        for of, size in zip(LIMITED, wanted, strict=True):
            booked = getattr(spent[key], of)
            leases[key].append((booked, _granted(size, own[*key, of], booked + others[*key, of])))
    put_leases(connection, log, {key: [lease for _, lease in each] for key, each in leases.items()})
    return leases


def _granted(size: _Size, own: int, taken: int) -> int:
    """The lease to be had where so much of the limit is taken by others: less than asked for is
    none more. What there is of what is wanted stays.
    """
    if size.limit is None:
        return 0
    left = size.limit - taken
    ahead = min(_AHEAD * size.asked, max(0, left - size.wanted) // _LEFT_FOR_OTHERS)
    granted = min(size.wanted + ahead, left)
    return max(min(own, size.wanted), granted if granted >= size.least else 0)


def _begin(
    connection: Connection, log: str, begins: Sequence[_Begin], spent: dict[Period, Tally]
) -> list[EarlierRun | QuotaExhausted | None]:
    """Put runs on record that may begin."""
    starts = [each.start for each in begins]
    names = {
        "tenants": [start.tenant for start in starts if start.request_id],
        "request_ids": [storable(start.request_id) for start in starts if start.request_id],
    }
    rows = connection.exec_driver_sql(_NAMES, names) if names["tenants"] else ()
    named = {(tenant, request_id): Named(*of) for tenant, request_id, *of in rows}
    counted = {
        "tenants": [each.tenant.name for each in begins if each.tenant.runs_in_flight is not None]
    }
    running = Counter[str](
        dict(connection.exec_driver_sql(_IN_FLIGHT, counted).all()) if counted["tenants"] else {}
    )
    answers: list[EarlierRun | QuotaExhausted | None] = []
    for start, _, tenant, _ in begins:
        name = name_of(start)
        if (earlier := named.get(name)) and earlier.holds(start.started_at):
            answers.append(earlier.told(start))
            continue
        try:
            see_counts(tenant, start.started_at, running[tenant.name], spent)
        except QuotaExhausted as error:
            answers.append(error)
            continue
        running[tenant.name] += 1
        for period in periods(start.started_at):
            spent[tenant.name, period].requests += 1
        if start.request_id:
            named[name] = Named.of(start)
        answers.append(None)
    begun = [
        Change(each.start, each.redact)
        for each, answer in zip(begins, answers, strict=True)
        if answer is None
    ]
    write(connection, log, begun)
    return answers
