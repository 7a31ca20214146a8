"""The journal, in a database."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec
import structlog
from sqlalchemy import ColumnElement, Connection, func, select

from router.amount import Amount
from router.errors import RolegateError, StoreFailed
from router.ledger.journal import Began, Earlier, RunStart
from router.store.database import Database
from router.store.gateways import Beat, Leave, Seen, ThisGateway
from router.store.group_commit import GroupCommit
from router.store.operations import Begin, Discard, Finish, Forget, Hold, Open, Operation, Settle
from router.store.rows import call_of, run_of, trace_of
from router.store.schema import CALLS, FEEDBACK, RUNS, VERSION_TRIALS
from router.store.unit_of_work import Books, Scope
from router.trace.call import Call, OpenedCall
from router.trace.redaction import redacted
from router.trace.run import Run

_log = structlog.get_logger("store")


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A run has lost its process."""

    tenant: str
    run_id: str
    otherwise = None

    @property
    def scope(self) -> Scope:
        """The run with its open calls."""
        return Scope(self.tenant, self.run_id, open_calls=True)

    def apply(self, books: Books) -> None:
        """End its open calls, charged with what they may have cost, and then the run."""
        known = books.run(self.run_id)
        if known is None or known.status != "running":
            return
        row = books.connection.execute(select(RUNS).where(RUNS.c.run_id == self.run_id)).one()
        wanted = select(CALLS).where(CALLS.c.run_id == self.run_id).order_by(CALLS.c.number)
        cut = set(books.open_calls(self.run_id))
        calls = tuple(_ended(call_of(call)) for call in books.connection.execute(wanted).mappings())
        for call in calls:
            books.settle(call)
        ended_at = max((call.started_at + call.duration_s for call in calls), default=known.started_at)
        run = msgspec.structs.replace(
            run_of(row, calls), status="interrupted", duration_s=max(0.0, ended_at - known.started_at)
        )
        if books.tenant(self.tenant).redact:
            run = redacted(run)
        books.end(known, "interrupted", "", run.duration_s, trace_of(run))
        in_flight = [call.request_id for call in calls if call.number in cut]
        _log.warning("store.run_interrupted", run_id=self.run_id, tenant=self.tenant, calls_in_flight=in_flight)


def _ended(call: Call) -> Call:
    return msgspec.structs.replace(call, outcome="interrupted") if call.outcome == "open" else call  # type: ignore[comparison-overlap]


_PIECE = 100
"""Runs deleted at once, so that nobody who writes waits for long."""
_GB = 1e9


class Retention:
    """Keeps runs for some time, and as many as fit; the oldest go first. Runs under way stay."""

    def __init__(self, database: Database, keep_days: float | None = None, keep_gb: float | None = None) -> None:
        """`keep_days`: since a run's start. `keep_gb`: of traces, in billions of bytes. None is no limit."""
        self._database, self._keep_days, self._keep_gb = database, keep_days, keep_gb

    async def run(self) -> None:
        """Delete what is not to be kept. Raises `StoreFailed`."""
        deleted = 0
        if self._keep_days is not None:
            deleted += await self._delete_until(RUNS.c.started_at < time.time() - self._keep_days * 86400)
        if self._keep_gb is not None:
            stored = await self._database.read(_stored_bytes)
            deleted += await self._delete_bytes(stored - round(self._keep_gb * _GB))
        if deleted:
            _log.info("store.runs_deleted", runs=deleted)

    async def _delete_until(self, old: ColumnElement[bool]) -> int:
        deleted = 0
        while sizes := await self._database.write(partial(_delete, old=old)):
            deleted += len(sizes)
        return deleted

    async def _delete_bytes(self, excess: int) -> int:
        deleted = 0
        while excess > 0 and (sizes := await self._database.write(partial(_delete, at_least=excess))):
            deleted += len(sizes)
            excess -= sum(sizes)
        return deleted


def _stored_bytes(connection: Connection) -> int:
    return int(connection.execute(select(func.coalesce(func.sum(RUNS.c.trace_bytes), 0))).scalar_one())


def _delete(connection: Connection, old: ColumnElement[bool] | None = None, at_least: int | None = None) -> list[int]:
    """Delete the oldest runs that have ended, only so many that their traces take `at_least` bytes; their sizes."""
    wanted = select(RUNS.c.run_id, RUNS.c.trace_bytes).where(RUNS.c.status != "running")
    if old is not None:
        wanted = wanted.where(old)
    run_ids: list[str] = []
    sizes: list[int] = []
    for run_id, size in connection.execute(wanted.order_by(RUNS.c.started_at, RUNS.c.run_id).limit(_PIECE)):
        if at_least is not None and sum(sizes) >= at_least:
            break
        run_ids.append(run_id)
        sizes.append(size)
    for table in (VERSION_TRIALS, FEEDBACK, CALLS, RUNS):
        connection.execute(table.delete().where(table.c.run_id.in_(run_ids)))
    return sizes


