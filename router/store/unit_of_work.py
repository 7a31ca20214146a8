"""What a batch of operations needs to know, and what they change, within one transaction."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Dialect, Table, bindparam, case, func, literal_column, null
from sqlalchemy.dialects import postgresql, sqlite

from router.access import Tenant
from router.amount import NOTHING, Amount
from router.errors import StoreFailed
from router.ledger.journal import RunStart
from router.store.database import storable
from router.store.rows import ended_row, opened_row
from router.store.schema import CALLS, RUNS, SPENDING, TENANTS, USAGE_HOURS
from router.store.spending import MOST, Key, Spending, Tally, periods, whole
from router.store.statements import Reading, write_rows
from router.store.usage import hourly_usage
from router.trace.call import Call, OpenedCall
from router.trace.run import RunStatus


@cache
def adding(table: Table, dialect: str) -> Any:
    """A statement that inserts rows of sums, or adds to those that are there, as far as these count. Unknown and known
    is what is known.
    """
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(table)
    sums = {
        column.name: _sum(column, insert.excluded[column.name]) for column in table.columns if not column.primary_key
    }
    return insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=sums)


def _sum(column: Column[Any], more: ColumnElement[Any]) -> ColumnElement[Any]:
    if not column.nullable:
        return whole(column) + more
    return case((more.is_(None), column), else_=func.coalesce(whole(column), literal_column("0")) + more)


Row = dict[str, object]
_OF_RUN = RUNS.c.run_id == bindparam("_run_id")
_OF_CALL = (CALLS.c.run_id == bindparam("_run_id")) & (CALLS.c.number == bindparam("_number"))
_ENDED_CALL = (
    "outcome counted prompt_tokens cached_tokens completion_tokens reasoning_tokens wasted_tokens nano_usd"
    " first_token_s duration_s"
).split()
_ENDED_RUN = "status outcome duration_s held_tokens held_nano_usd trace_bytes trace".split()

_BEGIN, _OPEN = RUNS.insert(), CALLS.insert()
_LET_GO = RUNS.update().where(_OF_RUN).values(request_id=null())
_HOLD = RUNS.update().where(_OF_RUN).values({name: bindparam(name) for name in ("held_tokens", "held_nano_usd")})
_SETTLE = CALLS.update().where(_OF_CALL).values({name: bindparam(name) for name in _ENDED_CALL})
_END = RUNS.update().where(_OF_RUN).values({name: bindparam(name) for name in _ENDED_RUN})
_DISCARD, _FORGET = CALLS.delete().where(_OF_CALL), RUNS.delete().where(_OF_RUN)


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows, by what is to become of them, in the order in which that is written."""

    let_go: list[Row] = field(default_factory=list)
    """Runs whose `request_id` may be used again."""
    begun: dict[str, Row] = field(default_factory=dict)
    """By their identifiers."""
    opened: list[Row] = field(default_factory=list)
    settled: list[Call] = field(default_factory=list)
    discarded: list[Row] = field(default_factory=list)
    """Calls that were never made."""
    held: list[Row] = field(default_factory=list)
    ended: list[Row] = field(default_factory=list)
    forgotten: list[Row] = field(default_factory=list)
    """Runs that never began."""

    def write(self, connection: Connection, spending: dict[Key, Tally]) -> None:
        """Write all of it, and what `spending` adds to the rows of tenants and periods."""
        dialect = connection.dialect.name
        for statement, rows in (
            (_LET_GO, self.let_go),
            (_BEGIN, [*self.begun.values()]),
            (_OPEN, self.opened),
            (_SETTLE, [ended_row(call) for call in self.settled]),
            (_DISCARD, self.discarded),
            (_HOLD, self.held),
            (_END, self.ended),
            (_FORGET, self.forgotten),
            (adding(SPENDING, dialect), _spending_rows(spending)),
            (adding(USAGE_HOURS, dialect), hourly_usage(self.settled)),
        ):
            if rows:
                write_rows(connection, _text(statement, connection.dialect, tuple(rows[0])), rows)


