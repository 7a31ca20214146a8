"""Export of a database as JSON lines, and import into an empty database of any kind.

Each line contains one row of a table; its fields are the columns of the table. Foreign keys refer
only to rows in earlier lines. The first and the last line contain the revision of the schema and
the number of rows before the line, so that an import recognises a truncated file.
"""

from collections.abc import Callable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Union

import msgspec
from sqlalchemy import Connection, Table, func, select
from sqlalchemy.exc import DataError, IntegrityError

from router.errors import JSON_ERRORS, BadConfig
from router.frozen import Frozen
from router.store.database import begin_snapshot
from router.store.migration import lock, revision_of
from router.store.schema import LOGS, METADATA, REVISION, SCHEMA

_TAG = "table"
"""Field of each line. Its value is the name of the row's table, or `store` in the first and last
line.
"""
_PIECE = 32
"""Max number of rows in memory at the same time. It is small, because the trace of one run can have
megabytes.
"""
_LOST = """
INSERT INTO gateways (log, session) SELECT DISTINCT log, 0 FROM runs
WHERE status = 'running' AND log NOT IN (SELECT log FROM gateways)
"""
"""Adds the gateways of all runs that were running at the time of the export to the table
`gateways`. No process holds the locks of these gateways, so another gateway closes the runs (see
`members.py`).
"""
Progress = Callable[[int], None]
"""A function that takes the number of rows written or inserted so far. It is called repeatedly."""


class Edge(Frozen, tag_field=_TAG, tag="store"):
    """First or last line of an export."""

    revision: str
    """Revision of the schema (see `migration.py`)."""
    rows: int
    """Number of rows before this line."""


def _line(table: Table) -> type[msgspec.Struct]:
    """Return a struct type for the lines of a table, with a field for each column."""
    fields = [(str(column.name), column.type.python_type | None) for column in table.c]
    return msgspec.defstruct(str(table.name), fields, tag_field=_TAG, tag=True)


_TABLES = {_line(table): table for table in METADATA.sorted_tables if table is not SCHEMA}
"""Tables by the struct types of their lines, in the order in which they are exported."""
_encode_lines = msgspec.json.Encoder().encode_lines
_decode = msgspec.json.Decoder(Union[Edge, *_TABLES]).decode


def export_rows(connection: Connection, file: Path, progress: Progress) -> int:
    """Write all rows to `file`, from one snapshot, and return their number. Raises `BadConfig` if
    the schema does not have the revision of this release.
    """
    begin_snapshot(connection)
    if (revision := revision_of(connection)) != REVISION:
        raise BadConfig(
            f"server.store: has the schema {revision}, but this release exports {REVISION}; run "
            "`rolegate store upgrade`, or export with the release that upgraded the store."
        )

    count = 0
    with file.open("wb") as lines:
        lines.write(_encode_lines([Edge(revision, count)]))
        for line, table in _TABLES.items():
            query = select(table).execution_options(yield_per=_PIECE)
            for rows in connection.execute(query).partitions():
                lines.write(_encode_lines([line(*row) for row in rows]))
                count += len(rows)
                progress(count)
        lines.write(_encode_lines([Edge(revision, count)]))
    return count


def import_rows(connection: Connection, file: Path, progress: Progress) -> int:
    """Insert the rows of an export into empty tables, in the transaction of `connection`. Return
    the number of rows. Raises `BadConfig` if a table has rows already, or if the file is incomplete
    or has another revision.
    """
    lock(connection)
    for table in _TABLES.values():
        if connection.execute(select(table).limit(1)).first():
            raise BadConfig(
                f"server.store: the table {table.name} has rows, and an import needs an empty "
                "store; name another file or an empty database."
            )

    count = 0
    try:
        for line, group in groupby(_rows(file), type):
            while rows := [msgspec.structs.asdict(row) for row in islice(group, _PIECE)]:
                connection.execute(_TABLES[line].insert(), rows)
                count += len(rows)
                progress(count)
    except (*JSON_ERRORS, DataError, IntegrityError) as error:
        reason = getattr(error, "orig", error)
        raise BadConfig(
            f"{file}: is not a complete export of a store (after row {count}: {reason}). Nothing "
            "was imported; export the store again with `rolegate store export`."
        ) from error
    _continue(connection)
    return count


def _rows(file: Path) -> Iterator[msgspec.Struct]:
    """Yield the rows of an export. Raises `BadConfig` if the export has another revision, and
    `JSON_ERRORS` if it is incomplete or invalid.
    """
    with file.open("rb") as lines:
        revision = msgspec.json.decode(lines.readline(), type=Edge).revision
        if revision != REVISION:
            raise BadConfig(
                f"{file}: has the schema {revision}, but this release imports {REVISION}; import "
                "it with the release that exported it. Later releases can upgrade that store with "
                "`rolegate store upgrade`."
            )
        for number, text in enumerate(lines):
            line = _decode(text)
            if isinstance(line, Edge):
                if line.rows != number or lines.read(1):
                    break
                return
            yield line
    raise msgspec.DecodeError("lines are missing")


def _continue(connection: Connection) -> None:
    """Make sequences continue after the imported numbers. Prepare the runs that were running at the
    time of the export, so that gateways close them.
    """
    if connection.dialect.name == "sqlite":
        connection.execute(LOGS.delete())  # the store begins a new log
        # A gateway closes the runs of its log when it starts.
        connection.exec_driver_sql("UPDATE runs SET log = 'log' WHERE status = 'running'")
        return
    for table in _TABLES.values():
        if (column := table.autoincrement_column) is not None:
            sequence = func.pg_get_serial_sequence(table.name, column.name)
            connection.execute(select(func.setval(sequence, func.max(column))))
    connection.exec_driver_sql(_LOST)
