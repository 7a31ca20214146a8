"""Whether a store is whole, and whether what stands in it agrees with itself.

Everything is read in one snapshot, so that a gateway may write meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Row, RowMapping, Table, exists, func, inspect, select
from sqlalchemy.exc import DBAPIError

from router.errors import StoreFailed
from router.store.database import Database, begin_snapshot
from router.store.gateways import database_time
from router.store.rows import call_of, run_of
from router.store.schema import CALLS, GATEWAYS, METADATA, RUNS, SCHEMA, SPENDING, USAGE_HOURS
from router.store.spending import COUNTS, MOST, periods, whole
from router.store.usage import hourly_usage
from router.trace.call import Call, sum_known
from router.trace.run import Run


class Problem(msgspec.Struct, frozen=True):
    """One thing that is not as it must be."""

    where: str
    """A table, or a row of it."""
    what: str
    """In plain words."""


_OF_RUN = "id", "tenant", "kind", "status", "started_at", "duration_s"


def check_run(row: Row[Any], calls: Sequence[RowMapping]) -> Iterator[Problem]:
    """What is wrong with a row of `runs` and the rows of all its calls."""
    where = f"run {row.run_id}"
    if row.status == "running":
        return
    for call in calls:
        if call["outcome"] == "open":
            yield Problem(where, f"has ended, but its call {call['number']} is still open")
        elif call["wasted_tokens"] != (wasted := call_of(call).wasted_tokens):
            told = f"call {call['number']} has wasted {wasted} tokens, but {call['wasted_tokens']} are booked"
            yield Problem(where, told)
    if row.trace is None:
        yield Problem(where, f"is {row.status}, but has no trace")
        return
    try:
        run = run_of(row)
    except StoreFailed:
        yield Problem(where, "its trace cannot be decoded")
        return
    if wrong := [name for name in _OF_RUN if getattr(run, name) != _recorded(row, name)]:
        yield Problem(where, f"its trace and its row differ in {', '.join(wrong)}")
    yield from _check_calls(where, run, [call_of(call) for call in calls if call["outcome"] != "open"])


def _recorded(row: Row[Any], name: str) -> object:
    return row.run_id if name == "id" else getattr(row, name)


def _check_calls(where: str, run: Run, booked: Sequence[Call]) -> Iterator[Problem]:
    told = {call.number: call for call in run.calls}
    rows = {call.number: call for call in booked}
    if missing := sorted(told.keys() - rows.keys()):
        yield Problem(where, f"its trace has calls that are not booked: {', '.join(map(str, missing))}")
    if unknown := sorted(rows.keys() - told.keys()):
        yield Problem(where, f"calls are booked that its trace does not have: {', '.join(map(str, unknown))}")
    for number in sorted(told.keys() & rows.keys()):
        of_trace, of_row = told[number], rows[number]
        if wrong := [name for name in Call.__struct_fields__ if getattr(of_trace, name) != getattr(of_row, name)]:
            yield Problem(where, f"call {number} is booked otherwise than its trace says: {', '.join(wrong)}")


_HOUR_S = 3600
_GROUPS = tuple(column.name for column in USAGE_HOURS.primary_key.columns)
_Key = tuple[Any, ...]


class Sums:
    """What runs and calls add up to."""

    def __init__(self) -> None:
        self._hours: dict[_Key, list[int | None]] = {}
        self._reserved: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._spent: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._oldest, self._longest = float("inf"), 0.0

    def add_run(self, row: Row[Any]) -> None:
        """A row of `runs`: what it holds for its answer."""
        self._oldest, self._longest = min(self._oldest, row.started_at), max(self._longest, row.duration_s)
        self._reserve(row.tenant, row.started_at, row.held_tokens, row.held_nano_usd)
        self._spend(row.tenant, row.started_at, requests=1)

    def add_open(self, call: Call) -> None:
        """A call that has not ended: what is reserved for it."""
        self._reserve(call.tenant, call.started_at, call.reserved.tokens, call.reserved.nano_usd or 0)

    def add_ended(self, calls: Sequence[Call]) -> None:
        """Calls that have ended: what they spent."""
        for call in calls:
            charged = call.charged
            self._spend(call.tenant, call.started_at, tokens=charged.tokens, nano_usd=charged.nano_usd or 0)
        for row in hourly_usage(calls):
            key, counts = tuple(row[name] for name in _GROUPS), [row[name] for name in COUNTS]
            known = self._hours.get(key, [None] * len(COUNTS))
            self._hours[key] = [sum_known([*pair]) for pair in zip(known, counts, strict=True)]  # type: ignore[list-item]

    def check_hours(self, connection: Connection) -> Iterator[Problem]:
        """What is wrong with `usage_hours`. Of hours whose runs are partly deleted, it may hold more."""
        whole_from = (self._oldest + self._longest) // _HOUR_S + 2
        summed = dict(self._hours)
        columns = [USAGE_HOURS.c[name] for name in (*_GROUPS, *COUNTS)]
        for row in connection.execution_options(yield_per=1000).execute(select(*columns)):
            key, booked = tuple(row[: len(_GROUPS)]), list(row[len(_GROUPS) :])
            counts = summed.pop(key, [0] * len(COUNTS))
            pairs = zip(COUNTS, counts, booked, strict=True)
            whole = row.hour >= whole_from
            if wrong := [name for name, count, sum_ in pairs if _differ(count, sum_, whole=whole)]:
                what = "not" if whole else "less than"
                yield Problem(_hour(key), f"is {what} what the calls add up to: {', '.join(wrong)}")
        for key in summed:
            yield Problem(_hour(key), "is missing, though there are calls of that hour")

    def check_spending(self, connection: Connection, now: float) -> Iterator[Problem]:
        """Find what is wrong with `spending`: reservations are those of what is under way; what is spent in the day and
        the month of `now`, which limits go by, may be more than runs and calls add up to, as runs are deleted, and
        never less.
        """
        reserved = dict(self._reserved)
        rows = {(row.tenant, row.period): row for row in connection.execute(select(SPENDING))}
        booked = {key: (row.reserved_tokens, row.reserved_nano_usd) for key, row in rows.items()}
        for key, spent in sorted(item for item in self._spent.items() if item[0][1] in periods(now)):
            of_row = {name: getattr(rows[key], name) if key in rows else 0 for name in spent}
            for name in (name for name, count in spent.items() if min(count, MOST) > of_row[name]):
                said = f"{name} is {of_row[name]}, less than the {spent[name]} of its runs and calls"
                yield Problem(f"spending of {key[0]}, {key[1]}", said)
        for key in sorted(reserved.keys() | booked.keys()):
            tokens, nano_usd = reserved.get(key, (0, 0))
            if (tokens, nano_usd) != (found := booked.get(key, (0, 0))):
                yield Problem(
                    f"spending of {key[0]}, {key[1]}",
                    f"{found[0]} tokens and {found[1]} nano-dollars are reserved, but open calls and answers to come "
                    f"reserve {tokens} and {nano_usd}",
                )

    def _reserve(self, tenant: str, at: float, tokens: int, nano_usd: int) -> None:
        for period in periods(at):
            known = self._reserved[tenant, period]
            self._reserved[tenant, period] = known[0] + tokens, known[1] + nano_usd

    def _spend(self, tenant: str, at: float, **counts: int) -> None:
        for period in periods(at):
            self._spent[tenant, period].update(counts)


def _differ(count: int | None, booked: int | None, *, whole: bool) -> bool:
    return count != booked if whole else (count or 0) > (booked or 0)


def _hour(key: _Key) -> str:
    named = dict(zip(_GROUPS, key, strict=True))
    version = f" {named['executor_version']}" if named["executor_version"] else ""
    what = f"{named['role']} {named['model']}{version} at {named['deployment']}"
    return f"usage of {named['tenant']} in the hour {named['hour']} ({what})"


_PIECE = 100
"""Runs that are read at once."""
_SILENT_S = 60.0
Progress = Callable[[int, int], None]
"""How many runs have been read, of how many."""


class Checked(msgspec.Struct):
    """What was looked at, and what was found."""

    schema: str = ""
    """The number of its tables."""
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
        checked.schema = ", ".join(map(str, connection.scalars(select(SCHEMA.c.number))))
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
