"""Counts of a table's cells, and estimates of the rows that it lacks."""

import math
from collections import Counter
from collections.abc import Collection
from itertools import chain

import msgspec

from router.table.assembly import Table
from router.trace.table import Ask, CellState


class Completeness(msgspec.Struct, frozen=True):
    """State of a table in counts."""

    rows: int
    complete_rows: int
    """Rows with a value in each cell."""
    cells: dict[CellState, int]
    """Number of cells by state."""
    fill_rate: float
    """Share of the cells outside keys that have a value; 1 without such cells."""
    rows_seen_once: int
    """Rows that exactly one discovery names."""
    estimated_rows: int | None
    """Chao1, bias-corrected: a lower bound, as discoveries over one index find the same pages. None
    if fewer than half of the namings are of rows named again (Good's coverage, 1953): discoveries
    that ask for disjoint parts do not tell the size of the whole.
    """
    estimated_rows_at_most: int | None
    """Upper end of the estimate's log-normal 95 % interval (Chao 1987)."""


def completeness(table: Table, independent_discoveries: Collection[Ask]) -> Completeness:
    """Count cells and estimate rows. `independent_discoveries`: those that searched themselves."""
    cells = list(chain.from_iterable(row.cells for row in table.rows))
    known = len(table.rows)
    keys = known * len(table.schema.keys)
    valued = sum(cell.value != "" for cell in cells)
    named = Counter(
        sum(ask in independent_discoveries for ask in row.found_by) for row in table.rows
    )
    estimate, at_most = chao1(known - named[0], named[1], named[2])
    namings = sum(times * rows for times, rows in named.items())
    tells = len(independent_discoveries) > 1 and 2 * named[1] <= namings
    return Completeness(
        known,
        sum(all(cell.value for cell in row.cells) for row in table.rows),
        dict(Counter(cell.state for cell in cells)),
        (valued - keys) / (len(cells) - keys) if len(cells) > keys else 1.0,
        named[1],
        max(known, round(estimate)) if tells else None,
        max(known, math.ceil(at_most)) if tells else None,
    )


def chao1(
    seen: int,
    once: int,
    twice: int,
) -> tuple[float, float]:
    """Estimate the number of rows and its upper bound from the rows seen by any, by exactly one and
    by exactly two discoveries. The variance is equation 6 of EstimateS.
    """
    unseen = once * (once - 1) / (2 * (twice + 1))
    if unseen == 0:
        return seen, seen
    variance = unseen + once * ((2 * once - 1) / (2 * (twice + 1))) ** 2
    variance += twice * (once * (once - 1)) ** 2 / (4 * (twice + 1) ** 4)
    return seen + unseen, seen + unseen * math.exp(
        1.96 * math.sqrt(math.log1p(variance / unseen**2))
    )
