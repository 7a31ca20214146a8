"""Admission: so many runs at a time, a short queue that is fair to tenants, and a word at once
to everybody else.
"""

import asyncio
from collections import Counter, deque
from math import inf
from typing import Annotated

import msgspec
from msgspec import Meta

from router.errors import Overloaded

_LEAST_RETRY_S = 1.0


_Runs = Annotated[int, Meta(ge=1, le=10**9)]


class AdmissionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Runs that a gateway works on at a time; beyond that, and a short queue, requests are
    turned away.
    """

    max_runs: _Runs = 4000
    max_runs_per_tenant: _Runs | None = None
    """Absent: as many as there may be."""
    queue: Annotated[int, Meta(ge=0, le=10**9)] = 400
    """Runs that may wait for others to end; tenants take turns."""
    queue_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """The longest wait, and the time after which those that are turned away are told to come
    back.
    """


class Admission:
    """Lets runs begin. Tenants that wait take turns, each with its oldest."""

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self._limits = limits or AdmissionLimits()
        self._each = self._limits.max_runs_per_tenant or inf
        self._running: Counter[str] = Counter()
        self.running = self.waiting = 0
        """How many runs there are, and how many wait."""
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        """Whoever waits, by tenant; the tenant whose turn is next stands first."""
        self._spare = asyncio.Event()
        self._spare.set()

    async def spare(self) -> None:
        """Wait until there is room and nobody waits: for work that gives way to clients'. It
        takes no place.
        """
        await self._spare.wait()

    async def enter(self, tenant: str) -> None:
        """Take a place, after waiting for one if need be; it must be left. Raises `Overloaded`."""
        if self._free(tenant) and not self._queues.get(tenant):
            self._count(tenant, 1)
            return
        if self.waiting >= self._limits.queue:
            self._displace(tenant)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant, deque()).append(turn)
        self._wait(1)
        try:
            async with asyncio.timeout(self._limits.queue_s):
                await turn
        except TimeoutError:
            self._withdraw(tenant, turn)
            raise self._overloaded(tenant) from None
        except asyncio.CancelledError:
            self._withdraw(tenant, turn)
            raise

    def leave(self, tenant: str) -> None:
        """Give a place back, to whoever is next."""
        self._count(tenant, -1)
        while (next_ := next(filter(self._free, self._queues), None)) is not None:
            turn = self._queues[next_][0]
            self._forget(next_, turn)
            if queue := self._queues.pop(next_, None):
                self._queues[next_] = queue  # the others come first now
            if not turn.done():  # whoever waits may just have been cancelled
                self._count(next_, 1)
                turn.set_result(None)

    def _withdraw(self, tenant: str, turn: asyncio.Future[None]) -> None:
        if turn.cancelled():
            self._forget(tenant, turn)
        elif turn.exception() is None:  # its turn came in the same moment
            self.leave(tenant)

    def _free(self, tenant: str) -> bool:
        return self.running < self._limits.max_runs and self._running[tenant] < self._each

    def _count(self, tenant: str, more: int) -> None:
        self.running += more
        self._running[tenant] += more
        if not self._running[tenant]:
            del self._running[tenant]
        self._see_to_spare()

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        if turn in (queue := self._queues.get(tenant, deque())):
            queue.remove(turn)
            self._wait(-1)
        if not queue:
            self._queues.pop(tenant, None)

    def _wait(self, more: int) -> None:
        self.waiting += more
        self._see_to_spare()

    def _displace(self, tenant: str) -> None:
        """Make room in a full queue, where another tenant has more in it; its latest goes.
        Raises `Overloaded`.
        """
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=tenant)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(tenant, ())) + 1:
            raise self._overloaded(tenant)
        turn = self._queues[longest][-1]
        self._forget(longest, turn)
        if not turn.done():
            turn.set_exception(self._overloaded(longest))

    def _overloaded(self, tenant: str) -> Overloaded:
        most = self._limits.max_runs
        what = f"{self.running} of {most} runs are under way here (admission.max_runs)"
        if self.running < most:
            what = (
                f"{self._running[tenant]} of this tenant's runs are under way "
                "(admission.max_runs_per_tenant)"
            )
        wait_s = max(_LEAST_RETRY_S, self._limits.queue_s)
        return Overloaded(
            f"{what}, and {self.waiting} wait; come back later.", retry_after_s=wait_s
        )

    def _see_to_spare(self) -> None:
        if self.running < self._limits.max_runs and not self.waiting:
            self._spare.set()
        else:
            self._spare.clear()
