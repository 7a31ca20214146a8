"""Keeps calls away from an endpoint that fails, and lets one through now and then to see whether it works again."""

import asyncio
from collections import deque
from typing import Literal

_IN_A_ROW = 5
_FIRST_S, _LONGEST_S = 1.0, 30.0
_RECENT, _LEAST_RECENT = 20, 10
_PROBING_S = 0.25
"""When to ask again while a probe is under way."""

BreakerState = Literal["closed", "open", "half_open"]


class Breaker:
    """Opens after five failures in a row, for a second; for twice as long, up to half a minute, after each probe that
    fails. What was begun before it opened decides nothing.
    """

    def __init__(self) -> None:
        self.state: BreakerState = "closed"
        self.openings = 0
        """How often it was opened, by failures in a row or because others do better."""
        self._in_a_row = 0
        self._open_s = _FIRST_S
        self._until = 0.0
        self._recent: deque[bool] = deque(maxlen=_RECENT)

    @property
    def wait_s(self) -> float:
        """In how many seconds a call may be let through; 0 for now."""
        if self.state == "closed":
            return 0.0
        remaining = self._until - asyncio.get_running_loop().time()
        return max(remaining, _PROBING_S if self.state == "half_open" else 0.0)

    @property
    def failing_share(self) -> float | None:
        """The share of the last calls that failed; None where there were fewer than ten."""
        return self._recent.count(False) / len(self._recent) if len(self._recent) >= _LEAST_RECENT else None

    def begin(self) -> bool:
        """Let a call through; whether it is a probe."""
        probes = self.state == "open"
        if probes:
            self.state = "half_open"
        return probes

    def end(self, good: bool | None, *, probe: bool) -> None:
        """A call has ended. `good`: None where that tells nothing of the endpoint."""
        if probe:
            self._probed(good)
        elif self.state == "closed" and good is not None:
            self._recent.append(good)
            self._in_a_row = 0 if good else self._in_a_row + 1
            if self._in_a_row >= _IN_A_ROW:
                self.open()

    def open(self) -> None:
        """Let nothing through for a while."""
        self.state, self.openings = "open", self.openings + 1
        self._until = asyncio.get_running_loop().time() + self._open_s
        self._open_s = min(2 * self._open_s, _LONGEST_S)
        self._in_a_row = 0
        self._recent.clear()

    def _probed(self, good: bool | None) -> None:
        if good:
            self.state, self._open_s = "closed", _FIRST_S
        elif good is None:
            self.state = "open"  # and due, for another probe
        else:
            self.open()
