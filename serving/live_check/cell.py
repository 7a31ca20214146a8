"""What one probe found: a cell of the table that `rolegate check --live` prints."""

import msgspec


class Cell(msgspec.Struct, frozen=True):
    """Good, bad, or neither: not known, or not to be had here."""

    good: bool | None
    word: str = ""
    advice: str = ""
    """What it means and what to do; empty where all is well."""
    needed: bool = False
    """Whether questions fail, or go wrong, unless this is good."""


Cells = dict[str, Cell]
"""By what was looked at, such as `reachable`."""
GOOD = Cell(True)


def failed(word: str, advice: str) -> Cell:
    """Something needed that is bad."""
    return Cell(False, word, advice, needed=True)
