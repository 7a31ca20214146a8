"""Scores of a table against the right rows, cell by cell."""

from collections.abc import Sequence

import msgspec

from router.table.cell_value import canonical, row_key
from router.trace.table import RowKey, Schema


class TableScore(msgspec.Struct, frozen=True):
    """Scores of a table, as shares of 1."""

    success: bool
    """True if all rows and cells are right, and no row is too many."""
    row_f1: float
    """Harmonic mean of precision and recall of the rows."""
    item_f1: float
    """Harmonic mean of precision and recall of the cells. WideSeek-R1 rewards it (section 3.3)."""


def table_score(
    schema: Schema,
    rows: Sequence[Sequence[str]],
    right: Sequence[Sequence[str]],
) -> TableScore:
    """Return the scores of `rows` against the `right` rows.

    Each row has a value for each column of the schema that is not hidden. Values are compared by
    their canonical forms. Rows with the same key count once, the first of them, so that no score
    exceeds 1. A cell counts only in a row whose key is right.
    """
    ours = _forms(schema, rows)
    gold = _forms(schema, right)
    pairs = [(row, gold[key]) for key, row in ours.items() if key in gold]
    right_rows = sum(row == other for row, other in pairs)
    right_cells = sum(cell == other for pair in pairs for cell, other in zip(*pair, strict=True))
    width = len(schema.shown)
    rows_of_both = len(ours) + len(gold)
    return TableScore(
        right_rows == len(ours) == len(gold) > 0,
        2 * right_rows / max(1, rows_of_both),
        2 * right_cells / max(1, rows_of_both * width),
    )


def _forms(schema: Schema, rows: Sequence[Sequence[str]]) -> dict[RowKey, tuple[str, ...]]:
    """Return the canonical forms of each row's values, by the row's key."""
    forms: dict[RowKey, tuple[str, ...]] = {}
    for row in rows:
        values = tuple(map(canonical, schema.shown, row))
        forms.setdefault(row_key(schema, row), values)
    return forms
