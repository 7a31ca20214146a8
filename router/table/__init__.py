"""Tables: the columns that are wanted, the fold of reports to cells, and the loop that asks for
them.
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
