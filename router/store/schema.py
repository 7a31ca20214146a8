"""The tables of the database, and the conversion between structs and rows. The columns of a struct
are derived from the struct's fields.
"""

import zlib
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    RowMapping,
    Select,
    String,
    Table,
)

from router.access import AuditEvent, Key, QuotaUse, Spent, Tenant
from router.amount import Amount
from router.errors import StoreFailed
from router.models.model import TOKEN_COUNTS
from router.runs.archive import MAX_LISTED_CHARS
from router.store.parts import decode_run, encoded_in_parts
from router.trace import Call, Run, Trajectory
from router.trace.call import UsageSums, sum_known
from router.trace.export import output_of
from router.trace.run import Feedback
from router.trace.values import TableRun, brief, with_executions
from router.versions import ExecutorVersion, VersionDecision
from router.versions.book import Judgement, Side, Trial

Value = TypeVar("Value", bound=msgspec.Struct)
_TYPES: dict[Any, type[Any]] = {int: BigInteger, float: Float, bool: Boolean}
"""Column types by field types. Fields of all other types are stored as strings."""


def _columns(
    struct: type[msgspec.Struct], *keys: str, without: tuple[str, ...] = ()
) -> Iterator[Column[Any]]:
    """Yield a database column for each field of a struct. The column is nullable if the field may
    be None. `keys`: fields of the primary key. `without`: fields without a column.
    """
    for field in msgspec.structs.fields(struct):
        union = get_origin(field.type) in (Union, UnionType)
        kinds = get_args(field.type) if union else (field.type,)
        if field.name not in without:
            yield Column(
                field.name,
                _TYPES.get(kinds[0], String),
                primary_key=field.name in keys,
                autoincrement=False,
                nullable=NoneType in kinds,
            )


def _of_run(*, primary_key: bool = False, index: bool = False) -> Column[Any]:
    return Column(
        "run_id",
        ForeignKey("runs.run_id"),
        primary_key=primary_key,
        nullable=False,
        index=index,
    )


METADATA = MetaData()
SCHEMA_NUMBER = 8
"""Number of the schema. A release works with every database that has its number, even if a later
release has added tables and columns. Only a revision that contracts the schema changes the number
(see `migration.py`).
"""
REVISION = "0005"
"""Revision of this schema: the last script in `migrations/versions`."""
REVISIONS = Table(  # Alembic's table, which has the revision of the database
    "alembic_version", MetaData(), Column("version_num", String(32), primary_key=True)
)
SCHEMA = Table(
    "rolegate_schema", METADATA, Column("number", Integer, primary_key=True, autoincrement=False)
)
RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("kind", String, nullable=False),
    # Idempotency key of the client; null if there is none, or a later run has taken it over
    Column("request_id", String),
    Column("fingerprint", String, nullable=False),
    Column("request", String, nullable=False),
    Column("status", String, nullable=False),
    Column("outcome", String, nullable=False),  # empty for kinds other than answers and tables
    Column("topology", String, nullable=False),  # empty for kinds other than answers
    Column("unsupported", Boolean, nullable=False),
    # Beginning of the output, for lists and text search
    Column("answer", String, nullable=False),
    Column("nano_usd", BigInteger),  # sum over calls with known cost; null if no call has one
    Column("started_at", Float, nullable=False),
    Column("duration_s", Float, nullable=False),
    Column("log", String, nullable=False),  # name of the log of the run's gateway
    Column("cancel_requested", Boolean, nullable=False),
    # Null while the run is running. It is the last column, because SQLite has to read all of it to
    # reach the columns behind it.
    Column("trace", LargeBinary),
    Index("runs_by_time", "started_at", "run_id"),
    Index("runs_by_tenant", "tenant", "started_at", "run_id"),
    Index("runs_by_request_id", "tenant", "request_id", unique=True),
    Index("runs_by_status", "status", "tenant"),
)
RESERVED = {f"reserved_{name}": name for name in Amount.__struct_fields__}
"""Columns that store `OpenedCall.reserved`. Maps the name of a column to the field of `Amount` in
it.
"""
CALLS = Table(
    "calls",
    METADATA,
    _of_run(primary_key=True),
    *_columns(
        Call,
        "number",
        without=("run_id", "key_id", "executor_version", "reserved", "usage", "impossible_usage"),
    ),
    Column("key_id", String, nullable=False, server_default=""),
    Column("executor_version", String, nullable=False),  # empty for roles other than execution
    *(Column(column, BigInteger, nullable=name == "nano_usd") for column, name in RESERVED.items()),
    *(Column(name, BigInteger) for name in TOKEN_COUNTS),  # null if the usage is unknown
    Column("counted", String, nullable=False),  # as `Call.counted`
    Column("wasted_tokens", BigInteger, nullable=False),
    Index("calls_by_tenant", "tenant", "started_at"),
    Index("calls_by_deployment", "deployment", "started_at"),
)
"""Calls of ended runs."""
GROUPS = "tenant", "hour", "role", "model", "deployment", "executor_version", "manager"
"""Primary key of `usage_hours`: each row has the sums of all calls with the same values of these
fields. `hour` is the Unix time of a call's start // 3600.
"""
KEY_GROUPS = *GROUPS, "key_id"
"""Primary key of `usage_key_hours`."""