@cache
def _text(statement: Any, dialect: Dialect, columns: tuple[str, ...]) -> str:
    """What the driver gets, which is called without SQLAlchemy's work for each row."""
    return str(statement.compile(dialect=dialect, column_keys=columns))


def _spending_rows(spending: dict[Key, Tally]) -> list[Row]:
    return [
        {
            "tenant": tenant,
            "period": period,
            "requests": tally.requests,
            "tokens": tally.tokens,
            "nano_usd": tally.nano_usd,
            "reserved_tokens": tally.reserved_tokens,
            "reserved_nano_usd": tally.reserved_nano_usd,
        }
        for (tenant, period), tally in spending.items()
    ]


_LOCK = """
SELECT pg_advisory_xact_lock(lock) FROM (
    SELECT DISTINCT hashtextextended(tenant, 0) AS lock FROM unnest(%(tenants)s::text[]) AS tenant ORDER BY lock
) AS locks
"""
_RUN = "run_id tenant request_id fingerprint status started_at held_tokens held_nano_usd".split()
_OPEN_CALL = "run_id number tenant started_at reserved_tokens reserved_nano_usd".split()


_TENANTS = Reading(TENANTS, Tenant.__struct_fields__, ["name"])
_RUNS = Reading(RUNS, _RUN, ["run_id"])
_NAMED_RUNS = Reading(RUNS, _RUN, ["tenant", "request_id"])
_OPEN_CALLS = Reading(CALLS, _OPEN_CALL, ["run_id"], "AND outcome = 'open'")
_NUMBERS = Reading(CALLS, ["run_id", "number"], ["run_id"])
_SPENDING = Reading(SPENDING, ("tenant", "period", *Tally.__struct_fields__), ["tenant", "period"])
_IN_FLIGHT = Reading(RUNS, ("tenant", "count(*)"), ["tenant"], "AND status = 'running' GROUP BY tenant")


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


@dataclass(frozen=True, slots=True)
class Scope:
    """What an operation is about, so that it can be locked and read."""

    tenant: str | None = None
    """None for what concerns no tenant."""
    run_id: str | None = None
    request_id: str = ""
    spends_at: tuple[float, ...] = ()
    """When it would spend or reserve something, in Unix time."""
    open_calls: bool = False
    """Whether it needs to know the run's open calls."""
    promised: bool = False
    """Whether a client will be told: then it must outlast the machine, and not only the gateway, with all calls."""


