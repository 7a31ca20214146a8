"""Members: the gateways that share a PostgreSQL, each under a number of its own, its epoch.

A gateway holds a lock on its epoch with a session that it uses every second; PostgreSQL ends
sessions that are not used. Where another one's lock is free, a gateway waits for a grace time, then
deletes that one's row and closes its runs: it is fenced, and no transaction of its epoch is
committed any more. A gateway that has had no session for almost as long begins nothing by itself.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, func, select

from router.background import background_tasks, errors_logged
from router.errors import StoreFailed
from router.store.database import Database
from router.store.projection import left_over
from router.store.quotas import periods
from router.store.schema import GATEWAYS, LEASES, RUNS, trace_of

_log = structlog.get_logger("store")
_LOOK_S = 1.0
"""How often a gateway uses its session."""
_SESSION_S = 3.0
"""The time after which PostgreSQL ends a session that is not used: its gateway is stopped, or
cannot be reached.
"""
_GRACE_S = 5.0
"""The time between a lock that is seen to be free and the fence."""
_BEGINS_S = _GRACE_S - 2.0
_OPENS_S = _GRACE_S - 1.0
"""The time since the session was last known to be good, in which runs may begin and calls may
be made.
"""
_PAST_S = 86400.0
"""How long after its end a day or a month is past for all gateways, whatever their clocks say."""
_LOCKS = 1919118445
"""The class of the locks on epochs."""
_LOOK = """
SELECT epoch, session, EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND classid::bigint = %(locks)s AND objid::bigint = epoch
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) FROM gateways
"""
_MEMBER = "SELECT FROM gateways WHERE epoch = %(epoch)s FOR SHARE"


class Members:
    """The membership of this gateway, and its look at the others."""

    def __init__(self, database: Database, log: str) -> None:
        """`log`: the name of its log, which nobody else writes."""
        self.epoch = 0
        self.done = False
        """Whether nothing is under way any more, so that it may go, with its leases."""
        self._database = database
        self._log = log
        self._thread = ThreadPoolExecutor(1, "session")
        self._session: Any = None
        self._locked = False
        self._good = -math.inf
        """When the lock was known to be held, and the epoch not fenced, in monotonic time."""
        self._gone: dict[tuple[int, int], float] = {}
        """Epochs and sessions whose locks were seen to be free, and since when."""

    @asynccontextmanager
    async def joined(self, on_fenced: Callable[[], None]) -> AsyncIterator[None]:
        """Be a member while the context is open. `on_fenced`: called where others took this gateway
        for dead and closed its runs; then it begins anew. Raises `StoreFailed`.
        """
        try:
            await self._join()
            async with background_tasks(self._keep_looking(on_fenced)):
                yield
            if self.done:
                with suppress(StoreFailed):
                    await self.book_leases(whole=True)
                    await self._database.write(partial(_leave, epoch=self.epoch))
        finally:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._end_session)
            self._thread.shutdown()

    async def book_leases(self, *, whole: bool) -> None:
        """Give back the leases of this log, once all that it has is in the database; where it is
        not `whole`, they count as spent. Raises `StoreFailed`.
        """
        own = LEASES.c.log == self._log
        lost = LEASES.update().where(own).values(log=f"{self._log} before {self.epoch}")
        await self._database.write(
            lambda connection: connection.execute(LEASES.delete().where(own) if whole else lost)
        )

    def see_alive(self, *, begins: bool = False) -> None:
        """Raise `StoreFailed` where others may soon take this gateway for dead."""
        if time.monotonic() - self._good > (_BEGINS_S if begins else _OPENS_S):
            raise StoreFailed(
                "This gateway has lost its session with the database; try again, or ask "
                "another one."
            )

    async def _join(self) -> None:
        """Become a member with a new epoch, in place of whoever wrote this log before. Raises
        `StoreFailed`.
        """
        self._locked = False
        self._good = -math.inf
        self.epoch = await self._database.write(partial(_join, log=self._log))
        if not await self._look() or self._good == -math.inf:
            raise StoreFailed("PostgreSQL gives this gateway no session of its own; try again.")

    async def _keep_looking(self, on_fenced: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            with errors_logged(_log, "store.no_member"):
                if not await self._look():
                    on_fenced()
                    await self._join()

    async def _look(self) -> bool:
        """Use the session, and fence those that have lost theirs; False where this one was
        fenced itself.
        """
        asked = time.monotonic()
        try:
            async with asyncio.timeout(_SESSION_S):
                seen = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask)
        except Exception as error:
            # The driver's error, SQLAlchemy's while it connects, or a timeout.
            _log.warning(
                "store.session_lost",
                error=str(getattr(error, "orig", error)) or type(error).__name__,
            )
            return True
        now = time.monotonic()
        own = [held for (epoch, _), held in seen.items() if epoch == self.epoch]
        if any(own):
            self._good = asked
        free = [key for key, held in seen.items() if not held and key[0] != self.epoch]
        self._gone = {key: self._gone.get(key, now) for key in free}
        for (epoch, session), since in self._gone.items():
            if asked - since >= _GRACE_S:
                with errors_logged(_log, "store.not_fenced"), suppress(TimeoutError):
                    # To be asked for again, rather than lose the own session
                    async with asyncio.timeout(_LOOK_S):
                        await self._database.write(partial(_fence, epoch=epoch, session=session))
        return bool(own)

    def _ask(self) -> dict[tuple[int, int], bool]:
        """All epochs with the numbers of their sessions, and whether their locks are held."""
        try:
            if self._session is None:
                self._locked, self._session = False, self._database.session()
                self._session.execute(f"SET idle_session_timeout = {_SESSION_S * 1000:.0f}")
            own = {"locks": _LOCKS, "epoch": self.epoch}
            if not self._locked:
                locking = "SELECT pg_try_advisory_lock(%(locks)s, %(epoch)s::int)"
                self._locked = self._session.execute(locking, own).fetchone()[0]
                if self._locked:  # so that nobody takes it for the one before
                    counting = "UPDATE gateways SET session = session + 1 WHERE epoch = %(epoch)s"
                    self._session.execute(counting, own)
            rows = self._session.execute(_LOOK, own).fetchall()
        except Exception:
            self._end_session()
            raise
        return {(epoch, session): held for epoch, session, held in rows}

    def _end_session(self) -> None:
        session = self._session
        self._session = None
        if session is not None:
            session.close()


def see_member(connection: Connection, epoch: int) -> None:
    """Keep a gateway from being fenced until the transaction ends; what begins one that writes
    runs. Raises `StoreFailed` where it has been fenced.
    """
    if not connection.exec_driver_sql(_MEMBER, {"epoch": epoch}).rowcount:
        raise StoreFailed("Other gateways took this one for dead; try again.")


def _join(connection: Connection, log: str) -> int:
    connection.execute(GATEWAYS.delete().where(GATEWAYS.c.log == log))
    lost = LEASES.c.log.not_in(select(GATEWAYS.c.log))  # which perhaps nobody will ever read
    for period in periods(time.time() - _PAST_S):
        past = LEASES.c.period < period, func.length(LEASES.c.period) == len(period)
        connection.execute(LEASES.delete().where(lost, *past))
    joined = GATEWAYS.insert().values(log=log, session=0).returning(GATEWAYS.c.epoch)
    return int(connection.execute(joined).scalar_one())


def _leave(connection: Connection, epoch: int) -> None:
    connection.execute(GATEWAYS.delete().where(GATEWAYS.c.epoch == epoch))


def _fence(connection: Connection, epoch: int, session: int) -> None:
    """Delete a gateway that has had no session since, once its transactions have ended, and close
    its runs; its log has what they have spent.
    """
    fenced = GATEWAYS.delete().where(GATEWAYS.c.epoch == epoch, GATEWAYS.c.session == session)
    log = connection.scalar(fenced.returning(GATEWAYS.c.log))
    if log is None:
        return
    _log.warning("store.gateway_fenced", epoch=epoch)
    for left in left_over(connection, log):
        run = left.interrupted()
        closed = RUNS.update().where(RUNS.c.run_id == run.id)
        connection.execute(
            closed.values(status=run.status, duration_s=run.duration_s, trace=trace_of(run))
        )
        _log.warning("store.run_interrupted", run_id=run.id, tenant=run.tenant)
