"""What one run carries along."""

import asyncio
from dataclasses import dataclass, field

from router.events import Emit
from router.ledger import Ledger

_SEARCH_SHARE = 0.8
"""The share of a run's time that may be searched in; the rest is the answerer's."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """The ledger, the listener and the clock of one run."""

    emit: Emit
    deadline: float
    """When the answer is due, in the event loop's time."""
    search_deadline: float
    """When searching ends, so that there is time to answer from what was found."""
    ledger: Ledger = field(default_factory=Ledger)

    @classmethod
    def lasting(cls, time_s: float, emit: Emit) -> "RunContext":
        """A run that begins now and may take `time_s` seconds."""
        now = asyncio.get_running_loop().time()
        return cls(emit, now + time_s, now + time_s * _SEARCH_SHARE)
