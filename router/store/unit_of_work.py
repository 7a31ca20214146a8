"""A unit of work: what a batch of operations reads, and what they change, within one transaction.

Its statements go straight to the driver: for what happens many times a second, SQLAlchemy's part would take several
times as long as the database's.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Dialect, Table, bindparam, case, func, literal_column, null
from sqlalchemy.dialects import postgresql, sqlite

from router.access import Spent, Tenant
from router.amount import NOTHING, Amount
from router.errors import StoreFailed
from router.ledger import RunStart
from router.store.database import storable
from router.store.rows import ENDED_CALL, ended_row, opened_row
from router.store.schema import CALLS, RUNS, SPENDING, TENANTS, USAGE_HOURS
from router.store.spending import Period, Spending, Tally, periods
from router.store.usage import hourly_usage
from router.trace import Call
from router.trace.call import OpenedCall
from router.trace.run import RunStatus

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reads:
    """The rows that an operation has to know: they are locked and read before the batch begins."""

    tenant: str | None = None
    """None for what concerns no tenant."""
    run_id: str | None = None
    request_id: str = ""
    spends_at: tuple[float, ...] = ()
    """Unix times at which it would spend or reserve something."""
    open_calls: bool = False
    """True where it needs to know the run's open calls."""
    all_calls: bool = False
    """True where it needs to know which of the run's calls are on record."""


