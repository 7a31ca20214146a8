"""What other processes do for a gateway that is one of several."""

from collections.abc import Mapping
from dataclasses import dataclass

from router.calls.health import Readiness


@dataclass(frozen=True, slots=True)
class Beside:
    """Engines that somebody else has started, and watches."""

    engines: Mapping[str, str]
    """Base URLs by name."""
    readiness: Readiness
    """Which of them are down."""
