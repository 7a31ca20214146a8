"""What all calls of a role share, whichever version of it makes them."""

import asyncio

from router.hedge import Durations
from router.prompt_bound import PromptCounts
from router.retry_budget import RetryBudget

_MOST_FAILURES, _FAILING_S = 5, 2.0
"""As many in a row open a breaker, which is an endpoint's and may have other roles' successes between them."""


class RoleTraffic:
    """Its places, its retries, its past durations, and what its prompts have been counted as."""

    def __init__(self, max_in_flight: int | None = None, hedge_percentile: float | None = None) -> None:
        """`max_in_flight`: attempts under way at a time, over all replicas; None for any number. `hedge_percentile`: a
        call that takes longer than this percentage of the last ones is made a second time; None for never.
        """
        self._most, self._percentile = max_in_flight, hedge_percentile
        self._places = asyncio.Semaphore(max_in_flight) if max_in_flight else None
        self.retries, self.durations, self.counts = RetryBudget(), Durations(), PromptCounts()
        self.in_flight = self.waiting = 0
        self.hedges = self.fallbacks = 0
        """How many have been begun."""
        self.failures = 0
        """Attempts in a row that failed, or were refused as every other would be, for the key or the model's name."""
        self._failing_since = 0.0

    @property
    def hedge_after_s(self) -> float | None:
        """When a call is made a second time; None for never."""
        return None if self._percentile is None else self.durations.percentile(self._percentile)

    def failed(self) -> None:
        """Count one more failure in a row."""
        self._failing_since = self._failing_since if self.failures else asyncio.get_running_loop().time()
        self.failures += 1

    @property
    def works(self) -> bool:
        """False where calls fail again and again, and for some time: a burst that is throttled is over soon."""
        lasting = asyncio.get_running_loop().time() - self._failing_since >= _FAILING_S
        return self.failures < _MOST_FAILURES or not lasting

    def may_hedge(self) -> bool:
        """Whether there are a place and a retry left for a second attempt; then it is counted."""
        if (self._places and self._places.locked()) or not self.retries.spend():
            return False
        self.hedges += 1
        return True

    async def enter(self) -> None:
        """Take one of the places, once it is free; in the order of coming."""
        if self._places:
            self.waiting += 1
            try:
                await self._places.acquire()
            finally:
                self.waiting -= 1
        self.in_flight += 1

    def leave(self) -> None:
        """Give the place back."""
        self.in_flight -= 1
        if self._places:
            self._places.release()
