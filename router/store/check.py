"""The check of a store: is it whole, and does what stands in it agree with itself?

Everything is read in one snapshot, so that a gateway may write meanwhile.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, RowMapping, exists, func, inspect, select
from sqlalchemy.exc import DBAPIError

from router.errors import StoreFailed
from router.store.database import Database, begin_snapshot
from router.store.quotas import Period, periods
from router.store.rows import call_of, run_of
from router.store.schema import CALLS, GROUPS, METADATA, RUNS, SCHEMA_NUMBER, SPENDING, USAGE_HOURS
from router.store.usage import HOUR_S, hourly_usage
from router.trace import Call
from router.trace.call import SUMS, UsageSums, added

_PIECE = 100
"""Runs that are read at once."""
_OF_RUN = "id", "tenant", "kind", "status", "started_at", "duration_s"
Progress = Callable[[int, int], None]
"""Gets how many runs have been read, and of how many."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is not as it must be."""

    where: str
    """A table, or a row of it."""
    what: str
    """In plain words."""


class Checked(msgspec.Struct):
    """The outcome of a check."""

    schema: str = str(SCHEMA_NUMBER)
    """The number of its tables."""
    runs: int = 0
    calls: int = 0
    problems: list[Problem] = []


async def check(database: Database, progress: Progress = lambda _done, _total: None) -> Checked:
    """Look at everything. Raises `StoreFailed` where there is nothing to be seen at all."""
    return await database.read(partial(_check, progress=progress))


def _check(connection: Connection, progress: Progress) -> Checked:
    begin_snapshot(connection)
    checked, sums = Checked(), _Sums()
    try:
        for part in (_check_file, _check_tables, _check_references):
            checked.problems += part(connection)
        total = connection.execute(select(func.count()).select_from(RUNS)).scalar_one()
        for runs, calls in _pieces(connection):
            checked.problems += _check_piece(runs, calls, sums)
            checked.runs += len(runs)
            checked.calls += sum(map(len, calls.values()))
            progress(checked.runs, total)
        checked.problems += _check_hours(connection, sums)
        checked.problems += _check_spending(connection, sums)
    except DBAPIError as error:
        checked.problems.append(Problem("database", f"cannot be read any further: {error.orig}"))
    return checked


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
        there = {item["name"] for item in (*found.get_columns(table.name), *found.get_indexes(table.name))}
        for name in sorted({*table.c.keys(), *(str(index.name) for index in table.indexes)} - there):
            yield Problem(f"table {table.name}", f"has no {name}")


def _check_references(connection: Connection) -> Iterator[Problem]:
    for table in METADATA.sorted_tables:
        for key in table.foreign_keys:
            lost = select(func.count()).select_from(table)
            lost = lost.where(key.parent.is_not(None), ~exists().where(key.column == key.parent))
            if count := connection.execute(lost).scalar_one():
                yield Problem(f"table {table.name}", f"{count} rows are of {key.column.table.name} that are not there")


def _pieces(connection: Connection) -> Iterator[tuple[Sequence[Row[Any]], dict[str, list[RowMapping]]]]:
    """All runs by their identifiers, and the calls of each, some at a time."""
    after = ""
    while rows := connection.execute(
        select(RUNS).where(RUNS.c.run_id > after).order_by(RUNS.c.run_id).limit(_PIECE)
    ).all():
        within = CALLS.c.run_id > after, CALLS.c.run_id <= rows[-1].run_id
        calls: dict[str, list[RowMapping]] = {row.run_id: [] for row in rows}
        for call in connection.execute(select(CALLS).where(*within)).mappings():
            calls.setdefault(call["run_id"], []).append(call)
        yield rows, calls
        after = rows[-1].run_id


class _Sums:
    """The sums that runs and calls come to."""

    def __init__(self) -> None:
        self.hours: dict[tuple[Any, ...], UsageSums] = {}
        """By the values of `GROUPS`."""
        self.spent: dict[Period, Counter[str]] = defaultdict(Counter)
        self.oldest, self.longest = float("inf"), 0.0

    def add_run(self, row: Row[Any]) -> None:
        """Add a row of `runs` that has ended."""
        self.oldest, self.longest = min(self.oldest, row.started_at), max(self.longest, row.duration_s)
        self._spend(row.tenant, row.started_at, requests=1)

    def add_calls(self, calls: Sequence[Call]) -> None:
        """Add calls that have ended: what they spent."""
        for call in calls:
            charged = call.charged
            self._spend(call.tenant, call.started_at, tokens=charged.tokens, nano_usd=charged.nano_usd or 0)
        for row in hourly_usage(calls):
            key, sums = tuple(row[name] for name in GROUPS), UsageSums(**{name: row[name] for name in SUMS})
            self.hours[key] = UsageSums(**added([self.hours.get(key, UsageSums()), sums]))

    def _spend(self, tenant: str, at: float, **counts: int) -> None:
        for period in periods(at):
            self.spent[tenant, period].update(counts)


