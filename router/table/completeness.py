"""Counts of a table's cells, and estimates of the rows that it lacks."""

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


def completeness(table: Table, independent_discoveries: Collection[Ask]) -> Completeness:
    """Count cells and estimate rows. `independent_discoveries`: those that searched themselves."""
    cells = list(chain.from_iterable(row.cells for row in table.rows))
    known = len(table.rows)
    keys = known * len(table.schema.keys)
    valued = sum(cell.value != "" for cell in cells)
    named = Counter(
        sum(ask in independent_discoveries for ask in row.found_by) for row in table.rows
    )
    unseen = named[1] * (named[1] - 1) / (2 * (named[2] + 1))
    namings = sum(times * rows for times, rows in named.items())
    tells = len(independent_discoveries) > 1 and 2 * named[1] <= namings
    return Completeness(
        known,
        sum(all(cell.value for cell in row.cells) for row in table.rows),
        dict(Counter(cell.state for cell in cells)),
        (valued - keys) / (len(cells) - keys) if len(cells) > keys else 1.0,
        named[1],
        max(known, round(known - named[0] + unseen)) if tells else None,
    )