def _of_hours(name: str, groups: tuple[str, ...]) -> Table:
    keys = (
        Column(group, Integer if group == "hour" else String, primary_key=True, autoincrement=False)
        for group in groups
    )
    return Table(name, METADATA, *keys, *_columns(UsageSums), Index(f"{name}_by_time", "hour"))


# Sums of ended calls by the hour in which they started. They are kept when the calls are deleted.
USAGE_HOURS = _of_hours("usage_hours", GROUPS)
# The same sums for each key. Calls that ended before this table was added have an empty key. Calls
# of gateways of an earlier release are only in `usage_hours`.
USAGE_KEY_HOURS = _of_hours("usage_key_hours", KEY_GROUPS)
# Sums that count against quotas. A tenant has a row for each minute, day and month with requests. A
# key has a row for each minute with requests; the column `tenant` then contains `key ID`. Rows of
# minutes are deleted after a day.
SPENDING = Table(
    "spending", METADATA, Column("tenant", String, primary_key=True), *_columns(Spent, "period")
)
FEEDBACK = Table(
    "feedback",
    METADATA,
    Column("feedback_id", String, primary_key=True),
    _of_run(index=True),
    Column("given_at", Float, nullable=False),
    *_columns(Feedback, without=("run_id",)),
)
TENANTS = Table(  # `indexes` are separated by commas
    "tenants", METADATA, *_columns(Tenant, "name")
)
KEYS = Table(  # `scopes` are separated by commas
    "keys",
    METADATA,
    *_columns(Key, "key_id", without=("tenant",)),
    Column("tenant", ForeignKey("tenants.name")),
)
AUDIT = Table("audit", METADATA, *_columns(AuditEvent, "number"))  # no row is ever deleted
WARNINGS = Table(  # quotas that were nearly spent
    "quota_warnings",
    METADATA,
    *_columns(QuotaUse, "tenant", "quota", "period", "limit"),
    # Unix time of the last attempt to deliver the warning; null when it is delivered
    Column("tried_at", Float),
)
LOGS = Table(  # the place of each log: the position up to which it is written to the database
    "logs",
    METADATA,
    Column("log", String, primary_key=True),
    Column("segment", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
GATEWAYS = Table(  # the gateways that share a PostgreSQL database and are not fenced
    "gateways",
    METADATA,
    Column("epoch", BigInteger, Identity(), primary_key=True),
    Column("log", String, nullable=False),
    Column("session", BigInteger, nullable=False),  # number of sessions that have held its lock
)
# Events and ended calls of running runs that clients watch at other gateways. Events have numbers
# from 1, calls from -1 downwards. A row with the number 0 asks the run's gateway for them.
PROGRESS = Table(
    "progress",
    METADATA,
    Column("run_id", String, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),  # as MessagePack
)
LEASES = Table(  # the parts of quotas that gateways may spend in addition to `spending`
    "leases",
    METADATA,
    *(Column(name, String, primary_key=True) for name in ("tenant", "period", "log")),
    *(Column(name, BigInteger, nullable=False) for name in ("tokens", "nano_usd")),
)
EXECUTOR_VERSIONS = Table("executor_versions", METADATA, *_columns(ExecutorVersion, "version"))
SIDES = "candidate", "active"
VERSION_TRIALS = Table(  # comparisons of two versions on a run; deleted with the run
    "version_trials",
    METADATA,
    _of_run(primary_key=True),
    *_columns(Trial, without=("run_id", *(f"by_{side}" for side in SIDES))),
    *(
        Column(f"{side}_{column.name}", column.type, nullable=False)
        for side in SIDES
        for column in _columns(Side)
    ),
    # Null until the answers have been judged
    *(Column(column.name, column.type) for column in _columns(Judgement)),
    Index("version_trials_by_candidate", "candidate", "stage", "ended_at"),
)
# `number` is assigned under a lock, so it follows the order of commits. `figures` is JSON.
VERSION_DECISIONS = Table(
    "version_decisions",
    METADATA,
    Column("version", ForeignKey("executor_versions.version"), nullable=False, index=True),
    *_columns(VersionDecision, "number", without=("version",)),
)
_CALL = CALLS.c.keys()


def call_row(call: Call) -> dict[str, object]:
    """Return a call as a row of `calls`."""
    row = {name: getattr(call, name, None) for name in _CALL}
    row |= {name: getattr(call.usage, name, None) for name in TOKEN_COUNTS}
    row |= {column: getattr(call.reserved, name) for column, name in RESERVED.items()}
    row["executor_version"] = call.executor_version or ""
    return row


def struct_of(struct: type[Value], row: RowMapping, **others: object) -> Value:
    """Return a struct with the values of a row. `others`: values of further fields of the struct.
    They take precedence over the row.
    """
    fields = {name: row[name] for name in struct.__struct_fields__ if name in row}
    return msgspec.convert(fields | others, struct)


def structs(connection: Connection, struct: type[Value], query: Select[Any]) -> list[Value]:
    """Return a struct for each row of a query. The query's columns are the struct's fields."""
    return [struct_of(struct, row) for row in connection.execute(query).mappings()]


def found_by(run: Run | None) -> dict[str, object]:
    """Return values for the columns of `runs` that are known only when a run ends. Lists and
    searches use these columns. `run`: the ended run; None for a run that is running, to get
    defaults.
    """
    result = run.result if run and isinstance(run.result, Trajectory | TableRun) else None
    return {
        "status": run.status if run else "running",
        "outcome": result.outcome if result else "",
        "topology": result.topology if isinstance(result, Trajectory) else "",
        "unsupported": run is not None and run.unsupported,
        "answer": output_of(run)[:MAX_LISTED_CHARS].replace("\0", "\ufffd") if run else "",
        "nano_usd": sum_known([call.nano_usd for call in run.calls]) if run else None,
        "duration_s": run.duration_s if run else 0.0,
    }


_LARGE = 1 << 16
"""Traces of at least this many bytes are compressed. Traces of tables are large, and compress well,
because their executors share a prompt and many passages.
"""


def trace_of(run: Run) -> bytes:
    """Return a run as MessagePack, compressed if it is large. Executions are left out of the
    events, because the run's result contains them.
    """
    run = replace(run, events=brief(run.events))
    trace = msgspec.msgpack.encode(encoded_in_parts(run))
    return zlib.compress(trace, 1) if len(trace) >= _LARGE else trace


def run_of(row: Row[Any]) -> Run:
    """Return the run in a complete row of `runs`. A run that is running has no trace, and so no
    calls. Raises `StoreFailed` if the trace cannot be decoded.
    """
    if row.trace is None:
        missing: dict[str, object] = {"error": "", "result": None, "settings": {}}
        request_id = row.request_id or ""
        return struct_of(
            Run,
            row._mapping,
            id=row.run_id,
            request_id=request_id,
            calls=(),
            **missing,
        )
    try:
        # The output of zlib always begins with "x", and a map in MessagePack never does.
        trace = zlib.decompress(row.trace) if row.trace[:1] == b"x" else row.trace
        run = decode_run(trace)
    except (zlib.error, msgspec.DecodeError) as error:
        raise StoreFailed(
            f"The trace of run {row.run_id} is damaged; run `rolegate store check`."
        ) from error
    return replace(run, events=with_executions(run.events, run.result))