def _check_piece(runs: Sequence[Row[Any]], calls: dict[str, list[RowMapping]], sums: _Sums) -> Iterator[Problem]:
    for run in runs:
        ended: list[Call] = []
        for row in calls[run.run_id]:
            try:
                call = call_of(row)
            except StoreFailed as error:
                yield Problem(f"run {run.run_id}", str(error))
                continue
            ended.append(call)
            if row["wasted_tokens"] != (wasted := call.wasted_tokens):
                what = f"call {call.number} has wasted {wasted} tokens, but {row['wasted_tokens']} are booked"
                yield Problem(f"run {run.run_id}", what)
        sums.add_calls(ended)
        if run.status != "running":
            sums.add_run(run)
            yield from _check_trace(run, ended)


def _check_trace(row: Row[Any], booked: Sequence[Call]) -> Iterator[Problem]:
    where = f"run {row.run_id}"
    if row.trace is None:
        yield Problem(where, f"is {row.status}, but has no trace")
        return
    try:
        run = run_of(row)
    except StoreFailed:
        yield Problem(where, "its trace cannot be decoded")
        return
    recorded = {"id": row.run_id, **row._mapping}
    if wrong := [name for name in _OF_RUN if getattr(run, name) != recorded[name]]:
        yield Problem(where, f"its trace and its row differ in {', '.join(wrong)}")
    traced, rows = ({call.number: call for call in calls} for calls in (run.calls, booked))
    if missing := sorted(traced.keys() - rows.keys()):
        yield Problem(where, f"its trace has calls that are not booked: {', '.join(map(str, missing))}")
    if unknown := sorted(rows.keys() - traced.keys()):
        yield Problem(where, f"calls are booked that its trace does not have: {', '.join(map(str, unknown))}")
    for number in sorted(traced.keys() & rows.keys()):
        one, other = (msgspec.structs.asdict(calls[number]) for calls in (traced, rows))
        if wrong := [name for name in one if one[name] != other[name]]:
            yield Problem(where, f"call {number} is booked otherwise than its trace says: {', '.join(wrong)}")


def _check_hours(connection: Connection, sums: _Sums) -> Iterator[Problem]:
    """Hours whose runs are partly deleted may hold more than the calls add up to."""
    exact_from = (sums.oldest + sums.longest) // HOUR_S + 2
    missing = dict(sums.hours)
    columns = [USAGE_HOURS.c[name] for name in (*GROUPS, *SUMS)]
    for row in connection.execution_options(yield_per=1000).execute(select(*columns)):
        key, booked = tuple(row[: len(GROUPS)]), row[len(GROUPS) :]
        exact, found = row.hour >= exact_from, missing.pop(key, UsageSums())
        counts = zip(SUMS, msgspec.structs.astuple(found), booked, strict=True)
        wrong = [name for name, one, other in counts if (one != other if exact else (one or 0) > (other or 0))]
        if wrong:
            what = f"is {'not' if exact else 'less than'} what the calls add up to: {', '.join(wrong)}"
            yield Problem(_hour(key), what)
    for key in missing:
        yield Problem(_hour(key), "is missing, though there are calls of that hour")


def _hour(key: tuple[Any, ...]) -> str:
    tenant, hour, role, model, deployment, version = key
    return f"usage of {tenant} in the hour {hour} ({' '.join(filter(None, (role, model, version)))} at {deployment})"


def _check_spending(connection: Connection, sums: _Sums) -> Iterator[Problem]:
    """Tell of less spent in this day and month, which limits go by, than runs and calls add up to. It may be more, as
    runs are deleted.
    """
    rows = {(row.tenant, row.period): row for row in connection.execute(select(SPENDING))}
    for key, spent in sorted(item for item in sums.spent.items() if item[0][1] in periods(time.time())):
        for name, count in spent.items():
            if count > (found := int(getattr(rows.get(key), name, 0))):
                what = f"{name} is {found}, less than the {count} of its runs and calls"
                yield Problem(f"spending of {key[0]}, {key[1]}", what)
