"""Counts of a table's rows and cells, and an estimate of the number of rows that exist."""

from collections import Counter
from collections.abc import Collection
from itertools import chain

from router.frozen import Frozen
from router.table.assembly import Table
from router.trace.table import Ask, CellState


class Completeness(Frozen):
    """How complete a table is, without excluded rows."""

    rows: int
    complete_rows: int
    """Number of rows in which each cell has a value."""
    cells: dict[CellState, int]
    """Number of cells by state."""
    fill_rate: float
    """Share of cells with a value, from 0 to 1, among all cells outside the key columns; 1 if there
    are no such cells.
    """
    rows_seen_once: int
    """Number of rows that only one discovery (question for rows) names. Repetitions of a discovery
    count as the same discovery.
    """
    estimated_rows: int | None
    """Estimate of the number of rows that exist, found or not, by the bias-corrected Chao1
    estimator. It is a lower bound, because all discoveries (questions for rows) search the same
    index and tend to find the same pages. None if there are fewer than two discoveries, or if they
    overlap too little: more than half of all mentions of rows are the only mention of their row
    (sample coverage, Good 1953).
    """
    left_out: tuple[str, ...] = ()
    """Names that are in no row, but in a list together with names of rows; see
    `router.table.left_out`.
    """
    unlisted_rows: int = 0
    """Number of rows that neither the request nor a report lists. Their names were found in
    passages by text search, and executors confirmed that the rows meet the conditions.
    """


def completeness(
    table: Table, independent_discoveries: Collection[Ask], left_out: tuple[str, ...] = ()
) -> Completeness:
    """Return the counts and the estimate for `table`. `independent_discoveries`: the discoveries
    whose executors searched in this run, instead of using a report of another run. `left_out`: see
    `Completeness`.
    """
    cells = list(chain.from_iterable(row.cells for row in table.rows))
    known = len(table.rows)
    keys = known * len(table.schema.keys)
    valued = sum(cell.value != "" for cell in cells)
    named = Counter(
        len({ask.discovery for ask in row.found_by if ask in independent_discoveries})
        for row in table.rows
    )
    unseen = named[1] * (named[1] - 1) / (2 * (named[2] + 1))
    namings = sum(times * rows for times, rows in named.items())
    discoveries = {ask.discovery for ask in independent_discoveries}
    tells = len(discoveries) > 1 and 2 * named[1] <= namings
    return Completeness(
        known,
        sum(all(cell.value for cell in row.cells) for row in table.rows),
        dict(Counter(cell.state for cell in cells)),
        (valued - keys) / (len(cells) - keys) if len(cells) > keys else 1.0,
        named[1],
        max(known, round(known - named[0] + unseen)) if tells else None,
        left_out,
        sum(not (row.given or row.found_by) for row in table.rows),
    )
