"""How many retries a role may make, so that they cannot multiply the load of an endpoint that is in trouble."""

import asyncio

_SHARE = 0.2
_RESERVE, _MOST = 10.0, 100.0


class RetryBudget:
    """A fifth of the calls, and ten beside, which come back at one a second (as in Finagle)."""

    def __init__(self) -> None:
        self.balance = _RESERVE
        """Retries that may be made now."""
        self.refused = 0
        """Retries that were not made for want of it."""
        self._seen = 0.0

    def called(self) -> None:
        """Count a call."""
        self.balance = min(self.balance + _SHARE, _MOST)

    def spend(self) -> bool:
        """Whether a retry may be made; then it is counted."""
        now = asyncio.get_running_loop().time()
        if self.balance < _RESERVE:
            self.balance = min(self.balance + now - self._seen, _RESERVE) if self._seen else self.balance
        self._seen = now
        if self.balance < 1:
            self.refused += 1
            return False
        self.balance -= 1
        return True
