"""A hit: one row of an index, found for one query."""

from typing import NamedTuple


class Hit(NamedTuple):
    """Rows count from 0, in the order of the corpus."""

    row: int
    score: float
