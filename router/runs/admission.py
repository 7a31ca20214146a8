"""Admission of runs: a limit on concurrent runs, and a short queue in which tenants take turns.

If the queue is full, requests are refused immediately.
"""

import asyncio
from collections import Counter, deque
from math import inf
from typing import Annotated

from msgspec import Meta

from router.errors import Overloaded
from router.frozen import Frozen

_MIN_RETRY_S = 1.0


_Runs = Annotated[int, Meta(ge=1, le=10**9)]


class AdmissionLimits(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Limits on concurrent runs. Requests beyond these limits wait in a short queue, or are refused
    if the queue is full.
    """

    max_runs: _Runs = 4000
    """Max runs that are under way at the same time."""
    max_runs_per_tenant: _Runs | None = None
    """Max runs of one tenant that are under way at the same time. Absent: no limit per tenant."""
    queue: Annotated[int, Meta(ge=0, le=10**9)] = 400
    """Max requests that wait for the end of other runs. Tenants with waiting requests take turns.
    Requests beyond this number are refused.
    """
    queue_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """Max seconds that a request waits in the queue before it is refused. A refused client is asked
    to retry after the same number of seconds, at least 1.
    """


class Admission:
    """Grants places to runs. The number of places is limited, and each run under way holds one
    place.

    Tenants with waiting requests take turns: a free place goes to the oldest request of the next
    tenant.
    """

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self._limits = limits or AdmissionLimits()
        self._max_per_tenant = self._limits.max_runs_per_tenant or inf
        self._running = Counter[str]()
        self.running = 0
        """The number of runs under way."""
        self.waiting = 0
        """The number of requests in the queue."""
        self._queues = dict[str, deque[asyncio.Future[None]]]()
        """Waiting requests of each tenant, oldest first. The first tenant in the dict gets the next
        free place.
        """
        self._spare = asyncio.Event()
        self._spare.set()

    async def spare(self) -> None:
        """Wait until a place is free and no request is waiting for it.

        Takes no place. Trials of executor versions call this, so that they do not delay clients.
        """
        await self._spare.wait()

    async def enter(self, tenant: str) -> None:
        """Take a place for a run of `tenant`. If no place is free, wait in the queue. The caller
        must call `leave` when the run is over. Raises `Overloaded` if the queue is full, or if
        there was no place within `queue_s`.
        """
        if self._free(tenant) and not self._queues.get(tenant):
            self._count(tenant, 1)
            return
        if self.waiting >= self._limits.queue:
            self._displace(tenant)
        turn = asyncio.Future[None]()
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
        """Give back the place of a run of `tenant`, and grant free places to waiting requests."""
        self._count(tenant, -1)
        while (next_tenant := next(filter(self._free, self._queues), None)) is not None:
            turn = self._queues[next_tenant][0]
            self._forget(next_tenant, turn)
            if queue := self._queues.pop(next_tenant, None):
                self._queues[next_tenant] = queue  # behind all other tenants
            if not turn.done():  # a request that was cancelled just now gets no place
                self._count(next_tenant, 1)
                turn.set_result(None)

    def _withdraw(self, tenant: str, turn: asyncio.Future[None]) -> None:
        if turn.cancelled():
            self._forget(tenant, turn)
        elif turn.exception() is None:  # the request was granted a place at the same moment
            self.leave(tenant)

    def _free(self, tenant: str) -> bool:
        return self.running < self._limits.max_runs and self._running[tenant] < self._max_per_tenant

    def _count(self, tenant: str, change: int) -> None:
        self.running += change
        self._running[tenant] += change
        if not self._running[tenant]:
            del self._running[tenant]
        self._update_spare()

    def _forget(self, tenant: str, turn: asyncio.Future[None]) -> None:
        if turn in (queue := self._queues.get(tenant, deque())):
            queue.remove(turn)
            self._wait(-1)
        if not queue:
            self._queues.pop(tenant, None)

    def _wait(self, change: int) -> None:
        self.waiting += change
        self._update_spare()

    def _displace(self, tenant: str) -> None:
        """Make room in the full queue for a new request of `tenant`: refuse the latest request of
        the tenant with the most waiting requests.

        Raises `Overloaded` for the new request itself if no other tenant has at least two more
        waiting requests than `tenant`.
        """
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=tenant)
        if len(self._queues.get(longest, ())) <= len(self._queues.get(tenant, ())) + 1:
            raise self._overloaded(tenant)
        turn = self._queues[longest][-1]
        self._forget(longest, turn)
        if not turn.done():
            turn.set_exception(self._overloaded(longest))

    def _overloaded(self, tenant: str) -> Overloaded:
        limit = self._limits.max_runs
        reason = f"{self.running} of {limit} runs are under way (admission.max_runs)"
        if self.running < limit:
            reason = (
                f"{self._running[tenant]} of this tenant's runs are under way "
                "(admission.max_runs_per_tenant)"
            )
        wait_s = max(_MIN_RETRY_S, self._limits.queue_s)
        return Overloaded(
            f"{reason}, and {self.waiting} requests wait; try again later.", retry_after_s=wait_s
        )

    def _update_spare(self) -> None:
        if self.running < self._limits.max_runs and not self.waiting:
            self._spare.set()
        else:
            self._spare.clear()
