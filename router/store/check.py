"""Whether a store is whole, and whether what stands in it agrees with itself.

Everything is read in one snapshot, so that a gateway may write meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from alembic.migration import MigrationContext
from sqlalchemy import BigInteger, Column, Connection, Row, RowMapping, Table, exists, func, inspect, select
from sqlalchemy.exc import DBAPIError

from router.store.call_row import call_of
from router.store.check_run import check_run
from router.store.check_sums import Sums
from router.store.database import Database
from router.store.gateways import database_time
from router.store.problem import Problem
from router.store.schema import CALLS, GATEWAYS, METADATA, RUNS, SPENDING, USAGE_HOURS
from router.store.snapshot import begin_snapshot
from router.store.sums import whole

_PIECE = 100
"""Runs that are read at once."""
_SILENT_S = 60.0
Progress = Callable[[int, int], None]
"""How many runs have been read, of how many."""


class Checked(msgspec.Struct):
    """What was looked at, and what was found."""

    schema: str = ""
    """The revision of its tables."""
    runs: int = 0
    calls: int = 0
    problems: list[Problem] = []


async def check(database: Database, progress: Progress = lambda _done, _total: None) -> Checked:
    """Look at everything. Raises `StoreFailed` where there is nothing to be seen at all."""
    return await database.read(partial(_check, progress=progress))


def _check(connection: Connection, progress: Progress) -> Checked:
    begin_snapshot(connection)
    now = database_time(connection)
    checked, sums = Checked(), Sums()
    try:
        checked.problems += _check_gateways(connection, now)
        checked.schema = ", ".join(MigrationContext.configure(connection).get_current_heads())
        for part in (_check_file, _check_tables, _check_references, _check_counts):
            checked.problems += part(connection)
        for rows, calls in _pieces(connection, progress):
            _check_piece(rows, calls, checked, sums)
        checked.problems += sums.check_hours(connection)
        checked.problems += sums.check_spending(connection, now)
    except DBAPIError as error:
        checked.problems.append(Problem("database", f"cannot be read any further: {error.orig}"))
    return checked


def _check_gateways(connection: Connection, now: float) -> Iterator[Problem]:
    alive = select(GATEWAYS.c.gateway_id).where(GATEWAYS.c.seen_at >= now - _SILENT_S)
    lost = select(RUNS.c.run_id).where(RUNS.c.status == "running", RUNS.c.gateway_id.not_in(alive))
    for run_id in connection.scalars(lost):
        yield Problem(f"run {run_id}", "is running, but its gateway is silent; the next one to start will close it")


def _check_file(connection: Connection) -> Iterator[Problem]:
    """PostgreSQL has nothing of the kind that a client could ask for."""
    if connection.dialect.name == "sqlite":
        for line in connection.exec_driver_sql("PRAGMA integrity_check").scalars():
            if line != "ok":
                yield Problem("database", line)


def _check_tables(connection: Connection) -> Iterator[Problem]:
    found = inspect(connection)
    for table in METADATA.sorted_tables:
        if not found.has_table(table.name):
            yield Problem(f"table {table.name}", "is missing")
            continue
        columns = {column["name"] for column in found.get_columns(table.name)}
        indexes = {index["name"] for index in found.get_indexes(table.name)}
        for name in sorted({column.name for column in table.columns} - columns):
            yield Problem(f"table {table.name}", f"has no column {name}")
        for name in sorted({str(index.name) for index in table.indexes} - indexes):
            yield Problem(f"table {table.name}", f"has no index {name}")


def _check_references(connection: Connection) -> Iterator[Problem]:
    for table in METADATA.sorted_tables:
        for key in table.foreign_keys:
            there = exists().where(key.column == key.parent)
            lost = select(func.count()).select_from(table).where(key.parent.is_not(None), ~there)
            if count := connection.execute(lost).scalar_one():
                yield Problem(f"table {table.name}", f"{count} rows are of {key.column.table.name} that are not there")


def _check_counts(connection: Connection) -> Iterator[Problem]:
    """Counts that cannot be, as older releases booked them where an engine said so."""
    for table in (CALLS, USAGE_HOURS, SPENDING):
        keys = [*table.primary_key.columns]
        for column in table.columns:
            if isinstance(column.type, BigInteger) and column not in keys:
                wrong = select(*keys, column, whole(column)).where(column != whole(column)).order_by(*keys)
                for *key, found, counted in connection.execute(wrong):
                    row = ", ".join(str(part) for part in key if part != "")
                    said = f"{row}: {column.name} is {found}, which cannot be, and counts as {counted}"
                    yield Problem(f"table {table.name}", said)


def _pieces(connection: Connection, progress: Progress) -> Iterator[tuple[Sequence[Row[Any]], Sequence[RowMapping]]]:
    """All runs by their identifiers, with all their calls, some at a time."""
    total = connection.execute(select(func.count()).select_from(RUNS)).scalar_one()
    after, done = "", 0
    while rows := connection.execute(
        select(RUNS).where(RUNS.c.run_id > after).order_by(RUNS.c.run_id).limit(_PIECE)
    ).all():
        within = CALLS.c.run_id > after, CALLS.c.run_id <= rows[-1].run_id
        yield rows, connection.execute(select(CALLS).where(*within)).mappings().all()
        after, done = rows[-1].run_id, done + len(rows)
        progress(done, total)


def _check_piece(rows: Sequence[Row[Any]], calls: Sequence[RowMapping], checked: Checked, sums: Sums) -> None:
    of_run: dict[str, list[RowMapping]] = {row.run_id: [] for row in rows}
    for call in calls:
        if wrong := _misfits(CALLS, call):
            said = f"its call {call['number']} holds what cannot be in {', '.join(wrong)}"
            checked.problems.append(Problem(f"run {call['run_id']}", said))
        else:
            of_run.setdefault(call["run_id"], []).append(call)
    sound = [call for each in of_run.values() for call in each]
    for call in sound:
        if call["outcome"] == "open":
            sums.add_open(call_of(call))
    sums.add_ended([call_of(call) for call in sound if call["outcome"] != "open"])
    for row in rows:
        if wrong := _misfits(RUNS, row._mapping):
            checked.problems.append(Problem(f"run {row.run_id}", f"holds what cannot be in {', '.join(wrong)}"))
        else:
            checked.problems += check_run(row, of_run[row.run_id])
            sums.add_run(row)
    checked.runs += len(rows)
    checked.calls += len(calls)


def _misfits(table: Table, row: RowMapping) -> list[str]:
    """Columns that hold something of another kind than is meant for them, which SQLite does not mind."""
    found = [column.name for column in table.columns if not _fits(column, row[column.name])]
    if not found and "counted" in row and row["counted"] not in (None, "impossible"):
        found = [name for name in ("prompt_tokens", "completion_tokens") if row[name] is None]
    return found


def _fits(column: Column[Any], value: object) -> bool:
    kind = column.type.python_type
    return bool(column.nullable) if value is None else isinstance(value, int | float if kind is float else kind)