class Books:
    """Reads under the locks of all tenants concerned, so that nobody else changes what is read before it is written."""

    def __init__(self, connection: Connection, gateway_id: str, scopes: Iterable[Scope]) -> None:
        """`gateway_id`: whose runs begin here."""
        self.connection, self.gateway_id, self.changes = connection, gateway_id, Changes()
        scopes = list(scopes)
        names = {scope.tenant for scope in scopes if scope.tenant is not None}
        if names and connection.dialect.name == "postgresql":  # SQLite has one writer at a time
            connection.exec_driver_sql(_LOCK, {"tenants": list(names)})
        self._tenants = _tenants(connection, names)
        self._runs = _runs(connection, scopes)
        self._named = {(run.tenant, run.request_id): run for run in self._runs.values() if run.request_id}
        self._open = _open_calls(connection, scopes)
        promised = {scope.run_id for scope in scopes if scope.promised}
        self._recorded = {tuple(row) for row in _NUMBERS.rows(connection, promised)}
        self.spending = Spending(_spending(connection, self._tenants, scopes))
        self._in_flight = _in_flight(connection, self._tenants)

    def tenant(self, name: str) -> Tenant:
        """Its settings; without any, nothing is limited."""
        return self._tenants.get(name) or Tenant(name)

    def in_flight(self, tenant: str) -> int:
        """How many runs of a tenant with that limit are running."""
        return self._in_flight[tenant]

    def run(self, run_id: str) -> KnownRun | None:
        """A run in the scope of the batch."""
        return self._runs.get(run_id)

    def running(self, run_id: str) -> KnownRun:
        """The same. Raises `StoreFailed` where it is not running any more."""
        run = self._runs.get(run_id)
        if run is None or run.status != "running":
            raise StoreFailed(
                f"Run {run_id} is not running any more: another gateway took this one for dead, or it was deleted."
            )
        return run

    def named(self, tenant: str, request_id: str) -> KnownRun | None:
        """The run that has a client's name for it."""
        return self._named.get((tenant, storable(request_id)))

    def let_go(self, run: KnownRun) -> None:
        """Let its `request_id` be used again."""
        self.changes.let_go.append({"_run_id": run.run_id})
        self._named.pop((run.tenant, run.request_id or ""), None)
        run.request_id = None

    def begin(self, start: RunStart, *, redact: bool) -> None:
        """Put a run on record."""
        request_id = storable(start.request_id) or None
        run = KnownRun(start.id, start.tenant, request_id, start.fingerprint, "running", start.started_at, start.hold)
        self._runs[start.id] = run
        if request_id:
            self._named[start.tenant, request_id] = run
        self._in_flight[start.tenant] += 1
        self.spending.reserve(start.tenant, start.started_at, start.hold)
        self.changes.begun[start.id] = {
            "run_id": start.id,
            "tenant": start.tenant,
            "key_id": start.key_id,
            "kind": start.kind,
            "request_id": request_id,
            "fingerprint": start.fingerprint,
            "request": "" if redact else storable(start.request),
            "status": "running",
            "outcome": "",
            "started_at": start.started_at,
            "duration_s": 0.0,
            "gateway_id": self.gateway_id,
            "cancel_requested": False,
            "held_tokens": start.hold.tokens,
            "held_nano_usd": start.hold.nano_usd or 0,
            "trace_bytes": 0,
        }

    def hold(self, run: KnownRun, amount: Amount) -> None:
        """Set `amount` aside for a run's answer, instead of what was before."""
        if amount == run.held:
            return
        self.spending.release(run.tenant, run.started_at, run.held)
        self.spending.reserve(run.tenant, run.started_at, amount)
        run.held = amount
        self.changes.held.append(
            {"_run_id": run.run_id, "held_tokens": amount.tokens, "held_nano_usd": amount.nano_usd or 0}
        )

    def end(self, run: KnownRun, status: RunStatus, outcome: str, duration_s: float, trace: bytes) -> None:
        """Write how a run ended. What it held is free."""
        if run.status == "running":
            self._in_flight[run.tenant] -= 1
            self.spending.release(run.tenant, run.started_at, run.held)
        run.status, run.held = status, NOTHING
        self.changes.ended.append(
            {
                "_run_id": run.run_id,
                "status": status,
                "outcome": outcome,
                "duration_s": duration_s,
                "held_tokens": 0,
                "held_nano_usd": 0,
                "trace_bytes": len(trace),
                "trace": trace,
            }
        )

    def forget(self, run: KnownRun) -> None:
        """Take a run back, as if it had never been asked for."""
        for number in self.open_calls(run.run_id):
            self.discard(run.run_id, number)
        self.spending.release(run.tenant, run.started_at, run.held)
        self.spending.add_requests(run.tenant, run.started_at, -1)
        self._in_flight[run.tenant] -= 1
        self._named.pop((run.tenant, run.request_id or ""), None)
        del self._runs[run.run_id]
        if self.changes.begun.pop(run.run_id, None) is None:  # it is on record; its name may be taken in this batch
            self.changes.let_go.append({"_run_id": run.run_id})
            self.changes.forgotten.append({"_run_id": run.run_id})

    def open_calls(self, run_id: str) -> list[int]:
        """The numbers of its open calls; all of them where the batch's scope says so."""
        return list(self._open.get(run_id, ()))

    def open(self, call: OpenedCall) -> None:
        """Put a call on record, and reserve what it may cost."""
        self._open.setdefault(call.run_id, {})[call.number] = OpenCall(call.tenant, call.started_at, call.reserved)
        self.spending.reserve(call.tenant, call.started_at, call.reserved)
        self._recorded.add((call.run_id, call.number))
        self.changes.opened.append(opened_row(call))

    def restore(self, calls: Iterable[Call]) -> None:
        """Put calls of a promised scope on record as open again, where a crash of the database took their rows; it took
        what was reserved for them too.
        """
        for call in calls:
            if (call.run_id, call.number) not in self._recorded:
                self.open(call)
                self.spending.release(call.tenant, call.started_at, call.reserved)
                self._open[call.run_id][call.number] = OpenCall(call.tenant, call.started_at, NOTHING)

    def settle(self, call: Call) -> None:
        """Replace an open call by how it ended; of no effect on one that is not open."""
        opened = self._open.get(call.run_id, {}).pop(call.number, None)
        if opened is not None:
            self.spending.release(opened.tenant, opened.started_at, opened.reserved, call.charged)
            self.changes.settled.append(call)

    def discard(self, run_id: str, number: int) -> None:
        """Take back a call that was never made; of no effect on one that is not open."""
        opened = self._open.get(run_id, {}).pop(number, None)
        if opened is not None:
            self.spending.release(opened.tenant, opened.started_at, opened.reserved)
            self.changes.discarded.append({"_run_id": run_id, "_number": number})

    def write(self) -> None:
        """Write what has changed."""
        self.changes.write(self.connection, self.spending.changes)


