"""Clients' names for requests: which run has one, and which names were used at all, as most are
new.
"""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
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
"""How long a name stands for its run."""
_BITS = 1 << 25
"""Of each day: 4 MiB, by which one of a thousand new names is taken for a used one where two
million were used.
"""
Name = tuple[str, str]
"""A tenant, and its name for a request."""


def name_of(start: RunStart) -> Name:
    """The name of a run's request."""
    return start.tenant, storable(start.request_id)


class Named(NamedTuple):
    """A run by the client's name for its request."""

    run_id: str
    fingerprint: str
    status: RunStatus
    started_at: float

    @classmethod
    def of(cls, start: RunStart) -> "Named":
        """A run that begins."""
        return cls(start.id, start.fingerprint, "running", start.started_at)

    def holds(self, now: float) -> bool:
        """Whether the name is taken."""
        return now - self.started_at < _REQUEST_ID_S and self.status in ("running", "finished")

    def told(self, start: RunStart) -> EarlierRun:
        """The answer to the one that asks for it now."""
        return EarlierRun(self.run_id, self.status, self.fingerprint == start.fingerprint)


class RequestNames:
    """Names of requests, for one gateway; where several share a database, that alone knows."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs: dict[Name, Named] = {}
        """Those under way here, and those that have ended and are perhaps not in the database
        yet.
        """
        self._ended: deque[tuple[Position, Name, str]] = deque()
        """Those that have ended: the place in the log, their names and identifiers."""
        self._used = UsedNames()

    async def read(self) -> None:
        """Note the names of the last day's requests. Raises `StoreFailed`."""

        def read(connection: Connection) -> None:
            newest = connection.execute(select(func.max(RUNS.c.started_at))).scalar() or 0.0
            named = RUNS.c.request_id.is_not(None), RUNS.c.started_at > newest - _REQUEST_ID_S
            wanted = select(RUNS.c.tenant, RUNS.c.request_id).where(*named)
            for row in connection.execution_options(yield_per=1000).execute(wanted):
                self._used.add((row.tenant, row.request_id))

        await self._database.read(read)

    async def earlier(self, start: RunStart) -> Named | None:
        """The run that has the name of a request; None where none has. Raises `StoreFailed`."""
        name = name_of(start)
        stored = None
        if name not in self._runs and (self._database.shared or name in self._used):
            stored = await self._database.read(partial(_stored, name=name), behind=True)
        return self._runs.get(name) or stored

    def begin(self, start: RunStart) -> None:
        """Give a run the name of its request."""
        if start.request_id and not self._database.shared:
            name = name_of(start)
            self._runs[name] = Named.of(start)
            self._used.add(name)

    def end(self, start: RunStart, status: RunStatus, place: Position) -> None:
        """Note how a run has ended. `place`: in the log."""
        name = name_of(start)
        if (named := self._runs.get(name)) and named.run_id == start.id:
            self._runs[name] = named._replace(status=status)
            self._ended.append((place, name, start.id))

    def forget(self, start: RunStart) -> None:
        """Take a name from a run that never began."""
        self._runs.pop(name_of(start), None)

    def forget_ended(self, stored: Callable[[Position], bool]) -> None:
        """Leave runs to the database that it has. `stored`: whether it has what the log has
        there.
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
    """Names that were used within the last day: none of these is ever left out, and a few
    others may be in it.
    """

    def __init__(self) -> None:
        self._days = [bytearray(_BITS // 8)]
        """Today's, and yesterday's."""
        self._until = time.monotonic() + _REQUEST_ID_S

    def add(self, name: Name) -> None:
        """Note a tenant's name for a request, which is being used."""
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
