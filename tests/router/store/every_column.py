"""Rows for all tables, with a value in every column."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Table, select

from router.store import Database
from router.store.schema import METADATA, SCHEMA

TABLES = [table for table in METADATA.sorted_tables if table is not SCHEMA]
_ROWS = 70
"""Number of rows of each table, so that they do not fit into one piece."""
_TEXT = 'ü\n\u2028"\\\x01 🙂 '


def _value(column: Column[Any], number: int) -> object:
    """Return the value of a column in the row with this number. It is null in every third row, if
    it may be null, and refers to the row of the same number.
    """
    for key in column.foreign_keys:
        return _value(key.column, number)
    if column.nullable and number % 3 == 0:
        return None
    kind = column.type.python_type
    values: dict[type, object] = {
        bool: number % 2 == 1,
        int: (2**62 if isinstance(column.type, BigInteger) else 2**30) + number,
        float: number + 0.1,
        bytes: bytes(range(256)) * number,
        str: f"{_TEXT}{column.name} {number}",
    }
    return values[kind]


def rows_of(table: Table) -> Iterator[dict[str, object]]:
    """Yield rows of a table."""
    for number in range(_ROWS):
        yield {column.name: _value(column, number) for column in table.c}


async def fill(database: Database) -> None:
    """Write the rows to all tables."""

    def write(connection: Connection) -> None:
        for table in TABLES:
            connection.execute(table.insert(), list(rows_of(table)))

    await database.write(write)


async def contents(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of a database by table, sorted."""
    database = await Database.open(url)

    def read(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
        return {
            table.name: sorted(map(tuple, connection.execute(select(table))), key=repr)
            for table in TABLES
        }

    try:
        return await database.read(read)
    finally:
        await database.close()
