"""Tables: the columns that are wanted, the fold of reports to cells, and the loop that asks for them."""

from router.table.assembly import Assembly, Table, assemble
from router.table.completeness import completeness
from router.table.cost import table_cost
from router.table.filling import TableLimits, TableRequest, TableTopology, WideSearch, table_of
from router.table.schema import checked_rows, checked_schema
from router.table.table_text import parse_table_turn

__all__ = [
    "Assembly",
    "Table",
    "TableLimits",
    "TableRequest",
    "TableTopology",
    "WideSearch",
    "assemble",
    "checked_rows",
    "checked_schema",
    "completeness",
    "parse_table_turn",
    "table_cost",
    "table_of",
]
