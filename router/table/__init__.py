"""Tables: the columns that are wanted, what is asked for them, and the fold of reports to cells. Nothing here calls a
model or waits for anything.
"""

from router.table.cell_value import canonical, is_blank, plain, row_key
from router.table.schema import checked_rows, checked_schema, normal_name
from router.trace.table import Ask, Column, RowKey, Schema

__all__ = [
    "Ask",
    "Column",
    "RowKey",
    "Schema",
    "canonical",
    "checked_rows",
    "checked_schema",
    "is_blank",
    "normal_name",
    "plain",
    "row_key",
]
