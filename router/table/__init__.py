"""Tables: the columns that are wanted, what is asked for them, and the fold of reports to cells. Nothing here calls a
model or waits for anything.
"""

from router.table.assembly import Assembly, Table, assemble
from router.table.completeness import completeness
from router.table.cost import table_cost
from router.table.schema import checked_rows, checked_schema
from router.table.table_text import parse_table_turn

__all__ = [
    "Assembly",
    "Table",
    "assemble",
    "checked_rows",
    "checked_schema",
    "completeness",
    "parse_table_turn",
    "table_cost",
]