_BEAT_S = 2.0
_BEATING_S = 5.0
"""How long one may take until the store counts as down."""
_RETENTION_S = 600.0


class SQLJournal:
    """Writes what happens in groups, one transaction each; closes what dead gateways left, and deletes what is old."""

    def __init__(
        self,
        database: Database,
        on_cancel: Callable[[str], None],
        retention: Retention,
        say: Callable[[str | None], None],
    ) -> None:
        self._gateway = ThisGateway.new()
        self._commits = GroupCommit(database, self._gateway.gateway_id, self._late_beat)
        self._on_cancel, self._retention, self._say = on_cancel, retention, say
        self._begun: dict[str, RunStart] = {}
        self._seen = 0.0

    @classmethod
    @asynccontextmanager
    async def writing(
        cls,
        database: Database,
        *,
        on_cancel: Callable[[str], None] = lambda _run_id: None,
        keep_days: float | None = None,
        keep_gb: float | None = None,
        say: Callable[[str | None], None] = lambda _why: None,
    ) -> AsyncIterator["SQLJournal"]:
        """A journal that writes until the context is left, and then what is still to be written.

        `on_cancel` gets the identifiers of runs that are to be cancelled, perhaps more than once. `keep_days` and
        `keep_gb` are those of `Retention`. `say` hears now and then why nothing can be written; None where it can.
        Raises `StoreFailed`.
        """
        journal = cls(database, on_cancel, Retention(database, keep_days, keep_gb), say)
        writing = asyncio.create_task(journal._commits.run())
        others: list[asyncio.Task[None]] = []
        try:
            await journal._beat()
            others += asyncio.create_task(journal._keep_beating()), asyncio.create_task(journal._keep_deleting())
            yield journal
        finally:
            for task in others:
                task.cancel()
            journal._commits.tell(Leave(journal._gateway))
            journal._commits.close()
            await asyncio.gather(*others, return_exceptions=True)
            await writing

    async def begin(self, start: RunStart) -> Began | Earlier:
        """Put a run on record and count it against its tenant's quotas. Raises `BudgetExhausted` and `StoreFailed`."""
        self._begun[start.id] = start
        try:
            began = cast(Began | Earlier, await self._commits.ask(Begin(start)))
        except RolegateError:
            del self._begun[start.id]
            raise
        if isinstance(began, Earlier):
            del self._begun[start.id]
        return began

    async def open(self, call: OpenedCall) -> None:
        """Put a call on record and reserve its worst case. Raises `BudgetExhausted` and `StoreFailed`."""
        await self._commits.ask(Open(call))

    async def hold(self, run_id: str, amount: Amount) -> None:
        """Keep `amount` for the run's answer. Raises `BudgetExhausted` and `StoreFailed`."""
        start = self._begun[run_id]
        await self._commits.ask(Hold(start.tenant, run_id, amount, start.started_at))

    def settle(self, call: Call) -> None:
        """Replace an opened call by how it ended."""
        self._commits.tell(Settle(call))

    def discard(self, call: OpenedCall) -> None:
        """Take back a call that was never made."""
        self._commits.tell(Discard(call))

    def forget(self, run_id: str) -> None:
        """Take back a run that never began."""
        if start := self._begun.pop(run_id, None):
            self._commits.tell(Forget(start.tenant, run_id))

    async def finish(self, run: Run) -> None:
        """Write how the run ended, its trace and all its calls. Raises `StoreFailed`."""
        await self._commits.ask(Finish(run, self._begun.pop(run.id, None)))

    async def _beat(self) -> None:
        """Say that this gateway lives, and do what is to be done."""
        seen = cast(Seen, await self._commits.ask(Beat(self._gateway)))
        self._seen = time.monotonic()
        for run_id in seen.to_cancel:
            self._on_cancel(run_id)
        for tenant, run_id in seen.orphans:
            self._commits.tell(Interrupt(tenant, run_id))
        if seen.orphans:
            await self._commits.ask(Beat(self._gateway))  # they are closed by then

    def _late_beat(self) -> Operation | None:
        """What a gateway that stood still says before anything else, so that its new runs are not taken for orphans."""
        if time.monotonic() - self._seen < 2 * _BEAT_S:
            return None
        self._seen = time.monotonic()
        return Beat(self._gateway)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            why: str | None = None
            try:
                async with asyncio.timeout(_BEATING_S):
                    await self._beat()
            except (StoreFailed, TimeoutError) as error:
                why = str(error) or f"nothing was written within {_BEATING_S:g} s"
            self._say(why)

    async def _keep_deleting(self) -> None:
        while True:
            with suppress(StoreFailed):
                await self._retention.run()
            await asyncio.sleep(_RETENTION_S)
