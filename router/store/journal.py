"""The journal: a log that is written before anything leaves, and a database that is filled from it."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count, islice, takewhile

import structlog
from msgspec.structs import replace
from sqlalchemy import Connection, func, select

from router.access import Tenant
from router.amount import NOTHING, Amount
from router.background import background_tasks, errors_logged
from router.errors import BadRequest, QuotaExhausted, RolegateError, StoreFailed
from router.ledger import RunStart
from router.ledger.journal import Admitted, EarlierRun, Resumed
from router.models import Completion, Message
from router.store.archive import delete_old
from router.store.database import Database, storable, unwritable
from router.store.group_commit import GroupCommit
from router.store.log import Position, RunLog, number_of, segments
from router.store.members import LOOK_S, Members
from router.store.names import REQUEST_ID_S, Named, UsedNames
from router.store.projection import Change, keep_place, place_of, project
from router.store.quotas import LIMITED, Quotas, Tally, periods
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
    run_key,
)
from router.store.recovery import SQLITE, ended_among, left_over, own_log, recover
from router.store.schema import RUNS, SPENDING, TENANTS, struct_of
from router.trace import Call, Run
from router.trace.call import OpenedCall
from router.trace.redaction import redacted
from router.trace.turns import Agent, Decided, Searched
from router.trace.values import AnswerWritten

_log = structlog.get_logger("store")
_RECENT_S = 60.0
"""How long a run that has ended is known here by the client's name for it; by then the database has it."""
_LEISURE_S = 0.5
"""How long changes gather for the database, unless somebody wants to read them."""
_MOST = 256
"""Changes of one transaction."""
_READING_S = 5.0
"""How long a reader waits for the database to have what was acknowledged."""
_BACKLOG = 64 << 20
"""Bytes that wait for the database, beyond which no run may begin."""
_WATCH_S, _SELDOM, _DATABASE_TIMEOUT_S = 0.5, 4, 5.0
"""How often settings and disks are looked at, after how many times of that the database is, and the longest that it may
take until it counts as down."""
_RESUMABLE_S = 3600.0
"""How long after its beginning an interrupted run can be gone on with."""
_RETENTION_S = 600.0


class _Running(RecordedRun):
    """A run under way."""

    def __init__(self, begun: Begun, segment: int) -> None:
        super().__init__(begun)
        self.key, self.segment = run_key(begun.start.id), segment


