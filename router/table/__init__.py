"""Tables: the checks of a request's columns, the loop in which executors search for rows and cells,
and the assembly of a table from the executors' reports.
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
