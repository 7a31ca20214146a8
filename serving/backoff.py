"""Pauses between attempts to start something again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Each pause is twice as long as the last one, until there was a time without need of any."""

    first_s: float = 1.0
    longest_s: float = 60.0
    good_after_s: float = 60.0
    """Between two attempts that are this far apart, beyond the pause, all was well."""
    clock: Callable[[], float] = time.monotonic
    _pause_s: float = field(default=0.0, init=False)
    _last: float = field(default=0.0, init=False)

    def next(self) -> float:
        """How long to wait now, in seconds."""
        now = self.clock()
        fresh = not self._pause_s or now - self._last > self._pause_s + self.good_after_s
        self._pause_s = self.first_s if fresh else min(2 * self._pause_s, self.longest_s)
        self._last = now
        return self._pause_s