class LogJournal:
    """Writes what happens to a log and keeps what it comes to; a database follows."""

    def __init__(
        self, database: Database, log: RunLog, on_cancel: Callable[[str], None], on_health: Callable[[str | None], None]
    ) -> None:
        self._database, self._log, self._name = database, log, log.name if database.shared else SQLITE
        self._on_cancel, self._on_health = on_cancel, on_health
        self._news, self._hurry, self._written = asyncio.Event(), asyncio.Event(), asyncio.Condition()
        self._quotas = Quotas(shared=database.shared)
        self._members = Members(database, self._name) if database.shared else None
        """The gateways that share a PostgreSQL; None where this one is alone."""
        self._commits: GroupCommit | None = None
        if self._members:
            self._commits = GroupCommit(database, self._members, self._quotas, self._name, self._news)
        self._closed: set[str] = set()
        """Runs that are not to be acknowledged, as others had closed them."""
        self._runs: dict[str, _Running] = {}
        self._unfinished: dict[str, RecordedRun] = {}
        """Interrupted runs that can be gone on with."""
        self._lost: list[tuple[_Running, Run]] = []
        """Runs whose end could not be written; they are to end as failed as soon as that is possible."""
        self._named: dict[tuple[str, str], Named] = {}
        self._used = UsedNames()
        self._recent: deque[tuple[float, Position, tuple[str, str], str]] = deque()
        """Runs that have ended, by the time and the place in the log: their names and identifiers."""
        self._changes: deque[Change] = deque()
        self._place = Position()
        """The place up to which the database has the log."""
        self._refusal: str | None = None
        """The reason why no run may begin; None where one may."""
        self._whole = False
        """Whether the database has all that happened, at the end."""

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
        """A journal that writes until the context is left; then the database gets what it does not have yet.

        `log`: None for that in the usual folder. `on_cancel` gets the identifiers of runs that are to be cancelled,
        perhaps more than once. `on_health` hears now and then why nothing can be written; None where it can.
        `keep_days`: since a run's start; None deletes nothing. Raises `BadConfig` and `StoreFailed`.
        """
        log = log or own_log(database)
        journal = cls(database, log, on_cancel, on_health)
        try:
            async with journal._member():
                await journal._recover()
                database.caught_up = None if journal._members else journal.caught_up
                deleting = [journal._keep_deleting(keep_days)] if keep_days is not None else []
                async with background_tasks(journal._keep_projecting(), journal._keep_watching(), *deleting):
                    yield journal
                with suppress(RolegateError):
                    await journal._project_rest()
                    await database.write(partial(keep_place, log=journal._name, place=journal._place), behind=True)
                    journal._whole = not journal._changes and not journal._runs and not journal._unfinished
        finally:
            database.caught_up = None
            log.close(empty=journal._whole)

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Put a run on record and count it against its tenant's quotas. Raises `BudgetExhausted` and `StoreFailed`."""
        name = start.tenant, storable(start.request_id)
        if self._members:
            self._members.see_alive(begins=True)
        if start.request_id and (self._unfinished or not self._members):  # or else it is seen to when it is written
            stored = None
            if name not in self._named and (self._members or name in self._used):
                stored = await self._database.read(partial(_stored, name=name), behind=True)
            earlier = self._named.get(name) or stored
            if earlier and earlier.holds(start.started_at):
                return earlier.told(start)
            if earlier and earlier.fingerprint == start.fingerprint:
                start = self._resuming(start, earlier.run_id)
        before = self._unfinished.get(start.resumes)
        if start.resumes and (before is None or (why := _differs(before.start, start))):
            why = why if before else "its log is not here, or it was gone on with already"
            raise BadRequest(f"run_id {start.resumes!r}: cannot be gone on with: {why}; ask the question anew.")
        began: Admitted | EarlierRun | None = None
        self._unfinished.pop(start.resumes, None)
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
        begun = Begun(replace(start, request="") if tenant.redact else start, tenant.redact)
        run, payload = _Running(begun, (before or self._log.end).segment), encode(begun)
        try:
            if self._commits and (earlier := await self._commits.begin(run.start, run.redact)):
                self._take_back(run)
                return earlier
            self._log.append(run.key, 0, payload)
        except BaseException:
            self._take_back(run)
            if self._commits:  # it may be on record
                self._change(Change(run.start, run.redact, None, True, self._log.end, run.segment))
            raise
        self._runs[start.id] = run
        if not self._commits:
            if start.request_id:
                name = start.tenant, storable(start.request_id)
                self._named[name] = Named(start.id, start.fingerprint, "running", start.started_at)
                self._used.add(name)
            self._change(Change(run.start, run.redact, position=self._log.end, segment=run.segment))
        resumed = None
        if before:
            calls = (call for run in before.chain for call in (*run.calls, *run.cut()))
            resumed = Resumed(before.start, tuple(run.turns for run in before.chain), tuple(calls))
        return Admitted(tenant.limited, tenant.redact, tenant.training, resumed)

    def unfinished(self, run_id: str) -> RunStart | None:
        """The beginning of an interrupted run that can be gone on with; None where there is none."""
        run = self._unfinished.get(run_id)
        return run.start if run else None

    async def open(self, call: OpenedCall) -> None:
        """Put a call on record and reserve its worst case. Raises `BudgetExhausted` and `StoreFailed`."""
        run, freed = await self._allowed(call.run_id, call.role == "answer", call.started_at, call.reserved)
        self._append(run, Opened(call))
        self._quotas.reserve(call.tenant, run.start.started_at, freed, sign=-1)
        self._quotas.reserve(call.tenant, call.started_at, call.reserved)

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        """Keep `amount` for the run's answer. Raises `BudgetExhausted` and `StoreFailed`."""
        at = self._running(run_id).start.started_at
        run, before = await self._allowed(run_id, True, at, amount)
        self._append(run, Reserved(amount))
        self._quotas.reserve(run.start.tenant, at, before, sign=-1)
        self._quotas.reserve(run.start.tenant, at, amount)

    def settle(self, call: Call) -> None:
        """Replace an opened call by how it ended."""
        run = self._runs.get(call.run_id)
        if run and call.number in run.open:
            self._append(run, Settled.of(call), later=True)
            self._quotas.settle(call)

    def turn(self, run_id: str, agent: Agent, messages: tuple[Message, ...], output: Completion) -> None:
        """Keep a completed turn, unless the run's texts are not kept."""
        run = self._runs.get(run_id)
        if run and not run.redact:
            self._append(run, run.turns.turn(agent, messages, output), later=True)

    def note(self, run_id: str, record: Searched | Decided) -> None:
        """Keep a search, or what became of early work, unless the run's texts are not kept."""
        run = self._runs.get(run_id)
        if run and not run.redact:
            self._append(run, record, later=True)

    def forget(self, run_id: str) -> None:
        """Take back a run that never began."""
        if run := self._runs.pop(run_id, None):
            self._append(run, Forgotten(), later=True)
            self._take_back(run)
            self._named.pop((run.start.tenant, storable(run.start.request_id)), None)
            self._change(Change(run.start, run.redact, None, True, self._log.end, run.segment))

    async def finish(self, run: Run) -> None:
        """Write how the run ended, on disk. Raises `StoreFailed`."""
        known = self._running(run.id)
        for call in (*run.calls, *known.cut()):
            self.settle(call)
        try:
            self._end(known, run)
        except StoreFailed:
            events = tuple(event for event in run.events if not isinstance(event, AnswerWritten))
            lost = replace(run, status="failed", error="StoreFailed", result=None, events=events)
            self._lost.append((known, lost))
            raise
        if not self._commits:
            await self._log.synced()
            self._news.set()
            return
        await self.caught_up()
        if run.id in self._closed:
            self._closed.remove(run.id)
            raise StoreFailed(f"Run {run.id} was taken for dead, or cannot be written.")

    def calls(self, run_id: str) -> tuple[Call, ...]:
        """The calls of a run under way here that have ended by now."""
        run = self._runs.get(run_id)
        return tuple(run.calls) if run else ()

    def under_way(self) -> tuple[list[Call], list[OpenedCall]]:
        """The calls of all runs under way here: those that have ended, and those that have not."""
        runs = self._runs.values()
        return [call for run in runs for call in run.calls], [call for run in runs for call in run.open.values()]

    async def caught_up(self) -> None:
        """Wait until the database has all that was acknowledged by now. Raises `StoreFailed`."""
        ready = self._ready(len(self._changes))
        if not ready:
            return
        wanted = ready[-1].position
        self._hurry.set()
        try:
            async with asyncio.timeout(_READING_S), self._written:
                await self._written.wait_for(lambda: self._place >= wanted)
        except TimeoutError:
            raise StoreFailed("The database is behind the log; try again.") from None

    def _resuming(self, start: RunStart, run_id: str) -> RunStart:
        """The run as one that goes on with an interrupted one, where that is possible."""
        if (before := self._unfinished.get(run_id)) is None:
            return start
        if why := _differs(before.start, start):
            _log.warning("store.run_begun_anew", run_id=start.id, interrupted=run_id, why=why)
            return start
        return replace(start, resumes=run_id)

    def _running(self, run_id: str) -> _Running:
        if (run := self._runs.get(run_id)) is None:
            raise StoreFailed(f"Run {run_id} is not running any more.")
        return run

    async def _allowed(self, run_id: str, answers: bool, at: float, wanted: Amount) -> tuple[_Running, Amount]:
        """The run, and what it frees where it `answers`, once it may reserve `wanted`. Raises `BudgetExhausted` and
        `StoreFailed`.
        """
        if self._members:
            self._members.see_alive()
        leased = True
        while True:
            run = self._running(run_id)
            freed = run.kept if answers else NOTHING
            try:
                self._check(run, freed, at, wanted)
                return run, freed
            except QuotaExhausted as refused:
                if not leased:
                    raise
                known = freed if periods(at) == periods(run.start.started_at) else NOTHING
                lacking = (max(0, (getattr(wanted, of) or 0) - (getattr(known, of) or 0)) for of in LIMITED)
                leased = await self._lease(refused, run.start.tenant, at, Amount(*lacking))

    async def _lease(self, refused: QuotaExhausted, tenant: str, at: float, lacking: Amount) -> bool:
        """Ask for a lease of more, after which it is to be tried again; False where that is for the last time. Raises
        the refusal where others cannot have what is left, and `StoreFailed`.
        """
        if self._commits is None or not refused.contended:
            raise refused
        return await self._commits.lease(tenant, at, lacking)

    def _check(self, run: _Running, freed: Amount, at: float, wanted: Amount) -> None:
        """Raise what `Quotas.check` raises where `wanted` is too much even if what is kept, `freed`, is free again."""
        tenant = self._quotas.tenant(run.start.tenant)
        if not tenant.limited:
            return
        self._quotas.reserve(tenant.name, run.start.started_at, freed, sign=-1)
        try:
            self._quotas.check(tenant, at, wanted, NOTHING if freed == run.kept else run.kept)
        finally:
            self._quotas.reserve(tenant.name, run.start.started_at, freed)

    def _append(self, run: _Running, record: Record, *, later: bool = False) -> None:
        """Write a record of a run. `later`: as for `RunLog.append`. Raises `StoreFailed`."""
        self._log.append(run.key, run.records, encode(record), later=later)
        run.apply(record)

    def _end(self, known: _Running, run: Run) -> None:
        """Write the last record of a run, whose calls have been settled. Raises `StoreFailed`."""
        start = known.start
        told = redacted(run) if known.redact else known.turns.without(run)
        self._append(known, Ended(replace(told, calls=())))
        del self._runs[start.id]
        self._quotas.end(known)
        name = start.tenant, storable(start.request_id)
        if start.request_id and (named := self._named.get(name)) and named.run_id == start.id:
            self._named[name] = named._replace(status=run.status)
            self._recent.append((time.monotonic(), self._log.end, name, start.id))
        ended = replace(run, calls=tuple(known.calls))
        self._change(Change(start, known.redact, ended, False, self._log.end, known.segment))

    def _take_back(self, run: _Running) -> None:
        """Count a run no longer that never began."""
        self._quotas.end(run)
        for period in periods(run.start.started_at):
            self._quotas.tally(run.start.tenant, period).requests -= 1

    def _change(self, change: Change) -> None:
        self._changes.append(change)
        self._news.set()

    @asynccontextmanager
    async def _member(self) -> AsyncIterator[None]:
        """Be one of the gateways that share the database, where it is shared."""
        if self._members is None:
            yield
            return
        try:
            await self._members.join()
            async with background_tasks(self._keep_member(self._members)):
                yield
        finally:
            with suppress(RolegateError):
                await self._members.leave(whole=self._whole)

    async def _keep_member(self, members: Members) -> None:
        """Stay one, for ever; where others took this gateway for dead, its runs fail, and it begins anew."""
        while True:
            await asyncio.sleep(LOOK_S)
            with errors_logged(_log, "store.no_member"):
                if not await members.look():
                    for run in [*self._runs.values()]:
                        self._give_up(run)
                    await members.join()

    def _give_up(self, run: _Running) -> None:
        """Let a run fail that others have closed."""
        closed = run.interrupted()
        for call in [*run.cut()]:
            self.settle(call)
        try:
            self._end(run, closed)
        except StoreFailed:
            self._lost.append((run, closed))
        self._on_cancel(closed.id)

    async def _recover(self) -> None:
        """Read what the last gateway has left, and close its runs."""
        fold = await recover(self._database, self._log.folder, self._name)
        place = await self._database.read(partial(place_of, log=self._name))
        self._log.start(after=place.segment)
        left = {run.start.id: run for run in await self._database.read(partial(left_over, name=self._name))}
        left |= {run.start.id: run for run in fold.left().values()}
        for run_id in await self._database.read(partial(ended_among, run_ids=list(left))):
            del left[run_id]  # a record says so that cannot be read any more
        changes = []
        known = [*fold.interrupted.values(), *left.values()]
        soon = time.time() - _RESUMABLE_S
        self._unfinished = {run.start.id: run for run in known if run.resumable and run.start.started_at > soon}
        for run in left.values():
            closed = run.interrupted()
            self._log.append(run_key(closed.id), run.records, encode(Ended(replace(closed, calls=()))))
            changes.append(Change(run.start, run.redact, closed, position=self._log.end))
            in_flight = [call.request_id for call in run.open.values()]
            _log.warning("store.run_interrupted", run_id=closed.id, tenant=closed.tenant, calls_in_flight=in_flight)
        await self._log.synced()
        for first in range(0, len(changes), _MOST):
            await self._database.write(partial(project, log=self._name, changes=changes[first : first + _MOST]))
        self._place = self._log.end
        await self._read_settings()
        if self._members:
            await self._members.book_leases(whole=fold.whole)
        else:
            self._quotas.tallies = await self._database.read(_spent)
            await self._database.read(self._read_names)
        await self._delete_segments()

    def _read_names(self, connection: Connection) -> None:
        """Note the names of the last day's requests."""
        newest = connection.execute(select(func.max(RUNS.c.started_at))).scalar() or 0.0
        named = RUNS.c.request_id.is_not(None), RUNS.c.started_at > newest - REQUEST_ID_S
        wanted = select(RUNS.c.tenant, RUNS.c.request_id).where(*named)
        for row in connection.execution_options(yield_per=1000).execute(wanted):
            self._used.add((row.tenant, row.request_id))

    async def _read_settings(self) -> None:
        self._quotas.tenants = await self._database.read(_tenants, behind=True)

    async def _keep_projecting(self) -> None:
        """Let the database follow the log, for ever."""
        while True:
            await self._news.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if self._commits else _LEISURE_S):
                    await self._hurry.wait()
            with errors_logged(_log, "store.behind"):
                await self._project_rest()
                continue
            await asyncio.sleep(_LEISURE_S)

    async def _project_rest(self) -> None:
        """Write all changes that wait. Raises `StoreFailed`."""
        self._hurry.clear()
        while (batch := self._ready(_MOST)) or (self._commits and self._commits.waiting):
            await self._project(batch)
            for _ in batch:
                self._changes.popleft()
            self._place = max([self._place, *(change.position for change in batch[-1:])])
            async with self._written:
                self._written.notify_all()
        self._news.clear()
        await self._delete_segments()

    def _ready(self, most: int) -> list[Change]:
        """The first changes that wait for the database, at most so many: ends only once they are on disk, so that
        nobody reads what may be lost.
        """

        def ready(one: Change) -> bool:
            return one.run is None or self._commits is not None or one.position <= self._log.durable

        return list(takewhile(ready, islice(self._changes, most)))

    async def _project(self, batch: list[Change]) -> None:
        """Write changes in one transaction; one of them that cannot be written at all keeps no others from it."""
        try:
            if self._commits:
                self._closed |= await self._commits.commit(batch)
            else:
                work = partial(project, log=self._name, changes=batch)
                await self._database.write(work, on_disk=False, behind=True)
        except StoreFailed as error:
            if not unwritable(error):
                raise
            if len(batch) == 1:
                change, why = batch[0], type(error.__cause__).__name__
                _log.error("store.refused", run_id=change.start.id, error=why)
                self._closed.add(change.start.id)
                if change.run and (change.run.calls or change.run.events):
                    bare = replace(change.run, status="failed", error=why, result=None, calls=(), events=())
                    await self._project([change._replace(run=bare)])
                return
            for change in batch:
                await self._project([change])

    async def _delete_segments(self) -> None:
        """Delete the segments that nobody needs, once the database has them on disk."""
        if self._commits and not self._changes:  # it has all that is behind this place
            self._place = self._log.end
        begun = [run.segment for run in (*self._runs.values(), *self._unfinished.values())]
        begun += [change.segment for change in self._changes]
        needed = min([self._place.segment, *begun])
        oldest = next(iter(segments(self._log.folder)), None)
        if oldest is not None and number_of(oldest) < needed:
            await self._database.write(partial(keep_place, log=self._name, place=self._place), behind=True)
            self._log.delete(needed)

    async def _keep_watching(self) -> None:
        """See to settings, disks and, less often, to the database, for ever."""
        wrong: str | None = None
        for turn in count(1):
            await asyncio.sleep(_WATCH_S)
            for known, run in self._lost:
                with suppress(StoreFailed):
                    self._end(known, run)
                    await self._log.synced()
            self._lost = [(known, run) for known, run in self._lost if run.id in self._runs]
            self._forget_old()
            self._log.rotate()
            if self._commits:
                self._commits.give_back()
            try:
                async with asyncio.timeout(_DATABASE_TIMEOUT_S):
                    await self._read_settings()
                    if wrong or not turn % _SELDOM:
                        await self._look_at_database()
                wrong = None
            except TimeoutError:
                wrong = f"nothing was written within {_DATABASE_TIMEOUT_S:g} s"
            except Exception as error:  # whatever it is: nobody else looks
                wrong = str(error) or type(error).__name__
            why, self._refusal = self._log.watch() or wrong, self._log.failed or self._log.full
            backlog = self._log.end.offset - self._place.offset
            if self._log.end.segment > self._place.segment + 1 or backlog > _BACKLOG:
                self._refusal = why = why or "the database is too far behind the log"
            self._on_health(why)

    async def _look_at_database(self) -> None:
        """See that it can be written, and what others have asked for by it. Raises `StoreFailed`."""
        await self._delete_segments()
        kept = partial(keep_place, log=self._name, place=self._place)
        await self._database.write(kept, on_disk=False, behind=True)
        for run_id in await self._database.read(partial(_to_cancel, name=self._name), behind=True):
            self._on_cancel(run_id)

    def _forget_old(self) -> None:
        """Forget names that the database has known for a while."""
        soon = time.time() - _RESUMABLE_S
        self._unfinished = {name: run for name, run in self._unfinished.items() if run.start.started_at > soon}
        while self._recent and time.monotonic() - self._recent[0][0] > _RECENT_S and self._recent[0][1] <= self._place:
            _, _, name, run_id = self._recent.popleft()
            if (named := self._named.get(name)) and named.run_id == run_id:
                del self._named[name]

    async def _keep_deleting(self, keep_days: float) -> None:
        while True:
            with errors_logged(_log, "store.nothing_deleted"):
                await delete_old(self._database, keep_days)
            await asyncio.sleep(_RETENTION_S)


