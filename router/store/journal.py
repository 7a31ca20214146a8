"""The journal: what runs do is written to a log before anything leaves, and counted against
what tenants may spend.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial
from itertools import count

import structlog
from msgspec.structs import replace
from sqlalchemy import Connection, select

from router.amount import NOTHING, Amount
from router.background import background_tasks, errors_logged, in_worker
from router.errors import BadRequest, QuotaExhausted, RolegateError, StoreFailed
from router.ledger import RunStart
from router.ledger.journal import Admitted, EarlierRun, Resumed
from router.models import Completion, Message
from router.store.accounts import SQLAccounts
from router.store.archive import delete_old, runs_to_cancel
from router.store.database import Database
from router.store.follower import Follower, own_log
from router.store.group_commit import GroupCommit
from router.store.log import RunLog
from router.store.members import Members
from router.store.names import RequestNames
from router.store.quotas import LIMITED, Period, Quotas, Tally, periods
from router.store.records import (
    Begun,
    Ended,
    Forgotten,
    Opened,
    Record,
    RecordedRun,
    Reserved,
    Settled,
    encode,
    withheld,
)
from router.store.schema import SPENDING, struct_of
from router.trace import Call, Run
from router.trace.call import OpenedCall
from router.trace.redaction import redacted
from router.trace.turns import Agent, Asked, Decided, Searched

_log = structlog.get_logger("store")
_WATCH_S = 0.5
_SELDOM = 4
_DATABASE_TIMEOUT_S = 5.0
"""How often settings and disks are looked at, after how many times of that the database is, and the
longest that it may take until it counts as down.
"""
_RESUMABLE_S = 3600.0
"""How long after its beginning an interrupted run can be gone on with."""
_RETENTION_S = 600.0
_LARGE = 500
"""Calls of a run whose last record is not made in one step of the event loop."""


class LogJournal:
    """Writes what happens to a log and keeps what it comes to; a database follows."""

    def __init__(
        self,
        database: Database,
        log: RunLog,
        on_cancel: Callable[[str], None],
        on_health: Callable[[str | None], None],
    ) -> None:
        self._database = database
        self._log = log
        self._on_cancel = on_cancel
        self._on_health = on_health
        self._accounts = SQLAccounts(database)
        self._names = RequestNames(database)
        self._quotas = Quotas(shared=database.shared)
        self._members = Members(database, log.name) if database.shared else None
        """The gateways that share a PostgreSQL; None where this one is alone."""
        self._commits = (
            GroupCommit(database, self._members, self._quotas, log.name) if self._members else None
        )
        self._follower = Follower(database, log, self._commits)
        self._runs: dict[str, RecordedRun] = {}
        """Those under way."""
        self._unfinished: dict[str, RecordedRun] = {}
        """Interrupted runs that can be gone on with."""
        self._lost: dict[str, Run] = {}
        """Ends of runs that could not be written; they are to be as soon as that is possible."""
        self._refusal: str | None = None
        """The reason why no run may begin; None where one may."""

    @classmethod
    @asynccontextmanager
    async def writing(
        cls,
        database: Database,
        log: RunLog | None = None,
        *,
        on_cancel: Callable[[str], None] = lambda _run_id: None,
        on_health: Callable[[str | None], None] = lambda _why: None,
        keep_days: float | None = None,
    ) -> AsyncIterator["LogJournal"]:
        """A journal that writes until the context is left; then the database gets what it does not
        have yet.

        `log`: None for that in the usual folder. `on_cancel` gets the identifiers of runs that are
        to be cancelled, perhaps more than once. `on_health` hears now and then why nothing can be
        written; None where it can. `keep_days`: since a run's start; None deletes nothing. Raises
        `BadConfig` and `StoreFailed`.
        """
        log = log or own_log(database)
        journal = cls(database, log, on_cancel, on_health)
        done = False
        try:
            async with (
                journal._members.joined(journal._give_up_all) if journal._members else nullcontext()
            ):
                await journal._recover()
                database.caught_up = None if journal._members else journal._follower.caught_up
                deleting = [journal._keep_deleting(keep_days)] if keep_days is not None else []
                following = journal._follower.keep_following()
                async with background_tasks(following, journal._keep_watching(), *deleting):
                    yield journal
                with suppress(RolegateError):
                    done = (
                        await journal._follower.finish()
                        and not journal._runs
                        and not journal._unfinished
                    )
                    if journal._members:
                        journal._members.done = done
        finally:
            database.caught_up = None
            log.close(empty=done)

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Put a run on record and count it against its tenant's quotas. Raises
        `BudgetExhausted` and `StoreFailed`.
        """
        if self._members:
            self._members.see_alive(begins=True)
        # Or else it is seen to when it is written
        if start.request_id and (self._unfinished or not self._members):
            earlier = await self._names.earlier(start)
            if earlier and earlier.holds(start.started_at):
                return earlier.told(start)
            if (
                earlier
                and earlier.fingerprint == start.fingerprint
                and earlier.run_id in self._unfinished
            ):
                if why := _differs(self._unfinished[earlier.run_id], start):
                    _log.warning(
                        "store.run_begun_anew", run_id=start.id, interrupted=earlier.run_id, why=why
                    )
                else:
                    start = replace(start, resumes=earlier.run_id)
        if start.resumes and (why := _differs(self._unfinished.get(start.resumes), start)):
            raise BadRequest(
                f"run_id {start.resumes!r}: cannot be gone on with: {why}; ask the question anew."
            )
        before = self._unfinished.pop(start.resumes, None)
        began = None
        try:
            began = await self._begin(start, before)
        finally:
            if before and not isinstance(began, Admitted):
                self._unfinished[start.resumes] = before
        return began

    async def _begin(self, start: RunStart, before: RecordedRun | None) -> Admitted | EarlierRun:
        if self._refusal:
            raise StoreFailed(self._refusal)
        self._log.admit(len(self._runs))
        tenant = self._quotas.tenant(start.tenant)
        leased = True
        while True:
            try:
                self._quotas.begin(start.tenant, start.started_at, start.hold)
                break
            except QuotaExhausted as refused:
                if not leased:
                    raise
                leased = await self._lease(refused, start.tenant, start.started_at, start.hold)
        begun = Begun(
            replace(start, request="", content="") if tenant.redact else start, tenant.redact
        )
        run = RecordedRun(begun)
        payload = encode(begun)
        run.segment = (before or self._log.end).segment
        try:
            if self._commits and (earlier := await self._commits.begin(run.start, run.redact)):
                self._take_back(run)
                return earlier
            self._log.append(run.key, 0, payload)
        except BaseException:
            self._take_back(run)
            if self._commits:  # it may be on record
                self._follower.take(run, forgotten=True)
            raise
        self._runs[start.id] = run
        self._names.begin(start)
        if not self._commits:
            self._follower.take(run)
        resumed = None
        if before:
            calls = (call for run in before.chain for call in (*run.calls, *run.cut()))
            resumed = Resumed(before.start, tuple(run.turns for run in before.chain), tuple(calls))
        return Admitted(tenant.limited, tenant.redact, tenant.training, resumed)

    def unfinished(self, run_id: str) -> RunStart | None:
        """The beginning of an interrupted run that can be gone on with; None where there is
        none.
        """
        run = self._unfinished.get(run_id)
        return run.start if run else None

    async def open(self, call: OpenedCall) -> None:
        """Put a call on record and reserve its worst case. Raises `BudgetExhausted` and
        `StoreFailed`.
        """
        answers = call.role == "answer"
        await self._reserve(
            call.run_id, call.started_at, call.reserved, Opened(call), answers=answers
        )

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        """Keep `amount` for the run's answer. Raises `BudgetExhausted` and `StoreFailed`."""
        at = self._running(run_id).start.started_at
        await self._reserve(run_id, at, amount, Reserved(amount), answers=True)

    def settle(self, call: Call) -> None:
        """Replace an opened call by how it ended."""
        run = self._runs.get(call.run_id)
        if run and call.number in run.open:
            self._append(run, Settled.of(call), later=True)
            self._quotas.settle(call)

    def turn(
        self, run_id: str, agent: Agent, messages: tuple[Message, ...], output: Completion
    ) -> None:
        """Keep a completed turn, unless the run's texts are not kept."""
        run = self._runs.get(run_id)
        if run and not run.redact:
            self._append(run, run.turns.turn(agent, messages, output), later=True)

    def note(self, run_id: str, record: Searched | Decided | Asked) -> None:
        """Keep a search, what became of early work, or the number of an ask, unless the run's
        texts are not kept.
        """
        run = self._runs.get(run_id)
        if run and not run.redact:
            self._append(run, record, later=True)

    def forget(self, run_id: str) -> None:
        """Take back a run that never began."""
        if run := self._runs.pop(run_id, None):
            self._append(run, Forgotten(), later=True)
            self._take_back(run)
            self._names.forget(run.start)
            self._follower.take(run, forgotten=True)

    async def finish(self, run: Run) -> None:
        """Write how the run ended, on disk. Raises `StoreFailed`."""
        known = self._running(run.id)
        for call in (*run.calls, *known.cut()):
            self.settle(call)
        told = None
        if len(run.calls) > _LARGE and not known.redact:
            told = await in_worker(known.turns.without, run)
            known = self._running(run.id)
        try:
            self._end(known, run, told)
        except StoreFailed:
            self._lost[run.id] = withheld(run, "failed", "StoreFailed")
            raise
        await (self._follower.committed(run.id) if self._commits else self._log.synced())

    def calls(self, run_id: str) -> tuple[Call, ...] | None:
        """The calls of a run under way here that have ended by now; None of any other."""
        run = self._runs.get(run_id)
        return tuple(run.calls) if run else None

    def under_way(self) -> tuple[list[Call], list[OpenedCall]]:
        """The calls of all runs under way here: those that have ended, and those that have not."""
        runs = self._runs.values()
        return [call for run in runs for call in run.calls], [
            call for run in runs for call in run.open.values()
        ]

    def _running(self, run_id: str) -> RecordedRun:
        if (run := self._runs.get(run_id)) is None:
            raise StoreFailed(f"Run {run_id} is not running any more.")
        return run

    async def _reserve(
        self, run_id: str, at: float, wanted: Amount, record: Record, *, answers: bool
    ) -> None:
        """Write a record of a run that reserves `wanted`: where it `answers`, in place of what is
        kept for that.

        Raises `BudgetExhausted` and `StoreFailed`; then what was kept still is.
        """
        if self._members:
            self._members.see_alive()
        leased = True
        while True:
            run = self._running(run_id)
            begun = run.start.started_at
            tenant = self._quotas.tenant(run.start.tenant)
            freed = run.kept if answers else NOTHING
            try:
                self._quotas.check(tenant, at, wanted, run, answers=answers)
                break
            except QuotaExhausted as refused:
                if not leased:
                    raise
                known = freed if periods(at) == periods(begun) else NOTHING
                lacking = (
                    max(0, (getattr(wanted, of) or 0) - (getattr(known, of) or 0)) for of in LIMITED
                )
                leased = await self._lease(refused, tenant.name, at, Amount(*lacking))
        self._append(run, record)
        self._quotas.reserve(tenant.name, begun, freed, sign=-1)
        self._quotas.reserve(tenant.name, at, wanted)

    async def _lease(
        self, refused: QuotaExhausted, tenant: str, at: float, lacking: Amount
    ) -> bool:
        """Ask for a lease of more, after which it is to be tried again; False where that is for the
        last time. Raises the refusal where others cannot have what is left, and `StoreFailed`.
        """
        if self._commits is None or not refused.contended:
            raise refused
        return await self._commits.lease(tenant, at, lacking)

    def _append(self, run: RecordedRun, record: Record, *, later: bool = False) -> None:
        """Write a record of a run. `later`: as for `RunLog.append`. Raises `StoreFailed`."""
        self._log.append(run.key, run.records, encode(record), later=later)
        run.apply(record)

    def _end(self, known: RecordedRun, run: Run, told: Run | None = None) -> None:
        """Write the last record of a run, whose calls have been settled. `told`: the run without
        what its turns tell, if that is made. Raises `StoreFailed`.
        """
        told = redacted(run) if known.redact else told or known.turns.without(run)
        self._append(known, Ended(replace(told, calls=())))
        del self._runs[run.id]
        self._lost.pop(run.id, None)
        self._quotas.end(known)
        self._names.end(known.start, run.status, self._log.end)
        self._follower.take(known, replace(run, calls=tuple(known.calls)))

    def _take_back(self, run: RecordedRun) -> None:
        """Count a run no longer that never began."""
        self._quotas.end(run)
        for period in periods(run.start.started_at):
            self._quotas.tallies[run.start.tenant, period].requests -= 1

    def _give_up_all(self) -> None:
        """Let the runs fail that others have closed, as they took this gateway for dead."""
        for run in [*self._runs.values()]:
            closed = self._lost[run.start.id] = run.interrupted()
            with suppress(StoreFailed):
                for call in [*run.cut()]:
                    self.settle(call)
                self._end(run, closed)
            self._on_cancel(closed.id)

    async def _recover(self) -> None:
        """Read what the last gateway has left, and close its runs."""
        interrupted, whole = await Follower(self._database, self._log).recover()
        soon = time.time() - _RESUMABLE_S
        self._unfinished = {
            run.start.id: run
            for run in interrupted
            if run.resumable and run.start.started_at > soon
        }
        await self._read_settings()
        if self._members:
            await self._members.book_leases(whole=whole)
        else:
            self._quotas.tallies.update(await self._database.read(_spent))
            await self._names.read()
        await self._delete_segments()

    async def _read_settings(self) -> None:
        self._quotas.tenants = {tenant.name: tenant for tenant in await self._accounts.tenants()}

    async def _delete_segments(self) -> None:
        """Delete the segments of the log that nothing needs which is under way, or can be gone
        on with.
        """
        needed = (run.segment for run in (*self._runs.values(), *self._unfinished.values()))
        await self._follower.delete_segments(min(needed, default=self._log.end.segment))

    async def _keep_watching(self) -> None:
        """See to settings, disks and, less often, to the database, for ever."""
        wrong: str | None = None
        for turn in count(1):
            await asyncio.sleep(_WATCH_S)
            full: str | None = None
            try:
                full = self._log.watch()
                self._log.rotate()
                soon = time.time() - _RESUMABLE_S
                self._unfinished = {
                    name: run
                    for name, run in self._unfinished.items()
                    if run.start.started_at > soon
                }
                self._names.forget_ended(self._follower.has)
                if self._commits:
                    self._commits.give_back()
                async with asyncio.timeout(_DATABASE_TIMEOUT_S):
                    await self._end_lost()
                    await self._read_settings()
                    if wrong or not turn % _SELDOM:
                        await self._delete_segments()  # which sees that it can be written
                        wanted = partial(runs_to_cancel, log=self._follower.name)
                        for run_id in await self._database.read(wanted, behind=True):
                            self._on_cancel(run_id)
                wrong = None
            except TimeoutError:
                wrong = f"nothing was written within {_DATABASE_TIMEOUT_S:g} s"
            except Exception as error:  # whatever it is: nobody else looks
                wrong = str(error) or type(error).__name__
            late = (
                (wrong or "the database is too far behind the log")
                if self._follower.behind
                else None
            )
            self._refusal = full or late
            self._on_health(self._refusal or wrong)

    async def _end_lost(self) -> None:
        """Write the ends that could not be written, as far as they can be now. Raises
        `StoreFailed`.
        """
        if self._lost:
            for run_id, run in [*self._lost.items()]:
                with suppress(StoreFailed):
                    self._end(self._runs[run_id], run)
            await self._log.synced()

    async def _keep_deleting(self, keep_days: float) -> None:
        while True:
            with errors_logged(_log, "store.nothing_deleted"):
                await delete_old(self._database, keep_days)
            await asyncio.sleep(_RETENTION_S)


def _differs(before: RecordedRun | None, now: RunStart) -> str:
    """The reason why a run cannot go on with another; empty where it can."""
    if before is None:
        return "its log is not here, or it was gone on with already"
    if before.start.tenant != now.tenant:
        return "it is another tenant's"
    then = before.start.conditions
    names = [name for name, value in then.items() if now.conditions.get(name) != value]
    return f"since it began, there is another {' and '.join(names)}" if names else ""


def _spent(connection: Connection) -> dict[Period, Tally]:
    rows = connection.execute(
        select(SPENDING).where(SPENDING.c.period.in_(periods(time.time())))
    ).mappings()
    return {(row["tenant"], row["period"]): struct_of(Tally, row) for row in rows}