@dataclass(slots=True)
class KnownRun:
    """A run, as it stands by now."""

    run_id: str
    tenant: str
    request_id: str | None
    fingerprint: str
    status: RunStatus
    started_at: float
    held: Amount


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that has not ended by now."""

    tenant: str
    started_at: float
    reserved: Amount


class UnitOfWork:
    """Reads under the locks of all tenants concerned, so that nobody else changes what is read before it is written."""

    def __init__(self, connection: Connection, gateway_id: str, reads: Sequence[Reads]) -> None:
        """`gateway_id`: whose runs begin here."""
        self.connection, self.gateway_id = connection, gateway_id
        self._changes: dict[str, list[Row]] = {name: [] for name in _WRITES}
        self._settled: list[Call] = []
        names = {each.tenant for each in reads if each.tenant is not None}
        if names and connection.dialect.name == "postgresql":  # SQLite has one writer at a time
            connection.exec_driver_sql(_LOCK, {"tenants": list(names)})
        self._tenants = _tenants(connection, names)
        self._runs = _runs(connection, reads)
        self._by_request = {(run.tenant, run.request_id): run for run in self._runs.values() if run.request_id}
        self._open = _open_calls(connection, {each.run_id for each in reads if each.open_calls})
        all_calls = {each.run_id for each in reads if each.all_calls}
        self._on_record = {tuple(row) for row in _NUMBERS.rows(connection, all_calls)}
        self.spending = Spending(_spending(connection, self._tenants, reads))
        counted = [name for name, tenant in self._tenants.items() if tenant.runs_in_flight is not None]
        self.in_flight: Counter[str] = Counter(dict(_IN_FLIGHT.rows(connection, counted)))
        """Running runs of the tenants that have a limit of them."""

    def tenant(self, name: str) -> Tenant:
        """Its settings; without any, nothing is limited."""
        return self._tenants.get(name) or Tenant(name)

    def run(self, run_id: str) -> KnownRun | None:
        """A run that the batch concerns."""
        return self._runs.get(run_id)

    def running(self, run_id: str) -> KnownRun:
        """The same. Raises `StoreFailed` where it is not running any more."""
        run = self._runs.get(run_id)
        if run is None or run.status != "running":
            raise StoreFailed(
                f"Run {run_id} is not running any more: another gateway took this one for dead, or it was deleted."
            )
        return run

    def run_of_request(self, tenant: str, request_id: str) -> KnownRun | None:
        """The run that has a client's `request_id`."""
        return self._by_request.get((tenant, storable(request_id)))

    def release_request_id(self, run: KnownRun) -> None:
        """Let the `request_id` of a run be used again."""
        self._changes["release"].append({"_run_id": run.run_id})
        self._by_request.pop((run.tenant, run.request_id or ""), None)
        run.request_id = None

    def begin(self, start: RunStart) -> None:
        """Put a run on record."""
        request_id = storable(start.request_id) or None
        run = KnownRun(start.id, start.tenant, request_id, start.fingerprint, "running", start.started_at, start.hold)
        self._runs[start.id] = run
        if request_id:
            self._by_request[start.tenant, request_id] = run
        self.in_flight[start.tenant] += 1
        self.spending.reserve(start.tenant, start.started_at, start.hold)
        fields = msgspec.structs.asdict(start)
        row = {
            **{name: fields[name] for name in ("tenant", "key_id", "kind", "fingerprint", "started_at")},
            **_held(start.hold),
            "run_id": start.id,
            "request_id": request_id,
            "request": "" if self.tenant(start.tenant).redact else storable(start.request),
            "status": "running",
            "outcome": "",
            "duration_s": 0.0,
            "gateway_id": self.gateway_id,
            "cancel_requested": False,
        }
        self._changes["begin"].append(row)

    def reserve_for_answer(self, run: KnownRun, amount: Amount) -> None:
        """Reserve `amount` for a run's answer, instead of what was reserved before."""
        if amount != run.held:
            self.spending.release(run.tenant, run.started_at, run.held)
            self.spending.reserve(run.tenant, run.started_at, amount)
            run.held = amount
            self._changes["hold"].append({"_run_id": run.run_id, **_held(amount)})

    def end(self, run: KnownRun, status: RunStatus, outcome: str, duration_s: float, trace: bytes) -> None:
        """Write how a run ended. What it held is free."""
        if run.status == "running":
            self.in_flight[run.tenant] -= 1
            self.spending.release(run.tenant, run.started_at, run.held)
        run.status, run.held = status, NOTHING
        values = (status, outcome, duration_s, 0, 0, trace)
        self._changes["end"].append({"_run_id": run.run_id, **dict(zip(_ENDED_RUN, values, strict=True))})

    def forget(self, run: KnownRun) -> None:
        """Take a run back, as if it had never been asked for."""
        for number in self.open_calls(run.run_id):
            self.discard(run.run_id, number)
        self.spending.release(run.tenant, run.started_at, run.held)
        self.spending.add_requests(run.tenant, run.started_at, -1)
        self.in_flight[run.tenant] -= 1
        self._by_request.pop((run.tenant, run.request_id or ""), None)
        del self._runs[run.run_id]
        begun = self._changes["begin"]
        self._changes["begin"] = [row for row in begun if row["run_id"] != run.run_id]
        if len(self._changes["begin"]) == len(begun):  # it is on record; this batch may reuse its request_id
            self._changes["release"].append({"_run_id": run.run_id})
            self._changes["forget"].append({"_run_id": run.run_id})

    def open_calls(self, run_id: str) -> list[int]:
        """The numbers of its open calls; all of them where an operation of the batch reads them."""
        return list(self._open.get(run_id, ()))

    def open(self, call: OpenedCall) -> None:
        """Put a call on record, and reserve what it may cost."""
        self._open.setdefault(call.run_id, {})[call.number] = OpenCall(call.tenant, call.started_at, call.reserved)
        self.spending.reserve(call.tenant, call.started_at, call.reserved)
        self._on_record.add((call.run_id, call.number))
        self._changes["open"].append(opened_row(call))

    def restore(self, calls: Iterable[Call]) -> None:
        """Put calls on record as open again, where a crash of the database took their rows; it took what was reserved
        for them too.
        """
        for call in calls:
            if (call.run_id, call.number) not in self._on_record:
                self.open(call)
                self.spending.release(call.tenant, call.started_at, call.reserved)
                self._open[call.run_id][call.number] = OpenCall(call.tenant, call.started_at, NOTHING)

    def settle(self, call: Call) -> None:
        """Replace an open call by how it ended; of no effect on one that is not open."""
        opened = self._open.get(call.run_id, {}).pop(call.number, None)
        if opened is not None:
            self.spending.release(opened.tenant, opened.started_at, opened.reserved, call.charged)
            self._settled.append(call)
            self._changes["settle"].append(ended_row(call))

    def discard(self, run_id: str, number: int) -> None:
        """Take back a call that was never made; of no effect on one that is not open."""
        opened = self._open.get(run_id, {}).pop(number, None)
        if opened is not None:
            self.spending.release(opened.tenant, opened.started_at, opened.reserved)
            self._changes["discard"].append({"_run_id": run_id, "_number": number})

    def write(self) -> None:
        """Write what has changed, and what that adds to sums."""
        dialect = self.connection.dialect
        spent = [
            {"tenant": tenant, "period": period, **msgspec.structs.asdict(tally)}
            for (tenant, period), tally in self.spending.changes.items()
        ]
        writes = [(_WRITES[name], rows) for name, rows in self._changes.items()]
        writes.append((_adding(SPENDING, dialect.name), spent))
        writes.append((_adding(USAGE_HOURS, dialect.name), hourly_usage(self._settled)))
        with closing(self.connection.connection.cursor()) as cursor:
            for statement, rows in writes:
                if rows:
                    cursor.executemany(_statement_text(statement, dialect, tuple(rows[0])), rows)


