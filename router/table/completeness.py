"""Estimates of what a table lacks."""

import math
from collections import Counter
from collections.abc import Collection

import msgspec

from router.table.assembly import Table
from router.trace.table import Ask, CellState


class Completeness(msgspec.Struct, frozen=True):
    """The state of a table, in counts."""

    rows: int
    complete_rows: int
    """Rows whose cells all have a value."""
    cells: dict[CellState, int]
    """The number of cells in each state that any is in."""
    fill_rate: float
    """The share of cells outside of keys that have a value; 1 where there are none."""
    rows_seen_once: int
    """Rows that one discovery names."""
    estimated_rows: int | None
    """Chao1, bias-corrected: a lower bound where discoveries find the same pages, as they do where
    they share an index; None where fewer than half of the namings are of a row that is named again
    (Good's coverage, 1953), as discoveries that ask for parts of a whole say nothing of its size.
    """
    estimated_rows_at_most: int | None
    """The upper end of its log-normal interval of 95 % (Chao 1987)."""


def completeness(table: Table, occasions: Collection[Ask]) -> Completeness:
    """Count and estimate. `occasions`: the discoveries whose report is nobody else's."""
    cells = [cell for row in table.rows for cell in row.cells]
    known = len(table.rows)
    keys = len(table.rows) * len(table.schema.keys)
    named = Counter(sum(ask in occasions for ask in row.found_by) for row in table.rows)
    estimate, at_most = chao1(known - named[0], named[1], named[2])
    tells = len(occasions) > 1 and 2 * named[1] <= sum(
        times * rows for times, rows in named.items()
    )
    return Completeness(
        known,
        sum(all(cell.value for cell in row.cells) for row in table.rows),
        dict(Counter(cell.state for cell in cells)),
        (sum(cell.value != "" for cell in cells) - keys) / (len(cells) - keys)
        if len(cells) > keys
        else 1.0,
        named[1],
        max(known, round(estimate)) if tells else None,
        max(known, math.ceil(at_most)) if tells else None,
    )


def chao1(seen: int, once: int, twice: int) -> tuple[float, float]:
    """The number of rows by how many were seen, by one discovery only, and by two; and its upper
    bound.

    Variance: EstimateS, equation 6.
    """
    unseen = once * (once - 1) / (2 * (twice + 1))
    if unseen == 0:
        return seen, seen
    variance = unseen + once * ((2 * once - 1) / (2 * (twice + 1))) ** 2
    variance += twice * (once * (once - 1)) ** 2 / (4 * (twice + 1) ** 4)
    return seen + unseen, seen + unseen * math.exp(
        1.96 * math.sqrt(math.log1p(variance / unseen**2))
    )
