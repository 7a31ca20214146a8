"""The journal of a gateway. It writes runs to the log, including each call before it is made, and
checks the quotas of tenants.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import count, product
from operator import attrgetter

import structlog
from msgspec.structs import replace
from sqlalchemy import Connection, func, select

from router.access import QuotaUse
from router.amount import NOTHING, Amount
from router.background import background_tasks, errors_logged, in_worker
from router.errors import BadRequest, QuotaExhausted, RolegateError, StoreFailed
from router.ledger import RunStart
from router.ledger.journal import Admitted, EarlierRun, Resumed
from router.models import Completion, Message
from router.runs.archive import Progress
from router.runs.live import LiveRun
from router.store.accounts import SQLAccounts
from router.store.archive import delete_old, publish
from router.store.database import Database
from router.store.follower import Follower, own_log
from router.store.group_commit import GroupCommit
from router.store.log import RunLog
from router.store.members import Members
from router.store.names import RequestNames
from router.store.parts import encoded_in_parts
from router.store.projection import cancelled_among
from router.store.quotas import (
    LIMITED,
    Period,
    Quotas,
    Settings,
    Tally,
    counted,
    key_account,
    limit_of,
    names,
    periods,
)
from router.store.records import (
    Begun,
    Forgotten,
    Opened,
    Record,
    RecordedRun,
    Reserved,
    RunEnded,
    Settled,
    encode,
    withheld,
)
from router.store.schema import LEASES, SPENDING, WARNINGS
from router.trace import Call, Run
from router.trace.call import OpenedCall
from router.trace.redaction import redacted
from router.trace.scope import Scope
from router.trace.turns import AgentId, Asked, Decided, Searched

_log = structlog.get_logger("store")
_WATCH_S = 0.5
"""Interval of the checks of settings and disks, in seconds."""
_SELDOM = 4
"""Segments of the log that are not needed any more are deleted after every fourth check."""
_DATABASE_TIMEOUT_S = 5.0
"""Seconds without a reply after which the database is reported as down."""
_RESUMABLE_S = 3600.0
"""An interrupted run can be resumed within this many seconds after its start."""
_RETENTION_S = 600.0
_OVER_S = 120.0
"""This gateway keeps the sums of a calendar minute in memory until the minute is this many seconds
old.
"""
_OVER_FOR_ALL_S = 86400.0
"""The database keeps the sums of a calendar minute until the minute is this many seconds old. Then
no gateway adds to these sums any more, even if the gateways' clocks differ.
"""
_LARGE = 500
"""If a run has more calls than this, its last record is encoded in a thread."""
_request_key = attrgetter("tenant", "request_id", "fingerprint")
"""Returns the fields of a `RunStart` that are equal for a request and a repetition of the request.
"""


class LogJournal:
    """Implements `Journal`: writes runs to a log, and keeps the state of running runs in memory. A
    `Follower` then writes the runs to the database.
    """

    def __init__(
        self,
        database: Database,
        log: RunLog,
        on_cancel: Callable[[str], None],
        on_health: Callable[[str | None], None],
        find: Callable[[str], LiveRun | None],
    ) -> None:
        self._database = database
        self._log = log
        self._on_cancel = on_cancel
        self._on_health = on_health
        self._find = find
        self.accounts = SQLAccounts(database)
        self._names = RequestNames(database)
        self._quotas = Quotas(shared=database.shared)
        self._members = Members(database, log.name) if database.shared else None
        """Membership of this gateway in the group that shares a PostgreSQL database; None for a
        SQLite database.
        """
        self._commits = (
            GroupCommit(database, self._members, self._quotas, log.name) if self._members else None
        )
        self._follower = Follower(database, log, self._commits)
        self._runs = dict[str, RecordedRun]()
        """Running runs, by identifier."""
        self._unfinished = dict[str, RecordedRun]()
        """Interrupted runs that can be resumed, by identifier."""
        self._lost = dict[str, Run]()
        """Ended runs whose last record could not be written to the log yet, by identifier."""
        self._refusal: str | None = None
        """The reason why no run may begin; None if runs may begin."""

    @classmethod
    @asynccontextmanager
    async def writing(
        cls,
        database: Database,
        log: RunLog | None = None,
        *,
        on_cancel: Callable[[str], None] = lambda _run_id: None,
        on_health: Callable[[str | None], None] = lambda _why: None,
        find: Callable[[str], LiveRun | None] = lambda _run_id: None,
        keep_days: float | None = None,
    ) -> AsyncIterator["LogJournal"]:
        """Open a journal. When the context is left, normally or by a cancellation, changes that are
        not in the database yet are written to it.

        `log`: the log to write to; None for the log in its default folder. `on_cancel`: called with
        the identifier of a run whose cancellation was requested, maybe more than once. `on_health`:
        called regularly with the reason why runs cannot be written, or with None if they can be.
        `find`: takes an identifier, and returns the run if this gateway is running it. `keep_days`:
        runs are deleted this many days after their start; None to keep all runs. Raises `BadConfig`
        and `StoreFailed`.
        """
        log = log or own_log(database)
        journal = cls(database, log, on_cancel, on_health, find)
        done = False
        try:
            async with (
                journal._members.joined(journal._give_up_all) if journal._members else nullcontext()
            ):
                await journal._recover()
                database.caught_up = None if journal._members else journal._follower.caught_up
                deleting = journal._keep_deleting(keep_days)
                following = journal._follower.keep_following()
                cancelled: asyncio.CancelledError | None = None
                async with background_tasks(following, journal._keep_watching(), deleting):
                    try:
                        yield journal
                    except asyncio.CancelledError as error:
                        cancelled = error  # raised below, after the last changes are written
                with suppress(RolegateError):
                    done = await journal._follower.finish() and not journal._runs
                    if journal._members:
                        journal._members.done = done
                if cancelled:
                    raise cancelled
        finally:
            database.caught_up = None
            log.close(empty=done and not journal._unfinished)

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """See `Journal.begin`."""
        if self._members:
            self._members.see_alive(begins=True)

        # In a shared database, the transaction that begins the run checks the `request_id`.
        if start.request_id and (self._unfinished or not self._members):
            earlier = await self._names.earlier(start)
            if earlier and earlier.holds(start.started_at):
                return earlier.earlier_run(start)
            for run_id, run in reversed(self._unfinished.items()):
                if _request_key(run.start) != _request_key(start):
                    continue
                if not (why := _differs(run, start)):
                    start = replace(start, resumes=run_id)
                    break
                _log.warning("store.run_restarted", run_id=start.id, interrupted=run_id, why=why)

        if start.resumes and (why := _differs(self._unfinished.get(start.resumes), start)):
            raise BadRequest(
                f"run_id {start.resumes!r}: cannot be resumed: {why}; ask the question again."
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

        tenant = self._quotas.accounts[start.tenant]
        leased = True
        while True:
            try:
                self._quotas.begin(start)
                break
            except QuotaExhausted as refused:
                if not leased:
                    raise
                holds = periods(start.tenant, start.started_at)
                leased = await self._lease(refused, dict.fromkeys(holds, start.hold))

        stored = start
        if tenant.redact:
            stored = replace(start, request="", content="", scope=Scope(start.scope.indexes))
        begun = Begun(stored, tenant.redact)
        run = RecordedRun(begun)
        payload = encode(begun)
        run.before = before
        run.segment = (before or self._log.end).segment
        try:
            if self._commits and (earlier := await self._commits.begin(run.start, run.redact)):
                self._take_back(run)
                return earlier
            self._log.append(run.key, 0, payload)
        except BaseException:
            self._take_back(run)
            if self._commits:  # the run may be in the database, so it must be deleted there
                self._follower.take(run, forgotten=True)
            raise

        self._runs[start.id] = run
        self._names.begin(start)
        if not self._commits:
            self._follower.take(run)

        resumed = None
        if before:
            calls = list[Call]()
            for earlier_run in before.chain:
                calls += (*earlier_run.calls, *earlier_run.cut())
            turns = tuple(earlier_run.turns.copy() for earlier_run in before.chain)
            resumed = Resumed(before.start, turns, tuple(calls))
        return Admitted(self._quotas.limited(start), tenant.redact, tenant.training, resumed)

    def unfinished(self, run_id: str) -> RunStart | None:
        """See `Journal.unfinished`."""
        run = self._unfinished.get(run_id)
        return run.start if run else None

    async def open(self, call: OpenedCall) -> None:
        """See `Journal.open`."""
        await self._reserve(call.run_id, call.started_at, call.reserved, Opened(call))

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        """See `Journal.reserve_for_answer`."""
        at = self._running(run_id).start.started_at
        await self._reserve(run_id, at, amount, Reserved(amount))

    def settle(self, call: Call) -> None:
        """See `Journal.settle`."""
        run = self._runs.get(call.run_id)
        if run and call.number in run.open:
            self._append(run, Settled.of(call), later=True)
            self._quotas.settle(call)

    def turn(
        self,
        run_id: str,
        agent: AgentId,
        messages: tuple[Message, ...],
        output: Completion,
    ) -> None:
        """See `Journal.turn`. Turns of redacted runs are dropped."""
        run = self._runs.get(run_id)
        if run and not run.redact:
            self._append(run, run.turns.turn(agent, messages, output), later=True)

    def note(self, run_id: str, record: Searched | Decided | Asked) -> None:
        """See `Journal.note`. Records of redacted runs are dropped."""
        run = self._runs.get(run_id)
        if run and not run.redact:
            self._append(run, record, later=True)

    def forget(self, run_id: str) -> None:
        """See `Journal.forget`."""
        if run := self._runs.pop(run_id, None):
            self._append(run, Forgotten(), later=True)
            self._take_back(run)
            self._names.forget(run.start)
            self._follower.take(run, forgotten=True)

    async def finish(self, run: Run) -> None:
        """See `Journal.finish`."""
        recorded = self._running(run.id)
        for call in (*run.calls, *recorded.cut()):
            self.settle(call)

        payload = None
        if len(run.calls) > _LARGE and not recorded.redact:
            brief = await in_worker(recorded.turns.without, run)
            brief = await in_worker(encoded_in_parts, replace(brief, calls=()))
            payload = await in_worker(encode, RunEnded(brief))
            recorded = self._running(run.id)
        try:
            self._end(recorded, run, payload)
        except StoreFailed:
            self._lost[run.id] = withheld(run, "failed", "StoreFailed")
            raise
        await (self._follower.committed(run.id) if self._commits else self._log.synced())

    def calls(self, run_id: str) -> tuple[Call, ...] | None:
        """Return the ended calls of a run that this gateway is running; None for any other run."""
        run = self._runs.get(run_id)
        return tuple(run.calls) if run else None

    def under_way(self) -> tuple[list[Call], list[OpenedCall]]:
        """Return the ended calls and the open calls of all runs that this gateway is running."""
        runs = self._runs.values()
        ended = [call for run in runs for call in run.calls]
        return ended, [call for run in runs for call in run.open.values()]

    @property
    def lag_s(self) -> float:
        """Age, in seconds, of the oldest change that is not in the database yet; 0 if the database
        has all changes.
        """
        return self._follower.lag_s

    async def quota_uses(self) -> list[QuotaUse]:
        """Return the amount that all gateways have spent of each tenant's quotas in the current day
        and month. Tokens and cost of runs under way are not included. Quotas of 0 are left out.
        Raises `StoreFailed`.
        """
        spent = await self._database.read(_spent)
        uses = list[QuotaUse]()
        units = zip(names(time.time())[1:], ("day", "month"), strict=True)
        for (period, unit), of in product(units, ("requests", *LIMITED)):
            quota = f"{of}_per_{unit}"
            for tenant in self._quotas.accounts.values():
                if limit := limit_of(tenant, of, period):
                    used: int = getattr(spent.get((tenant.name, period), Tally()), of)
                    uses.append(QuotaUse(tenant.name, quota, period, limit, used))
        return uses

    def _running(self, run_id: str) -> RecordedRun:
        if (run := self._runs.get(run_id)) is None:
            raise StoreFailed(
                f"Run {run_id} has ended or was closed by another gateway; ask again."
            )
        return run

    async def _reserve(
        self,
        run_id: str,
        at: float,
        wanted: Amount,
        record: Opened | Reserved,
    ) -> None:
        """Reserve `wanted` for a run in the quotas of its tenant, and write `record`. If `wanted`
        is for the answer, it replaces the amount that the run has reserved for its answer. `at`:
        Unix time. The amount counts in the minute, day and month that contain this time.

        Raises `BudgetExhausted` and `StoreFailed`; then nothing changes.
        """
        if self._members:
            self._members.see_alive()
        answers = isinstance(record, Reserved) or record.call.role == "answer"
        leased = True
        while True:
            run = self._running(run_id)
            begun = periods(run.start.tenant, run.start.started_at)
            spans = begun if isinstance(record, Reserved) else counted(record.call)
            freed = run.kept if answers else NOTHING
            try:
                self._quotas.check(spans, at, wanted, run, answers=answers)
                break
            except QuotaExhausted as refused:
                if not leased:
                    raise
                missing = Amount(
                    *(
                        max(0, (getattr(wanted, of) or 0) - (getattr(freed, of) or 0))
                        for of in LIMITED
                    )
                )
                amounts = {span: missing if span in begun else wanted for span in spans}
                leased = await self._lease(refused, amounts)

        self._append(run, record)
        self._quotas.reserve(begun, freed, sign=-1)
        self._quotas.reserve(spans, wanted)

    async def _lease(self, refused: QuotaExhausted, missing: dict[Period, Amount]) -> bool:
        """Request larger leases, after a check of the quotas has raised `refused`. Return True if
        they were granted. If not, the caller checks the quotas once more, because calls may have
        ended in the meantime. Raises `refused` if larger leases cannot help, and `StoreFailed`.
        """
        if self._commits is None or not refused.contended:
            raise refused
        return await self._commits.lease(missing)

    def _append(self, run: RecordedRun, record: Record, *, later: bool = False) -> None:
        """Write a record of a run to the log, and apply it to the run's state. `later`: see
        `RunLog.append`. Raises `StoreFailed`.
        """
        self._log.append(run.key, run.records, encode(record), later=later)
        run.apply(record)

    def _end(self, recorded: RecordedRun, run: Run, payload: bytes | None = None) -> None:
        """Write the last record of a run to the log. All calls of the run must be settled.
        `payload`: the encoded record; None to encode it here. Raises `StoreFailed`.
        """
        if payload is None:
            brief = redacted(run) if recorded.redact else recorded.turns.without(run)
            payload = encode(RunEnded(replace(brief, calls=())))
        self._log.append(recorded.key, recorded.records, payload)
        recorded.records += 1

        del self._runs[run.id]
        self._lost.pop(run.id, None)
        self._quotas.end(recorded)
        self._names.end(recorded.start, run.status, self._log.end)
        self._follower.take(recorded, replace(run, calls=tuple(recorded.calls)))
        if run.status == "interrupted" and recorded.resumable:
            self._unfinished[run.id] = recorded

    def _take_back(self, run: RecordedRun) -> None:
        """Release the reservations of a run that never began, and do not count the run as a request
        any more.
        """
        self._quotas.end(run)
        for period in counted(run.start):
            self._quotas.tallies[period].requests -= 1

    def _give_up_all(self) -> None:
        """Cancel all runs of this gateway. Called when another gateway has closed these runs in the
        database, because this gateway seemed dead (see `members.py`).
        """
        for run in [*self._runs.values()]:
            closed = self._lost[run.start.id] = run.interrupted()
            with suppress(StoreFailed):
                for call in [*run.cut()]:
                    self.settle(call)
                self._end(run, closed)
            self._on_cancel(closed.id)

    async def _recover(self) -> None:
        """Recover the log after the end of the previous gateway (see `Follower.recover`), and read
        settings, spending and used `request_id`s from the database.
        """
        interrupted, complete = await Follower(self._database, self._log).recover()
        self._unfinished = {run.start.id: run for run in interrupted if run.resumable}
        self._forget_unfinished()
        await self._read_settings()
        if self._members:
            await self._members.book_leases(complete=complete)
        else:
            self._quotas.tallies.update(await self._database.read(_spent))
            await self._names.read()
        await self._delete_segments()

    async def _read_settings(self) -> None:
        accounts = Settings({key_account(key.key_id): key for key in await self.accounts.keys()})
        accounts |= {tenant.name: tenant for tenant in await self.accounts.tenants()}
        self._quotas.accounts = accounts

    async def _delete_segments(self) -> None:
        """Delete old segments of the log. A segment is kept if a run that is running or can be
        resumed began in this segment or in an earlier segment.
        """
        needed = (run.segment for run in (*self._runs.values(), *self._unfinished.values()))
        await self._follower.delete_segments(min(needed, default=self._log.end.segment))

    def _forget_unfinished(self) -> None:
        """Drop interrupted runs that started too long ago to be resumed."""
        self._unfinished = {
            run_id: run
            for run_id, run in self._unfinished.items()
            if run.start.started_at > time.time() - _RESUMABLE_S
        }

    async def _keep_watching(self) -> None:
        """Until cancelled, regularly check the log's disk and the database, read the settings of
        tenants and keys, and report problems to `on_health`.
        """
        problem: str | None = None
        for turn in count(1):
            await asyncio.sleep(_WATCH_S)
            full: str | None = None
            try:
                full = self._log.watch()
                self._log.rotate()
                self._forget_unfinished()
                self._quotas.forget_minutes(time.time() - _OVER_S)
                self._names.forget_ended(self._follower.has)
                if self._commits:
                    self._commits.give_back()
                async with asyncio.timeout(_DATABASE_TIMEOUT_S):
                    await self._watch_database(deletes=bool(problem) or not turn % _SELDOM)
                problem = None
            except TimeoutError:
                problem = (
                    f"the database did not answer in {_DATABASE_TIMEOUT_S:g} s; check that it runs"
                )
            except Exception as error:  # an unexpected error must not end the loop
                problem = str(error) or type(error).__name__

            late: str | None = None
            if self._follower.behind:
                late = problem or "too many runs are not in the database yet; try again later"
            self._refusal = full or late
            self._on_health(self._refusal or problem)

    async def _watch_database(self, *, deletes: bool) -> None:
        await self._end_lost()
        await self._read_settings()
        cancelled = await self._database.write(
            publish, list(self._runs), self._happened, on_disk=False, behind=True
        )
        for run_id in cancelled:
            self._on_cancel(run_id)
        if self._unfinished:
            for run_id in await self._database.read(cancelled_among, [*self._unfinished]):
                self._unfinished.pop(run_id, None)
        if deletes:
            await self._delete_segments()

    def _happened(self, run_id: str) -> Progress:
        """Return the events and calls of a run so far. For a redacted run, return only the first
        event and the calls, which have no texts.
        """
        run = self._runs.get(run_id)
        live = self._find(run_id)
        if not run or not live:
            return Progress()
        return Progress(live.events[:1] if run.redact else live.events, run.calls)

    async def _end_lost(self) -> None:
        """Try again to write the last records of the runs in `_lost`. Raises `StoreFailed`."""
        if self._lost:
            for run_id, run in [*self._lost.items()]:
                with suppress(StoreFailed):
                    self._end(self._runs[run_id], run)
            await self._log.synced()

    async def _keep_deleting(self, keep_days: float | None) -> None:
        while True:
            with errors_logged(_log, "store.nothing_deleted"):
                await self._database.write(_delete_past, behind=True)
                if keep_days is not None:
                    await delete_old(self._database, keep_days)
            await asyncio.sleep(_RETENTION_S)


def _differs(before: RecordedRun | None, now: RunStart) -> str:
    """Return the reason why the run `now` cannot resume the run `before`; empty if it can."""
    if before is None:
        return "the run was not interrupted at this gateway, or was resumed already"
    if before.start.tenant != now.tenant:
        return "it belongs to another tenant"
    then = before.start.conditions
    names = [name for name, value in then.items() if now.conditions.get(name) != value]
    return f"{' and '.join(names)} changed since the run began" if names else ""


def _spent(connection: Connection) -> dict[Period, Tally]:
    current = select(SPENDING).where(SPENDING.c.period.in_(names(time.time())))
    rows = connection.execute(current)
    return {(tenant, period): Tally(*sums) for tenant, period, *sums in rows}


def _delete_past(connection: Connection) -> None:
    """Delete sums and leases of minutes that are over, and warnings of past months."""
    minute, _, month = names(time.time() - _OVER_FOR_ALL_S)
    connection.execute(WARNINGS.delete().where(WARNINGS.c.period < month))
    for table in (SPENDING, LEASES):
        period = table.c.period
        deletion = table.delete().where(period < minute, func.length(period) == len(minute))
        connection.execute(deletion)
