"""The journal, in a database."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import structlog
from sqlalchemy import Connection, select

from router.amount import Amount
from router.background import background_tasks, errors_logged
from router.errors import RolegateError
from router.ledger import RunStart
from router.ledger.journal import Admitted, EarlierRun
from router.store import operations
from router.store.database import Database
from router.store.gateways import ThisGateway, heartbeat, leave
from router.store.group_commit import GroupCommit
from router.store.schema import CALLS, FEEDBACK, RUNS, VERSION_TRIALS
from router.trace import Call, Run
from router.trace.call import OpenedCall

_log = structlog.get_logger("store")
_PIECE = 100
"""Runs deleted at once, so that nobody who writes waits for long."""


async def delete_old(database: Database, keep_days: float) -> None:
    """Delete the runs that started longer ago, with all that belongs to them; those under way stay.

    Raises `StoreFailed`.
    """
    ended = RUNS.c.status != "running", RUNS.c.started_at < time.time() - keep_days * 86400
    oldest = select(RUNS.c.run_id).where(*ended).order_by(RUNS.c.started_at, RUNS.c.run_id).limit(_PIECE)

    def delete(connection: Connection) -> int:
        run_ids = connection.scalars(oldest).all()
        for table in (VERSION_TRIALS, FEEDBACK, CALLS, RUNS):
            connection.execute(table.delete().where(table.c.run_id.in_(run_ids)))
        return len(run_ids)

    deleted = 0
    while count := await database.write(delete):
        deleted += count
    if deleted:
        _log.info("store.runs_deleted", runs=deleted)


_HEARTBEAT_S = 2.0
_HEARTBEAT_TIMEOUT_S = 5.0
"""The longest that one may take until the store counts as down."""
_RETENTION_S = 600.0


class SQLJournal:
    """Writes what happens in groups, one transaction each; closes what dead gateways left, and deletes what is old."""

    def __init__(
        self, database: Database, on_cancel: Callable[[str], None], on_health: Callable[[str | None], None]
    ) -> None:
        self._database, self._on_cancel, self._on_health = database, on_cancel, on_health
        self._gateway = ThisGateway.new()
        self._commits = GroupCommit(database, self._gateway.gateway_id, self._late_heartbeat)
        self._begun: dict[str, RunStart] = {}
        self._last_heartbeat = 0.0

    @classmethod
    @asynccontextmanager
    async def writing(
        cls,
        database: Database,
        *,
        on_cancel: Callable[[str], None] = lambda _run_id: None,
        on_health: Callable[[str | None], None] = lambda _why: None,
        keep_days: float | None = None,
    ) -> AsyncIterator["SQLJournal"]:
        """A journal that writes until the context is left, and then what is still to be written.

        `on_cancel` gets the identifiers of runs that are to be cancelled, perhaps more than once. `on_health` hears now
        and then why nothing can be written; None where it can. `keep_days`: since a run's start; None deletes nothing.
        Raises `StoreFailed`.
        """
        journal = cls(database, on_cancel, on_health)
        writing = asyncio.create_task(journal._commits.run())
        try:
            await journal._heartbeat()
            deleting = [journal._keep_deleting(keep_days)] if keep_days is not None else []
            async with background_tasks(journal._keep_beating(), *deleting):
                yield journal
        finally:
            journal._commits.enqueue(leave(journal._gateway))
            journal._commits.close()
            await writing

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Put a run on record and count it against its tenant's quotas. Raises `BudgetExhausted` and `StoreFailed`."""
        self._begun[start.id] = start
        try:
            began = await self._commits.submit(operations.begin(start), operations.forget(start.tenant, start.id))
        except RolegateError:
            del self._begun[start.id]
            raise
        if isinstance(began, EarlierRun):
            del self._begun[start.id]
        return began

    async def open(self, call: OpenedCall) -> None:
        """Put a call on record and reserve its worst case. Raises `BudgetExhausted` and `StoreFailed`."""
        await self._commits.submit(operations.open_call(call), operations.discard(call))

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        """Keep `amount` for the run's answer. Raises `BudgetExhausted` and `StoreFailed`."""
        await self._commits.submit(operations.reserve_for_answer(self._begun[run_id], amount))

    def settle(self, call: Call) -> None:
        """Replace an opened call by how it ended."""
        self._commits.enqueue(operations.settle(call))

    def discard(self, call: OpenedCall) -> None:
        """Take back a call that was never made."""
        self._commits.enqueue(operations.discard(call))

    def forget(self, run_id: str) -> None:
        """Take back a run that never began."""
        if start := self._begun.pop(run_id, None):
            self._commits.enqueue(operations.forget(start.tenant, run_id))

    async def finish(self, run: Run) -> None:
        """Write how the run ended, its trace and all its calls, on disk. Raises `StoreFailed`."""
        start = self._begun.pop(run.id, None)
        await self._commits.submit(operations.finish(run, start), operations.withhold(run, start), durable=True)

    async def _heartbeat(self) -> None:
        """Note that this gateway lives, and do what is to be done."""
        noticed = await self._commits.submit(heartbeat(self._gateway))
        self._last_heartbeat = time.monotonic()
        for run_id in noticed.to_cancel:
            self._on_cancel(run_id)
        for tenant, run_id in noticed.orphans:
            self._commits.enqueue(operations.interrupt(tenant, run_id))
        if noticed.orphans:
            await self._commits.submit(heartbeat(self._gateway))  # they are closed by then

    def _late_heartbeat(self) -> operations.Operation[Any] | None:
        """Put a heartbeat in front of what a gateway that stood still writes, so that its runs are no orphans."""
        if time.monotonic() - self._last_heartbeat < 2 * _HEARTBEAT_S:
            return None
        self._last_heartbeat = time.monotonic()
        return heartbeat(self._gateway)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            why: str | None = None
            try:
                async with asyncio.timeout(_HEARTBEAT_TIMEOUT_S):
                    await self._heartbeat()
            except TimeoutError:
                why = f"nothing was written within {_HEARTBEAT_TIMEOUT_S:g} s"
            except Exception as error:  # whatever it is: without the next one, others would close this gateway's runs
                why = str(error) or type(error).__name__
            self._on_health(why)

    async def _keep_deleting(self, keep_days: float) -> None:
        while True:
            with errors_logged(_log, "store.nothing_deleted"):
                await delete_old(self._database, keep_days)
            await asyncio.sleep(_RETENTION_S)
