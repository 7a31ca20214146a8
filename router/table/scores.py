"""Scores of a table: how many of its rows and cells agree with the right rows."""

from collections.abc import Sequence

from router.frozen import Frozen
from router.table.cell_value import canonical, row_key
from router.trace.table import RowKey, Schema


class TableScore(Frozen):
    """Scores of a table, compared with the right rows. Precision, recall and F1 are from 0 to 1. An
    item is a cell.
    """

    success: bool
    """True if all rows and cells are right, and there are no other rows."""
    row_precision: float
    row_recall: float
    row_f1: float
    item_precision: float
    item_recall: float
    item_f1: float
    """F1 of the cells. The paper WideSeek-R1 uses it as the reward of a table (section 3.3)."""


def table_score(
    schema: Schema,
    rows: Sequence[Sequence[str]],
    right: Sequence[Sequence[str]],
) -> TableScore:
    """Return the scores of `rows` against the `right` rows.

    Each row has a value for each column of the schema that is not hidden. Values are compared by
    their canonical forms. Of several rows with the same key, only the first counts, so that no
    score exceeds 1. A cell can be right only in a row whose key is right.
    """
    ours = _forms(schema, rows)
    gold = _forms(schema, right)
    pairs = [(row, gold[key]) for key, row in ours.items() if key in gold]
    right_rows = sum(row == other for row, other in pairs)
    right_cells = sum(cell == other for pair in pairs for cell, other in zip(*pair, strict=True))
    width = len(schema.shown)
    by_row = _ratios(right_rows, len(ours), len(gold))
    by_item = _ratios(right_cells, len(ours) * width, len(gold) * width)
    return TableScore(right_rows == len(ours) == len(gold) > 0, *by_row, *by_item)


def _forms(schema: Schema, rows: Sequence[Sequence[str]]) -> dict[RowKey, tuple[str, ...]]:
    """Return the canonical forms of each row's values, by the row's key."""
    forms = dict[RowKey, tuple[str, ...]]()
    for row in rows:
        values = tuple(map(canonical, schema.shown, row))
        forms.setdefault(row_key(schema, row), values)
    return forms


def _ratios(right: int, ours: int, gold: int) -> tuple[float, float, float]:
    """Return precision, recall and F1. `right`: number of right rows or cells. `ours`, `gold`:
    number of rows or cells in the table and in the right rows.
    """
    if not right:
        return 0.0, 0.0, 0.0
    return right / ours, right / gold, 2 * right / (ours + gold)
