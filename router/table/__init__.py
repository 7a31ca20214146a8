"""Tables: checks of the requested columns, the loop that has executors look for rows and cells, and
the assembly of their reports to a table.
"""

from router.table.assembly import Table
from router.table.cost import table_cost
from router.table.filling import TableLimits, TableRequest, WideSearch, table_of

__all__ = [
    "Table",
    "TableLimits",
    "TableRequest",
    "WideSearch",
    "table_cost",
    "table_of",
]
