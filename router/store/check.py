"""Check of a database. It finds missing tables and rows. It also finds runs whose trace (the stored
result, events and calls) differs from the rows in the tables `runs` and `calls`.

Everything is read in one snapshot, so a gateway may write during the check. The hourly sums of
calls are not checked, because they are always written in one transaction with the calls.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, RowMapping, exists, func, inspect, select
from sqlalchemy.exc import DBAPIError

from router.errors import StoreFailed
from router.frozen import Frozen
from router.store.database import Database, begin_snapshot
from router.store.schema import CALLS, METADATA, RUNS, SCHEMA_NUMBER, call_row, run_of

_PIECE = 100
"""Number of runs that are read in one query."""
_OF_RUN = "id", "tenant", "kind", "status", "started_at", "duration_s"
Progress = Callable[[int, int], None]
"""A function that takes the number of runs checked so far, and the number of all runs."""


class Problem(Frozen):
    """A problem in a database."""

    where: str
    """The table or run that has the problem, such as `table calls` or `run run-1`."""
    what: str
    """The problem in words."""


class Checked(msgspec.Struct):
    """Result of a check."""

    schema: str = str(SCHEMA_NUMBER)
    """Number of the database schema."""
    runs: int = 0
    """Number of runs that were checked."""
    calls: int = 0
    """Number of calls that were checked."""
    problems: list[Problem] = []


async def check(database: Database, progress: Progress = lambda _done, _total: None) -> Checked:
    """Check a database, and return all problems. Raises `StoreFailed` if nothing can be read."""
    return await database.read(_check, progress)


def _check(connection: Connection, progress: Progress) -> Checked:
    begin_snapshot(connection)
    checked = Checked()
    try:
        for part in (_check_file, _check_tables, _check_references):
            checked.problems += part(connection)
        total = connection.execute(select(func.count()).select_from(RUNS)).scalar_one()
        in_order = select(RUNS).order_by(RUNS.c.run_id).execution_options(yield_per=_PIECE)
        for rows in connection.execute(in_order).partitions():
            calls: dict[str, dict[int, RowMapping]] = defaultdict(dict)
            of_these = select(CALLS).where(CALLS.c.run_id.in_([row.run_id for row in rows]))
            for call in connection.execute(of_these).mappings():
                calls[call["run_id"]][call["number"]] = call
                checked.calls += 1
            for row in rows:
                checked.problems += [
                    Problem(f"run {row.run_id}", what)
                    for what in _check_run(row, calls[row.run_id])
                ]
            checked.runs += len(rows)
            progress(checked.runs, total)
    except DBAPIError as error:
        checked.problems.append(Problem("database", f"cannot be read any further: {error.orig}"))
    return checked


def _check_file(connection: Connection) -> Iterator[Problem]:
    """Check the file of a SQLite database. PostgreSQL offers clients no such check."""
    if connection.dialect.name == "sqlite":
        for line in connection.exec_driver_sql("PRAGMA integrity_check").scalars():
            if line != "ok":
                yield Problem("database", line)


def _check_tables(connection: Connection) -> Iterator[Problem]:
    inspector = inspect(connection)
    for table in METADATA.sorted_tables:
        if not inspector.has_table(table.name):
            yield Problem(f"table {table.name}", "is missing")
            continue

        items = (*inspector.get_columns(table.name), *inspector.get_indexes(table.name))
        expected = {*table.c.keys(), *(str(index.name) for index in table.indexes)}
        for name in sorted(expected - {item["name"] for item in items}):
            yield Problem(f"table {table.name}", f"has no column or index {name}")


def _check_references(connection: Connection) -> Iterator[Problem]:
    for table in METADATA.sorted_tables:
        for key in table.foreign_keys:
            lost = select(func.count()).select_from(table)
            lost = lost.where(key.parent.is_not(None), ~exists().where(key.column == key.parent))
            if count := connection.execute(lost).scalar_one():
                yield Problem(
                    f"table {table.name}",
                    f"{count} rows refer to missing rows of {key.column.table.name}",
                )


def _check_run(row: Row[Any], booked: dict[int, RowMapping]) -> Iterator[str]:
    if row.status == "running":
        return
    if row.trace is None:
        yield f"is {row.status}, but its trace (texts and calls) is missing"
        return
    try:
        run = run_of(row)
    except StoreFailed:
        yield "the trace is damaged, so the run's result and texts cannot be read"
        return

    recorded = {"id": row.run_id, **row._mapping}
    if wrong := [name for name in _OF_RUN if getattr(run, name) != recorded[name]]:
        yield f"its trace and its row in the table runs differ in {', '.join(wrong)}"
    traced = {call.number: call_row(call) for call in run.calls}
    for number, call in sorted(traced.items()):
        if number not in booked:
            yield f"call {number} is in its trace, but not in the table calls"
        elif wrong := [name for name, value in call.items() if booked[number][name] != value]:
            yield f"call {number}: the trace and the table calls differ in {', '.join(wrong)}"
    for number in sorted(booked.keys() - traced):
        yield f"call {number} is in the table calls, but not in its trace"