def _tenants(connection: Connection, names: set[str]) -> dict[str, Tenant]:
    rows = _TENANTS.rows(connection, names)
    settings = (dict(zip(Tenant.__struct_fields__, row, strict=True)) for row in rows)
    return {row["name"]: msgspec.convert(row, Tenant, strict=False) for row in settings}  # SQLite has 0 for false


def _runs(connection: Connection, scopes: list[Scope]) -> dict[str, KnownRun]:
    run_ids = {scope.run_id for scope in scopes if scope.run_id}
    request_ids = {storable(scope.request_id) for scope in scopes if scope.request_id}
    names = {scope.tenant for scope in scopes if scope.request_id}
    rows = [
        *_RUNS.rows(connection, run_ids),
        *_NAMED_RUNS.rows(connection, names, request_ids),
    ]
    return {
        run_id: KnownRun(run_id, tenant, request_id, fingerprint, status, started_at, Amount(tokens, nano_usd))
        for run_id, tenant, request_id, fingerprint, status, started_at, tokens, nano_usd in rows
    }


def _open_calls(connection: Connection, scopes: list[Scope]) -> dict[str, dict[int, OpenCall]]:
    run_ids = {scope.run_id for scope in scopes if scope.open_calls}
    found: dict[str, dict[int, OpenCall]] = {}
    for run_id, number, tenant, started_at, *reserved in _OPEN_CALLS.rows(connection, run_ids):
        found.setdefault(run_id, {})[number] = OpenCall(tenant, started_at, Amount(*reserved))
    return found


def _spending(connection: Connection, tenants: dict[str, Tenant], scopes: list[Scope]) -> dict[Key, Tally]:
    limited = [scope for scope in scopes if scope.tenant in tenants]
    names = {scope.tenant for scope in limited}
    of = {period for scope in limited for at in scope.spends_at for period in periods(at)}
    rows = _SPENDING.rows(connection, names, of)
    return {(tenant, period): Tally(*(min(max(0, int(sum_)), MOST) for sum_ in sums)) for tenant, period, *sums in rows}


def _in_flight(connection: Connection, tenants: dict[str, Tenant]) -> Counter[str]:
    names = [name for name, tenant in tenants.items() if tenant.runs_in_flight is not None]
    return Counter(dict(_IN_FLIGHT.rows(connection, names)))
