"""On which terms a request is made."""

import msgspec

from router.budget import UNLIMITED, Budget
from router.identity import LOCAL, Identity


class Terms(msgspec.Struct, frozen=True):
    """Who asks, for how long, for how much, and whether it was asked before."""

    identity: Identity = LOCAL
    time_s: float | None = None
    """The client's deadline, in seconds from now; None leaves it to the gateway."""
    request_id: str = ""
    """The client's name for the request, which makes a second one return the first one's answer; empty for none."""
    budget: Budget = UNLIMITED
    fresh: bool = False
    """Whether every sub-query is to be worked on anew: no report of another run is used, nor any of this one by others.
    """
