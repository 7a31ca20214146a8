"""Statements that go straight to the driver: for what happens many times a second, SQLAlchemy's part would take several
times as long as the database's.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import DBAPIError

_AMONG = {"sqlite": "{0} IN (SELECT value FROM json_each(:{0}))", "postgresql": "{0} = ANY(%({0})s)"}


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Columns of the rows of a table whose keys are among some."""

    table: Table
    columns: Sequence[str]
    """Of the table, or other expressions."""
    keys: Sequence[str]
    """Columns of the table."""
    also: str = ""
    """What else must be so, and what else is done with the rows."""

    def rows(self, connection: Connection, *among: Collection[object]) -> Sequence[Any]:
        """The rows whose keys are all among these, which are in the order of `keys`; none where there are no values."""
        if not all(among):
            return ()
        dialect = connection.dialect.name
        values = (json.dumps(list(each)) if dialect == "sqlite" else list(each) for each in among)
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(_text(self, dialect), dict(zip(self.keys, values, strict=True)))
            return cursor.fetchall()


def write_rows(connection: Connection, text: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Execute `text`, in the driver's own language, for each of `rows`."""
    with closing(connection.connection.cursor()) as cursor:
        cursor.executemany(text, rows)


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """What the driver raises becomes what SQLAlchemy would make of it."""
    driver: Any = engine.dialect.loaded_dbapi
    try:
        yield
    except driver.Error as error:
        raise DBAPIError.instance(None, None, error, driver.Error, dialect=engine.dialect) from error


@cache
def _text(reading: Reading, dialect: str) -> str:
    among = " AND ".join(_AMONG[dialect].format(key) for key in reading.keys)
    return f"SELECT {', '.join(reading.columns)} FROM {reading.table.name} WHERE {among} {reading.also}"  # noqa: S608
