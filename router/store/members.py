"""Members: the gateways that share a PostgreSQL. Each has a number, its epoch.

A gateway locks its epoch in a session that it uses every second; PostgreSQL ends idle sessions. If
the lock of another gateway is free for a grace period, that gateway is fenced: its row is deleted,
its runs are closed, and none of its transactions can be committed any more. A gateway that has had
no session for almost that long stops beginning runs and calls on its own.
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
"""Interval at which a gateway uses its session."""
_SESSION_S = 3.0
"""Time after which PostgreSQL ends an idle session, whose gateway is stopped or unreachable."""
_GRACE_S = 5.0
"""Time from the first look at a free lock to the fence."""
_BEGINS_S = _GRACE_S - 2.0
"""Time since the last proof of membership in which runs may begin."""
_OPENS_S = _GRACE_S - 1.0
"""Time since the last proof of membership in which calls may be made."""
_PAST_S = 86400.0
"""Time after its end when a day or month is over for all gateways, despite clock differences."""
_LOCKS = 1919118445
"""Class of the advisory locks on epochs."""
_LOOK = """
SELECT epoch, session, EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND classid::bigint = %(locks)s AND objid::bigint = epoch
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) FROM gateways
"""
_MEMBER = "SELECT FROM gateways WHERE epoch = %(epoch)s FOR SHARE"


class Members:
    """Membership of this gateway, and its watch over the others."""

    def __init__(self, database: Database, log: str) -> None:
        """`log`: name of the gateway's log."""
        self.epoch = 0
        self.done = False
        """True if no run is left, so that the gateway may leave and give its leases back."""
        self._database = database
        self._log = log
        self._thread = ThreadPoolExecutor(1, "session")
        self._session: Any = None
        self._locked = False
        self._good = -math.inf
        """Monotonic time of the last proof of membership: lock held, not fenced."""
        self._gone: dict[tuple[int, int], float] = {}
        """Epochs and sessions with free locks, and since when they are free."""

    @asynccontextmanager
    async def joined(self, on_fenced: Callable[[], None]) -> AsyncIterator[None]:
        """Be a member while the context is open. `on_fenced`: called when others have fenced this
        gateway and closed its runs; then it joins again. Raises `StoreFailed`.
        """
        try:
            await self._join()
            async with background_tasks(self._keep_looking(on_fenced)):
                yield
            if self.done:
                with suppress(StoreFailed):
                    await self.book_leases(complete=True)
                    await self._database.write(partial(_leave, epoch=self.epoch))
        finally:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._end_session)
            self._thread.shutdown()

    async def book_leases(self, *, complete: bool) -> None:
        """Give back the leases of this log, once the database has all of it. If the log is not
        `complete`, they count as spent. Raises `StoreFailed`.
        """
        own = LEASES.c.log == self._log
        lost = LEASES.update().where(own).values(log=f"{self._log} before {self.epoch}")
        await self._database.write(
            lambda connection: connection.execute(LEASES.delete().where(own) if complete else lost)
        )

    def see_alive(self, *, begins: bool = False) -> None:
        """Raise `StoreFailed` if others may soon fence this gateway."""
        if time.monotonic() - self._good > (_BEGINS_S if begins else _OPENS_S):
            raise StoreFailed("Lost the database session; try again, or ask another gateway.")

    async def _join(self) -> None:
        """Join with a new epoch, in place of the log's last owner. Raises `StoreFailed`."""
        self._locked = False
        self._good = -math.inf
        self.epoch = await self._database.write(partial(_join, log=self._log))
        if not await self._look() or self._good == -math.inf:
            raise StoreFailed("PostgreSQL gives this gateway no session; try again.")

    async def _keep_looking(self, on_fenced: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            with errors_logged(_log, "store.no_member"):
                if not await self._look():
                    on_fenced()
                    await self._join()

    async def _look(self) -> bool:
        """Use the session, and fence gateways that have lost theirs. Return False if this gateway
        was fenced itself.
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
                    # A fence that takes longer is tried again, so that this session stays in use.
                    async with asyncio.timeout(_LOOK_S):
                        await self._database.write(partial(_fence, epoch=epoch, session=session))
        return bool(own)

    def _ask(self) -> dict[tuple[int, int], bool]:
        """Return epochs and session numbers, and whether their locks are held."""
        try:
            if self._session is None:
                self._locked = False
                self._session = self._database.session()
                self._session.execute(f"SET idle_session_timeout = {_SESSION_S * 1000:.0f}")
            own = {"locks": _LOCKS, "epoch": self.epoch}
            if not self._locked:
                locking = "SELECT pg_try_advisory_lock(%(locks)s, %(epoch)s::int)"
                self._locked = self._session.execute(locking, own).fetchone()[0]
                if self._locked:  # a new number, so that a fence of the last session misses
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
    """Prevent the fence of a gateway until the transaction ends; the first step of a transaction
    that writes runs. Raises `StoreFailed` if the gateway is fenced already.
    """
    if not connection.exec_driver_sql(_MEMBER, {"epoch": epoch}).rowcount:
        raise StoreFailed(
            "Lost the database session, and other gateways closed its runs; try again."
        )


def _join(connection: Connection, log: str) -> int:
    connection.execute(GATEWAYS.delete().where(GATEWAYS.c.log == log))
    lost = LEASES.c.log.not_in(select(GATEWAYS.c.log))  # logs that may never be read
    for period in periods(time.time() - _PAST_S):
        past = LEASES.c.period < period, func.length(LEASES.c.period) == len(period)
        connection.execute(LEASES.delete().where(lost, *past))
    joined = GATEWAYS.insert().values(log=log, session=0).returning(GATEWAYS.c.epoch)
    return int(connection.execute(joined).scalar_one())


def _leave(connection: Connection, epoch: int) -> None:
    connection.execute(GATEWAYS.delete().where(GATEWAYS.c.epoch == epoch))


def _fence(connection: Connection, epoch: int, session: int) -> None:
    """Delete a gateway with this session number, once its transactions have ended, and close its
    runs. What they have spent is in its log.
    """
    fenced = GATEWAYS.delete().where(GATEWAYS.c.epoch == epoch, GATEWAYS.c.session == session)
    log = connection.scalar(fenced.returning(GATEWAYS.c.log))
    if log is None:
        return
    _log.warning("store.gateway_fenced", epoch=epoch)
    for recorded in left_over(connection, log):
        run = recorded.interrupted()
        closed = RUNS.update().where(RUNS.c.run_id == run.id)
        connection.execute(
            closed.values(status=run.status, duration_s=run.duration_s, trace=trace_of(run))
        )
        _log.warning("store.run_interrupted", run_id=run.id, tenant=run.tenant)
