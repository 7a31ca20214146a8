"""Deleting old runs. Sums of what was spent stay."""

import time
from functools import partial

import structlog
from sqlalchemy import ColumnElement, Connection, func, select

from router.store.database import Database
from router.store.schema import CALLS, FEEDBACK, RUNS, VERSION_TRIALS

_log = structlog.get_logger("store")
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
