"""The idempotency keys that clients choose for requests (`request_id`), and the runs to which they
belong. Here, such a key together with its tenant is called a name.

Most names are new. A Bloom filter of the names of the last day shows, without a query of the
database, that a name is new.
"""

import time
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from router.ledger import RunStart
from router.ledger.journal import EarlierRun
from router.store.database import Database, storable
from router.store.log import Position
from router.store.schema import RUNS
from router.trace.run import RunStatus

_REQUEST_ID_S = 86400
"""A name (a tenant and a `request_id`) belongs to its run for this many seconds after the run's
start.
"""
_BITS = 1 << 25
"""Number of bits of the Bloom filter of one day (4 MiB). With two million names, the filter
mistakes one in a thousand new names for a used name.
"""
Name = tuple[str, str]
"""A tenant, and the `request_id` that it has chosen."""


def name_of(start: RunStart) -> Name:
    """Return the tenant and the `request_id` of a run."""
    return start.tenant, storable(start.request_id)


class Named(NamedTuple):
    """The run to which a name (a tenant and a `request_id`) belongs."""

    run_id: str
    fingerprint: str
    status: RunStatus
    started_at: float

    @classmethod
    def of(cls, start: RunStart) -> "Named":
        """Return the `Named` of a run that is beginning."""
        return cls(start.id, start.fingerprint, "running", start.started_at)

    def holds(self, now: float) -> bool:
        """Return True if the name still belongs to this run at the Unix time `now`. Then no new run
        may use the name. The name does not belong to a run that has failed, or was interrupted or
        cancelled.
        """
        return now - self.started_at < _REQUEST_ID_S and self.status in ("running", "finished")

    def earlier_run(self, start: RunStart) -> EarlierRun:
        """Return the reply of `Journal.begin` to the request `start`, which has the same name as
        this run.
        """
        return EarlierRun(self.run_id, self.status, self.fingerprint == start.fingerprint)


class RequestNames:
    """The names that requests have used, in memory and in the database. If several gateways share
    the database, nothing is kept in memory.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs = dict[Name, Named]()
        """Runs by name: running runs, and ended runs that may not be in the database yet."""
        self._ended = deque[tuple[Position, Name, str]]()
        """Ended runs in `_runs`, each with its position in the log, its name and its identifier."""
        self._used = UsedNames()

    async def read(self) -> None:
        """Read the names of the last day from the database. Raises `StoreFailed`."""

        def read(connection: Connection) -> None:
            newest = connection.execute(select(func.max(RUNS.c.started_at))).scalar() or 0.0
            named = RUNS.c.request_id.is_not(None), RUNS.c.started_at > newest - _REQUEST_ID_S
            wanted = select(RUNS.c.tenant, RUNS.c.request_id).where(*named)
            for row in connection.execution_options(yield_per=1000).execute(wanted):
                self._used.add((row.tenant, row.request_id))

        await self._database.read(read)

    async def earlier(self, start: RunStart) -> Named | None:
        """Return the earlier run that has the same name as `start`; None if there is none. Raises
        `StoreFailed`.
        """
        name = name_of(start)
        stored = None
        if name not in self._runs and (self._database.shared or name in self._used):
            stored = await self._database.read(_stored, name, behind=True)
        return self._runs.get(name) or stored

    def begin(self, start: RunStart) -> None:
        """Record that a run has begun, so that the run's name is in use."""
        if start.request_id and not self._database.shared:
            name = name_of(start)
            self._runs[name] = Named.of(start)
            self._used.add(name)

    def end(self, start: RunStart, status: RunStatus, place: Position) -> None:
        """Update the status of a run that has ended. `place`: position in the log after the run's
        last record.
        """
        name = name_of(start)
        if (named := self._runs.get(name)) and named.run_id == start.id:
            self._runs[name] = named._replace(status=status)
            self._ended.append((place, name, start.id))

    def forget(self, start: RunStart) -> None:
        """Release the name of a run that never began."""
        self._runs.pop(name_of(start), None)

    def forget_ended(self, stored: Callable[[Position], bool]) -> None:
        """Drop from memory the ended runs that are in the database now. `stored`: function that
        returns True if the database has everything up to a position in the log.
        """
        while self._ended and stored(self._ended[0][0]):
            _, name, run_id = self._ended.popleft()
            if (named := self._runs.get(name)) and named.run_id == run_id:
                del self._runs[name]


def _stored(connection: Connection, name: Name) -> Named | None:
    columns = RUNS.c.run_id, RUNS.c.fingerprint, RUNS.c.status, RUNS.c.started_at
    wanted = select(*columns).where(RUNS.c.tenant == name[0], RUNS.c.request_id == name[1])
    row = connection.execute(wanted).one_or_none()
    return Named(*row) if row else None


class UsedNames:
    """Bloom filter of the names of the last day or two. `in` is always True for a used name, and
    rarely True for a new name.
    """

    def __init__(self) -> None:
        self._days = [bytearray(_BITS // 8)]
        """Filters of today and yesterday."""
        self._until = time.monotonic() + _REQUEST_ID_S

    def add(self, name: Name) -> None:
        """Add a name."""
        if time.monotonic() > self._until:
            self._days = [bytearray(_BITS // 8), self._days[0]]
            self._until = time.monotonic() + _REQUEST_ID_S
        for bit in _bits(name):
            self._days[0][bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, name: Name) -> bool:
        bits = _bits(name)
        return any(all(day[bit >> 3] >> (bit & 7) & 1 for bit in bits) for day in self._days)


def _bits(name: Name) -> list[int]:
    digest = blake2b("\0".join(name).encode(), digest_size=16).digest()
    return [int.from_bytes(digest[at : at + 4]) % _BITS for at in range(0, 16, 4)]