def _differs(before: RunStart, now: RunStart) -> str:
    """The reason why a run cannot go on with another; empty where it can."""
    names = [name for name, value in before.conditions.items() if now.conditions.get(name) != value]
    if before.tenant != now.tenant:
        return "it is another tenant's"
    return f"since it began, there is another {' and '.join(names)}" if names else ""


def _stored(connection: Connection, name: tuple[str, str]) -> Named | None:
    """The run that has a client's name for a request."""
    columns = RUNS.c.run_id, RUNS.c.fingerprint, RUNS.c.status, RUNS.c.started_at
    wanted = select(*columns).where(RUNS.c.tenant == name[0], RUNS.c.request_id == name[1])
    row = connection.execute(wanted).one_or_none()
    return Named(*row) if row else None


def _tenants(connection: Connection) -> dict[str, Tenant]:
    return {row["name"]: struct_of(Tenant, row) for row in connection.execute(select(TENANTS)).mappings()}


def _spent(connection: Connection) -> dict[tuple[str, str], Tally]:
    rows = connection.execute(select(SPENDING).where(SPENDING.c.period.in_(periods(time.time())))).mappings()
    return {(row["tenant"], row["period"]): struct_of(Tally, row) for row in rows}


def _to_cancel(connection: Connection, name: str) -> list[str]:
    running = RUNS.c.status == "running", RUNS.c.log == name, RUNS.c.cancel_requested
    return list(connection.scalars(select(RUNS.c.run_id).where(*running)))
