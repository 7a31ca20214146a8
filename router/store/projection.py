"""Writing of the runs in a log as rows of a database (the projection).

Changes are written in batches, in the order of the log. Each transaction also writes the log's
place: the position in the log after the batch's last change. Changes at or before the stored place
are skipped. So every run counts exactly once in the sums: after a crash, the log is read again, and
a batch that was committed before is not written again.

A row is written when a run begins. When the run has ended, its final row, its calls and its sums
are written. In a shared PostgreSQL database, the row of a run is written before its first record in
the log. Another gateway may close the run before the end of the run is written. Then the run stays
closed, and only its calls are added.

Rows are passed to the driver directly, because SQLAlchemy's own layer takes several times as long
as the database.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Any

from msgspec.structs import replace
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Table,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    null,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from router.ledger import RunStart
from router.store.database import storable
from router.store.log import Position
from router.store.names import Name, name_of
from router.store.quotas import Period, Tally, add_spent, counted
from router.store.records import Begun, Change, RecordedRun, cancelled, withheld
from router.store.schema import (
    CALLS,
    KEY_GROUPS,
    LEASES,
    LOGS,
    RUNS,
    SPENDING,
    TENANTS,
    USAGE_HOURS,
    USAGE_KEY_HOURS,
    call_row,
    found_by,
    struct_of,
    trace_of,
)
from router.store.usage import hourly_usage
from router.trace import Call
from router.trace.redaction import redacted

Row = dict[str, Any]


def project(connection: Connection, log: str, changes: Sequence[Change]) -> set[str]:
    """Write changes in the transaction of `connection`, and store the position after the last
    change as the log's place. Changes that were written before are skipped. `log`: name of the log.
    Return the identifiers of the runs that other gateways have closed.
    """
    place = place_of(connection, log)
    last = changes[-1].position
    closed = set[str]()
    if connection.dialect.name == "postgresql":
        changes = list(_as_they_stand(connection, changes, place, closed))
    else:
        changes = [change for change in changes if change.position > place]
    if changes:
        write(connection, log, changes)
    if last > place:
        keep_place(connection, log, last)
    return closed


def _as_they_stand(
    connection: Connection,
    changes: Sequence[Change],
    place: Position,
    closed: set[str],
) -> Iterator[Change]:
    """Yield the changes that must be written to a PostgreSQL database, where each run has had a row
    since it began. If another gateway has closed a run, add the run's identifier to `closed`, and
    yield the run without its answer and with the status `interrupted`. If the cancellation of an
    interrupted run was requested, yield the run with the status `cancelled`.
    """
    ids = [change.start.id for change in changes]
    wanted = (
        select(RUNS.c.run_id, RUNS.c.status, RUNS.c.request_id, RUNS.c.cancel_requested)
        .where(RUNS.c.run_id.in_(ids))
        .with_for_update()
    )
    rows = {row.run_id: row for row in connection.execute(wanted)}
    for change in changes:
        row = rows.get(change.start.id)
        run = change.run
        if change.forgotten and row and row.status == "running":
            yield change
        if run is None:
            continue
        if row is None or row.status not in ("running", run.status):
            closed.add(run.id)
            run = withheld(run, "interrupted", "")
        if row and row.cancel_requested and run.status == "interrupted":
            run = cancelled(run)
        if change.position > place:
            name = row.request_id if row else None
            yield change._replace(start=replace(change.start, request_id=name or ""), run=run)


def write(connection: Connection, log: str, changes: Sequence[Change]) -> None:
    """Write changes, in the transaction of `connection`. A run is counted as a request of its
    tenant when it ends, or with PostgreSQL already when it begins.
    """
    counts_first = connection.dialect.name == "postgresql"
    spent = defaultdict[Period, Tally](Tally)
    for change in changes:
        if counts_first == (change.run is None):
            for period in counted(change.start):
                spent[period].requests += -1 if change.forgotten else 1
    calls = list(ended_calls(changes))
    add_spent(spent, calls)

    rows = _run_rows(changes, log)
    named = [{f"_{name}": row[name] for name in _NAMED} for row in rows if row["request_id"]]
    _do(connection, _RELEASE, named)
    put(connection, RUNS, rows)
    put(connection, CALLS, list(map(call_row, calls)))
    put(connection, USAGE_HOURS, hourly_usage(calls), adds=True)
    put(connection, USAGE_KEY_HOURS, hourly_usage(calls, KEY_GROUPS), adds=True)

    sums = [
        dict(zip(_SPENDING, (*key, tally.requests, tally.tokens, tally.nano_usd), strict=True))
        for key, tally in spent.items()
    ]
    put(connection, SPENDING, sums, adds=True)
    if counts_first:
        paid = [row for row in sums if row["tokens"] or row["nano_usd"]]
        from_lease = [{"_log": log} | {f"_{name}": row[name] for name in row} for row in paid]
        _do(connection, _SPEND_LEASE, from_lease)

    forgotten = [{"_run_id": change.start.id} for change in changes if change.forgotten]
    _do(connection, _FORGET, forgotten)


def put(connection: Connection, table: Table, rows: Sequence[Row], *, adds: bool = False) -> None:
    """Insert rows, in the transaction of `connection`. They replace rows with the same keys.

    `adds`: True to add the values of the rows to the values of stored rows with the same keys. If
    only one of two values is null, it counts as 0; if both are null, the sum is null.
    """
    _do(connection, _putting(table, connection.dialect.name, adds), rows)


def _do(connection: Connection, statement: Any, rows: Sequence[Row]) -> None:
    if rows:
        with closing(connection.connection.cursor()) as cursor:
            cursor.executemany(_text(statement, connection.dialect, tuple(rows[0])), rows)


def ended_among(connection: Connection, run_ids: list[str]) -> set[str]:
    """Return the identifiers in `run_ids` whose runs have ended, according to the database. A run
    without calls does not count as ended if it is interrupted, or if its cancellation was
    requested: another gateway may have closed such a run without knowing the run's calls.
    """
    known = exists().where(CALLS.c.run_id == RUNS.c.run_id)
    closed = (RUNS.c.status == "interrupted") | RUNS.c.cancel_requested
    ended = (RUNS.c.status != "running") & (~closed | known)
    return set(connection.scalars(select(RUNS.c.run_id).where(RUNS.c.run_id.in_(run_ids), ended)))


def cancelled_among(connection: Connection, run_ids: list[str]) -> set[str]:
    """Return the identifiers in `run_ids` whose runs were cancelled."""
    wanted = RUNS.c.run_id.in_(run_ids) & (RUNS.c.status == "cancelled")
    return set(connection.scalars(select(RUNS.c.run_id).where(wanted)))


def left_over(connection: Connection, name: str) -> dict[str, RecordedRun]:
    """Return the runs of the log `name` that have the status `running` in the database, by
    identifier.
    """
    redact = (
        select(TENANTS.c.redact)
        .where(TENANTS.c.name == RUNS.c.tenant)
        .scalar_subquery()
        .label("redact")
    )
    wanted = select(RUNS, redact).where(RUNS.c.status == "running", RUNS.c.log == name)
    runs = dict[str, RecordedRun]()
    for row in connection.execute(wanted).mappings():
        start = struct_of(RunStart, row, id=row["run_id"], request_id=row["request_id"] or "")
        run = RecordedRun(Begun(start, bool(row["redact"])))
        run.cancelled = row["cancel_requested"]
        runs[start.id] = run
    return runs


def put_leases(connection: Connection, log: str, leases: Mapping[Period, Sequence[int]]) -> None:
    """Write the leases of the gateway with the log `log`, and delete its leases with both amounts
    0. `leases`: for each account and period, the amounts in tokens and in billionths of a dollar.
    """
    rows = [dict(zip(_LEASE, (*key, log, *lease), strict=True)) for key, lease in leases.items()]
    put(connection, LEASES, rows)
    connection.execute(
        LEASES.delete().where(LEASES.c.log == log, LEASES.c.tokens == 0, LEASES.c.nano_usd == 0)
    )


def ended_calls(changes: Iterable[Change]) -> Iterator[Call]:
    """Yield the calls of all runs that have ended according to these changes."""
    for change in changes:
        if change.run:
            yield from change.run.calls


def changed(changes: Sequence[Change]) -> Iterator[Period]:
    """Yield the keys (account and period) of all rows in `spending` to which `changes` add."""
    for change in changes:
        yield from counted(change.start)
        for call in change.run.calls if change.run else ():
            yield from counted(call)


def place_of(connection: Connection, log: str) -> Position:
    """Return the place of a log: the database has all changes up to this position. Return the start
    of the log if the database has no place for it.
    """
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute(_text(_PLACE, connection.dialect, ()), {"_log": log})
        row = cursor.fetchone()
    return Position(*row) if row else Position()


def keep_place(connection: Connection, log: str, place: Position) -> None:
    """Write the place of a log, unless the stored place is further in the log."""
    place = max(place, place_of(connection, log))
    row = {"log": log, "segment": place.segment, "bytes": place.offset}
    put(connection, LOGS, [row])


def _run_rows(changes: Sequence[Change], log: str) -> list[Row]:
    """Return the rows of the runs in `changes`. If several runs of a tenant have the same
    `request_id`, only the run that began last keeps it.
    """
    rows = dict[str, Row]()
    owners = dict[Name, str]()
    for change in changes:
        name = name_of(change.start)
        run_id = change.start.id
        if change.forgotten:
            rows.pop(run_id, None)
            continue
        rows[run_id] = _run_row(change, log)
        if change.run is None or name not in owners:
            owners[name] = run_id
    for run_id, row in rows.items():
        if owners.get((row["tenant"], row["request_id"]), run_id) != run_id:
            row["request_id"] = None
    return list(rows.values())


def _run_row(change: Change, log: str) -> Row:
    start = change.start
    run = change.run
    request = start.request
    if run and run.question not in ("", request):
        request = f"{run.question} (asked: {request})"
    if run and change.redact:
        run = redacted(run)
    return {
        "run_id": start.id,
        **{
            name: getattr(start, name)
            for name in ("tenant", "key_id", "kind", "fingerprint", "started_at")
        },
        "request_id": storable(start.request_id) or None,
        "request": "" if change.redact else storable(request),
        **found_by(run),
        "log": log,
        "cancel_requested": False,
        "trace": trace_of(run) if run else None,
    }


_SPENDING = SPENDING.c.keys()
_LEASE = LEASES.c.keys()
_OF_LEASE = (LEASES.c[name] == bindparam(f"_{name}") for name in ("tenant", "period", "log"))
_REST = {
    name: func.greatest(literal_column("0"), LEASES.c[name] - bindparam(f"_{name}"))
    for name in ("tokens", "nano_usd")
}
_SPEND_LEASE = LEASES.update().where(*_OF_LEASE).values(_REST)
_NAMED = "tenant", "request_id", "run_id"
_OF_NAME = RUNS.c.tenant == bindparam("_tenant"), RUNS.c.request_id == bindparam("_request_id")
_RELEASE = (
    RUNS.update().where(*_OF_NAME, RUNS.c.run_id != bindparam("_run_id")).values(request_id=null())
)
"""Removes a `request_id` from the run that had it before."""
_PLACE = select(LOGS.c.segment, LOGS.c.bytes).where(LOGS.c.log == bindparam("_log"))
_FORGET = RUNS.delete().where(RUNS.c.run_id == bindparam("_run_id"))


@cache
def _putting(table: Table, dialect: str, adds: bool) -> Any:
    """Return the statement of `put`."""
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)
    values = dict[str, Any]()
    for column in table.c:
        if not column.primary_key:
            new = insert.excluded[column.name]
            values[column.name] = _sum(column, new) if adds else new
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=values)


def _sum(column: Column[Any], more: ColumnElement[Any]) -> ColumnElement[Any]:
    known = func.coalesce(column, literal_column("0")) + more
    return case((more.is_(None), column), else_=known) if column.nullable else column + more


@cache
def _text(statement: Any, dialect: Dialect, columns: tuple[str, ...]) -> str:
    return str(statement.compile(dialect=dialect, column_keys=columns))