def _held(amount: Amount) -> dict[str, object]:
    return {"held_tokens": amount.tokens, "held_nano_usd": amount.nano_usd or 0}


_AMONG = {"sqlite": "{0} IN (SELECT value FROM json_each(:{0}))", "postgresql": "{0} = ANY(%({0})s)"}


@dataclass(frozen=True, slots=True, eq=False)
class _Query:
    """Columns of the rows of a table whose keys are among some."""

    table: Table
    columns: Sequence[str]
    """Columns of the table, or other expressions."""
    keys: Sequence[str]
    """Columns of the table."""
    also: str = ""
    """Further conditions, and what is done with the rows."""

    def rows(self, connection: Connection, *among: Collection[object]) -> Sequence[Any]:
        """The rows whose keys are all among these, which are in the order of `keys`; none where there are no values."""
        if not all(among):
            return ()
        dialect = connection.dialect.name
        values = (json.dumps(list(each)) if dialect == "sqlite" else list(each) for each in among)
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(_query_text(self, dialect), dict(zip(self.keys, values, strict=True)))
            return cursor.fetchall()


@cache
def _query_text(query: _Query, dialect: str) -> str:
    among = " AND ".join(_AMONG[dialect].format(key) for key in query.keys)
    return f"SELECT {', '.join(query.columns)} FROM {query.table.name} WHERE {among} {query.also}"  # noqa: S608


_LOCK = """
SELECT pg_advisory_xact_lock(lock) FROM (
    SELECT DISTINCT hashtextextended(tenant, 0) AS lock FROM unnest(%(tenants)s::text[]) AS tenant ORDER BY lock
) AS locks
"""
_RUN = "run_id tenant request_id fingerprint status started_at held_tokens held_nano_usd".split()
_OPEN_CALL = "run_id number tenant started_at reserved_tokens reserved_nano_usd".split()
_TENANTS = _Query(TENANTS, Tenant.__struct_fields__, ["name"])
_RUNS = _Query(RUNS, _RUN, ["run_id"])
_RUNS_OF_REQUESTS = _Query(RUNS, _RUN, ["tenant", "request_id"])
_OPEN_CALLS = _Query(CALLS, _OPEN_CALL, ["run_id"], "AND outcome = 'open'")
_NUMBERS = _Query(CALLS, ["run_id", "number"], ["run_id"])
_SPENDING = _Query(SPENDING, ("tenant", *Spent.__struct_fields__), ["tenant", "period"])
_IN_FLIGHT = _Query(RUNS, ("tenant", "count(*)"), ["tenant"], "AND status = 'running' GROUP BY tenant")


