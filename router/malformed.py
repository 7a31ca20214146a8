"""Output that follows no form of the search protocol."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Malformed:
    """What a correction turn, or a typed failure, answers to."""

    reason: str
    """What was wrong, for the trace; never a piece of the output itself."""
