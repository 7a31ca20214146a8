"""Membership of the gateways that share a PostgreSQL database. Each member has a row in the table
`gateways`, with a unique number that is called its epoch.

A gateway holds an advisory lock on its epoch, in a database session that it uses every second.
PostgreSQL ends idle sessions, and so releases the lock of a gateway that was killed, stopped or
disconnected. If the lock of a gateway is free for a grace period, another gateway fences it: it
deletes the gateway's row and closes the gateway's runs. A fenced gateway cannot commit transactions
any more. A gateway that has had no session for almost the grace period begins no runs and calls.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from sqlalchemy import Connection, func, select

from router.background import at_most, background_tasks, errors_logged
from router.errors import StoreFailed
from router.store.database import Database
from router.store.projection import left_over
from router.store.quotas import names
from router.store.schema import GATEWAYS, LEASES, RUNS, trace_of

_log = structlog.get_logger("store")
_LOOK_S = 1.0
"""Seconds between two uses of a gateway's session."""
_SESSION_S = 3.0
"""Seconds after which PostgreSQL ends an idle session. A gateway that leaves its session idle for
so long is stopped or unreachable.
"""
_GRACE_S = 5.0
"""A gateway is fenced (its row is deleted, and its runs are closed) after its lock has been free
for this many seconds.
"""
_BEGINS_S = _GRACE_S - 2.0
"""Max seconds since this gateway last saw that it holds its lock. Afterwards, no run may begin."""
_OPENS_S = _GRACE_S - 1.0
"""Max seconds since this gateway last saw that it holds its lock. Afterwards, no call may be made.
"""
_PAST_S = 86400.0
"""A minute, day or month counts as over this many seconds after its end. Then it is over for all
gateways, even if their clocks differ.
"""
_LOCKS = 1919118445
"""First key of the advisory locks on epochs; the second key is the epoch."""
_LOOK = """
SELECT epoch, session, EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND classid::bigint = %(locks)s AND objid::bigint = epoch
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
) FROM gateways
"""
_MEMBER = "SELECT FROM gateways WHERE epoch = %(epoch)s FOR SHARE"