def _tenants(connection: Connection, names: set[str]) -> dict[str, Tenant]:
    rows = _TENANTS.rows(connection, names)
    settings = (dict(zip(Tenant.__struct_fields__, row, strict=True)) for row in rows)
    return {row["name"]: msgspec.convert(row, Tenant, strict=False) for row in settings}  # SQLite has 0 for false


def _runs(connection: Connection, reads: Sequence[Reads]) -> dict[str, KnownRun]:
    run_ids = {each.run_id for each in reads if each.run_id}
    request_ids = {storable(each.request_id) for each in reads if each.request_id}
    names = {each.tenant for each in reads if each.request_id}
    rows = *_RUNS.rows(connection, run_ids), *_RUNS_OF_REQUESTS.rows(connection, names, request_ids)
    known = (dict(zip(_RUN, row, strict=True)) for row in rows)
    return {run["run_id"]: KnownRun(held=Amount(run.pop(_RUN[-2]), run.pop(_RUN[-1])), **run) for run in known}


def _open_calls(connection: Connection, run_ids: Collection[str | None]) -> dict[str, dict[int, OpenCall]]:
    found: dict[str, dict[int, OpenCall]] = {}
    for run_id, number, tenant, started_at, *reserved in _OPEN_CALLS.rows(connection, run_ids):
        found.setdefault(run_id, {})[number] = OpenCall(tenant, started_at, Amount(*reserved))
    return found


def _spending(connection: Connection, tenants: dict[str, Tenant], reads: Sequence[Reads]) -> dict[Period, Tally]:
    limited = [each for each in reads if each.tenant in tenants]
    names = {each.tenant for each in limited}
    of = {period for each in limited for at in each.spends_at for period in periods(at)}
    return {(tenant, period): Tally(*sums) for tenant, period, *sums in _SPENDING.rows(connection, names, of)}


@cache
def _adding(table: Table, dialect: str) -> Any:
    """A statement that inserts rows of sums, or adds to those that are there. Unknown and known is what is known."""
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)
    sums = {column.name: _sum(column, insert.excluded[column.name]) for column in table.c if not column.primary_key}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=sums)


def _sum(column: Column[Any], more: ColumnElement[Any]) -> ColumnElement[Any]:
    known = func.coalesce(column, literal_column("0")) + more
    return case((more.is_(None), column), else_=known) if column.nullable else column + more


_OF_RUN = RUNS.c.run_id == bindparam("_run_id")
_OF_CALL = (CALLS.c.run_id == bindparam("_run_id")) & (CALLS.c.number == bindparam("_number"))
_HELD = tuple(_held(NOTHING))
_ENDED_RUN = ("status", "outcome", "duration_s", *_HELD, "trace")
_WRITES: dict[str, Any] = {
    "release": RUNS.update().where(_OF_RUN).values(request_id=null()),
    "begin": RUNS.insert(),
    "open": CALLS.insert(),
    "settle": CALLS.update().where(_OF_CALL).values({name: bindparam(name) for name in ENDED_CALL}),
    "discard": CALLS.delete().where(_OF_CALL),
    "hold": RUNS.update().where(_OF_RUN).values({name: bindparam(name) for name in _HELD}),
    "end": RUNS.update().where(_OF_RUN).values({name: bindparam(name) for name in _ENDED_RUN}),
    "forget": RUNS.delete().where(_OF_RUN),
}
"""Statements by the names of the changes of a unit of work, in the order in which they are written."""


@cache
def _statement_text(statement: Any, dialect: Dialect, columns: tuple[str, ...]) -> str:
    return str(statement.compile(dialect=dialect, column_keys=columns))
