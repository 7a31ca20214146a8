"""Clients' names for requests: which run has one, and which names were used at all, as most are new."""

import time
from hashlib import blake2b
from typing import NamedTuple

from router.ledger import RunStart
from router.ledger.journal import EarlierRun
from router.trace.run import RunStatus

REQUEST_ID_S = 86400
"""How long a name stands for its run."""
_BITS = 1 << 25
"""Of each day: 4 MiB, by which one of a thousand new names is taken for a used one where two million were used."""


class Named(NamedTuple):
    """A run by the client's name for its request."""

    run_id: str
    fingerprint: str
    status: RunStatus
    started_at: float

    def holds(self, now: float) -> bool:
        """Whether the name is taken."""
        return now - self.started_at < REQUEST_ID_S and self.status in ("running", "finished")

    def told(self, start: RunStart) -> EarlierRun:
        """The answer to the one that asks for it now."""
        return EarlierRun(self.run_id, self.status, self.fingerprint == start.fingerprint)


class UsedNames:
    """Names that were used within the last day: none of these is ever left out, and a few others may be in it."""

    def __init__(self) -> None:
        self._days = [bytearray(_BITS // 8)]
        """Today's, and yesterday's."""
        self._until = time.monotonic() + REQUEST_ID_S

    def add(self, name: tuple[str, str]) -> None:
        """Note a tenant's name for a request, which is being used."""
        if time.monotonic() > self._until:
            self._days = [bytearray(_BITS // 8), self._days[0]]
            self._until = time.monotonic() + REQUEST_ID_S
        for bit in _bits(name):
            self._days[0][bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, name: tuple[str, str]) -> bool:
        bits = _bits(name)
        return any(all(day[bit >> 3] >> (bit & 7) & 1 for bit in bits) for day in self._days)


def _bits(name: tuple[str, str]) -> list[int]:
    digest = blake2b("\0".join(name).encode(), digest_size=16).digest()
    return [int.from_bytes(digest[at : at + 4]) % _BITS for at in range(0, 16, 4)]