class Members:
    """Membership of this gateway in the group that shares a PostgreSQL database. Keeps the lock
    that shows that this gateway is alive. Fences gateways that have lost their locks: deletes their
    rows, and closes their runs.
    """

    def __init__(self, database: Database, log: str) -> None:
        """`log`: name of the gateway's log."""
        self.epoch = 0
        self.done = False
        """True if no run is left, so that the gateway may give its leases back and leave."""
        self._database = database
        self._log = log
        self._thread = ThreadPoolExecutor(1, "session")
        self._session: Any = None
        self._locked = False
        self._good = -math.inf
        """Monotonic time at which this gateway last saw that it holds its lock and that its row
        exists.
        """
        self._gone = dict[tuple[int, int], float]()
        """Gateways whose locks are free. The key is a pair of epoch and session number; the value
        is the monotonic time at which the lock was first seen to be free.
        """

    @asynccontextmanager
    async def joined(self, on_fenced: Callable[[], None]) -> AsyncIterator[None]:
        """Be a member while the context is open. `on_fenced`: called when another gateway has
        fenced this gateway and closed its runs. Afterwards, this gateway joins again, with a new
        epoch. Raises `StoreFailed`.
        """
        try:
            await self._join()
            async with background_tasks(self._keep_looking(on_fenced)):
                yield
        finally:
            if self.done:
                with suppress(StoreFailed):
                    await self.book_leases(complete=True)
                    leaving = GATEWAYS.delete().where(GATEWAYS.c.epoch == self.epoch)
                    await self._database.write(lambda connection: connection.execute(leaving))
            await asyncio.get_running_loop().run_in_executor(self._thread, self._end_session)
            self._thread.shutdown()

    async def book_leases(self, *, complete: bool) -> None:
        """Give back the leases of this gateway (reserved parts of limits, see `quotas.py`). Call it
        after the gateway's log has been written to the database.

        `complete`: False if a part of the log is lost. Calls in the lost part may have spent the
        leases, so the leases are not given back, and count as spent. Raises `StoreFailed`.
        """
        own = LEASES.c.log == self._log
        lost = LEASES.update().where(own).values(log=f"{self._log} before {self.epoch}")
        await self._database.write(
            lambda connection: connection.execute(LEASES.delete().where(own) if complete else lost)
        )

    def see_alive(self, *, begins: bool = False) -> None:
        """Raise `StoreFailed` if another gateway may soon fence this one and close its runs.
        `begins`: True before a run begins, False before a call is made. Runs are refused one second
        earlier than calls.
        """
        if time.monotonic() - self._good > (_BEGINS_S if begins else _OPENS_S):
            raise StoreFailed(
                "The gateway has lost its database session; try again, or use another gateway."
            )

    async def _join(self) -> None:
        """Become a member with a new epoch, and delete the row of the log's last owner. Raises
        `StoreFailed`.
        """
        self._locked = False
        self._good = -math.inf
        self.epoch = await self._database.write(_join, self._log)
        if not await self._look() or self._good == -math.inf:
            raise StoreFailed(
                "The gateway cannot open a database session; check that PostgreSQL is up."
            )

    async def _keep_looking(self, on_fenced: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            with errors_logged(_log, "store.no_member"):
                if not await self._look():
                    on_fenced()
                    await self._join()

    async def _look(self) -> bool:
        """Use the session, and fence gateways whose locks have been free for the grace period.
        Return False if another gateway has fenced this one.
        """
        asked = time.monotonic()
        try:
            async with asyncio.timeout(_SESSION_S):
                seen = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask)
        except Exception as error:
            # An error of the driver, an error of SQLAlchemy while it connects, or a timeout.
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
                with errors_logged(_log, "store.not_fenced"):
                    # Stop in time to use this gateway's own session again. Fencing is retried.
                    async with at_most(_LOOK_S):
                        await self._database.write(_fence, epoch, session)
        return bool(own)

    def _ask(self) -> dict[tuple[int, int], bool]:
        """Return a dict with an entry for each member. The key is a pair of epoch and session
        number; the value is True if the member holds its lock. Opens the session and takes this
        gateway's lock if needed.
        """
        try:
            if self._session is None:
                self._locked = False
                self._session = self._database.session()
                self._session.execute(f"SET idle_session_timeout = {_SESSION_S * 1000:.0f}")
            own = {"locks": _LOCKS, "epoch": self.epoch}
            if not self._locked:
                locking = "SELECT pg_try_advisory_lock(%(locks)s, %(epoch)s::int)"
                self._locked = self._session.execute(locking, own).fetchone()[0]
                if self._locked:  # others can no longer fence it for its previous session
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
    """Lock a gateway's row, so that it is not fenced before the transaction ends. This is the first
    step of every transaction that writes runs. Raises `StoreFailed` if the gateway is fenced
    already.
    """
    if not connection.exec_driver_sql(_MEMBER, {"epoch": epoch}).rowcount:
        raise StoreFailed(
            "The gateway lost its database session, and other gateways closed its runs; try again."
        )


def _join(connection: Connection, log: str) -> int:
    connection.execute(GATEWAYS.delete().where(GATEWAYS.c.log == log))
    # Delete the leases of gateways that are gone, if the lease's period is over. Until then, the
    # leases must count, because the gateways' logs may have spending that the database lacks.
    lost = LEASES.c.log.not_in(select(GATEWAYS.c.log))
    for period in names(time.time() - _PAST_S):
        past = LEASES.c.period < period, func.length(LEASES.c.period) == len(period)
        connection.execute(LEASES.delete().where(lost, *past))
    joined = GATEWAYS.insert().values(log=log, session=0).returning(GATEWAYS.c.epoch)
    return int(connection.execute(joined).scalar_one())


def _fence(connection: Connection, epoch: int, session: int) -> None:
    """Delete the row of a gateway, and close its runs. The deletion waits until the gateway's
    transactions have ended. Do nothing if the gateway has opened a newer session than `session`,
    because it is alive then. The calls of the runs are in the gateway's log, and are written when
    the log is read.
    """
    fenced = GATEWAYS.delete().where(GATEWAYS.c.epoch == epoch, GATEWAYS.c.session == session)
    log = connection.scalar(fenced.returning(GATEWAYS.c.log))
    if log is None:
        return
    _log.warning("store.gateway_fenced", epoch=epoch)
    for recorded in left_over(connection, log).values():
        run = recorded.interrupted()
        closed = RUNS.update().where(RUNS.c.run_id == run.id)
        connection.execute(
            closed.values(status=run.status, duration_s=run.duration_s, trace=trace_of(run))
        )
        _log.warning("store.run_interrupted", run_id=run.id, tenant=run.tenant)
