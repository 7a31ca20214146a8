"""A picture of a report."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG file with what it shows."""

    path: Path
    caption: str
