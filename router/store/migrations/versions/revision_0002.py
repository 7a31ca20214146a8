"""Tenants, quotas and gateways; calls that are on record before they are made; sums by the hour."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_PIECE = 500
_CALLS = """
INSERT INTO calls (run_id, number, tenant, role, model, deployment, executor_version, purpose, attempt, sub_query,
    outcome, counted, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, wasted_tokens, max_tokens,
    reserved_tokens, reserved_nano_usd, started_at, duration_s)
SELECT run_id, number, 'default', role, model, endpoint, '', purpose, attempt, sub_query, outcome,
    CASE WHEN prompt_tokens IS NULL THEN NULL WHEN lower_bound = 1 THEN 'lower_bound' ELSE 'reported' END,
    prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens,
    CASE WHEN outcome = 'completed' THEN 0 ELSE coalesce(prompt_tokens + completion_tokens, 0) END,
    0, 0, 0, started_at, duration_s
FROM old_calls
"""
_USAGE_HOURS = """
INSERT INTO usage_hours
SELECT tenant, {hour}, role, model, deployment, executor_version, count(*), count(*) - count(prompt_tokens), count(*),
    coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0), sum(cached_tokens), sum(reasoning_tokens),
    sum(wasted_tokens), NULL
FROM calls GROUP BY 1, 2, 3, 4, 5, 6
"""


def upgrade() -> None:
    """Set the old rows aside, make the new tables, and fill them."""
    connection = op.get_bind()
    kept = [name for name in ("feedback", "calls", "runs") if sa.inspect(connection).has_table(name)]
    for name in kept:
        connection.execute(sa.text(f"CREATE TABLE old_{name} AS SELECT * FROM {name}"))  # noqa: S608
        op.drop_table(name)
    _create()
    _copy_runs(connection)
    connection.execute(sa.text(_CALLS))
    # Rounding down: SQLite's cast does, PostgreSQL's takes what is nearest.
    hour = "CAST({} AS INTEGER)".format("{} / 3600" if connection.dialect.name == "sqlite" else "floor({} / 3600)")
    connection.execute(sa.text(_USAGE_HOURS.format(hour=hour.format("started_at"))))
    _sum_spending(connection, hour.format("started_at"))
    if "feedback" in kept:
        connection.execute(sa.text("INSERT INTO feedback SELECT * FROM old_feedback"))
    for name in kept:
        op.drop_table(f"old_{name}")


def _copy_runs(connection: sa.Connection) -> None:
    old = sa.Table("old_runs", sa.MetaData(), autoload_with=connection)
    runs = sa.Table("runs", sa.MetaData(), autoload_with=connection)
    after = ""
    op.create_index("old_runs_by_id", "old_runs", ["run_id"])
    while rows := _piece(connection, old, after):
        connection.execute(runs.insert(), [_run(row) for row in rows])
        after = rows[-1].run_id


def _piece(connection: sa.Connection, old: sa.Table, after: str) -> list[Any]:
    wanted = sa.select(old).where(old.c.run_id > after).order_by(old.c.run_id).limit(_PIECE)
    return list(connection.execute(wanted))


def _run(row: Any) -> dict[str, object]:
    run = msgspec.msgpack.decode(row.trace)
    run["calls"] = [_call(row.run_id, number, call) for number, call in enumerate(run["calls"])]
    trace = msgspec.msgpack.encode(run)
    answered = run["result"] is not None and run["result"]["type"] == "Trajectory"
    return {
        **row._mapping,
        "tenant": "default",
        "key_id": "",
        "fingerprint": "",
        "outcome": run["result"]["outcome"] if answered else "",
        "gateway_id": "",
        "cancel_requested": False,
        "held_tokens": 0,
        "held_nano_usd": 0,
        "trace_bytes": len(trace),
        "trace": trace,
    }


def _call(run_id: str, number: int, call: dict[str, Any]) -> dict[str, Any]:
    """A call of a trace, as traces hold it from now on."""
    endpoint, lower_bound, usage = call.pop("endpoint"), call.pop("lower_bound"), call["usage"]
    return {
        **call,
        "run_id": run_id,
        "tenant": "default",
        "number": number,
        "deployment": endpoint,
        "executor_version": None,
        "max_tokens": 0,
        "reserved": {"tokens": 0, "nano_usd": 0},
        "usage": usage and {**usage, "lower_bound": lower_bound},
        "nano_usd": None,
        "first_token_s": None,
    }


def _sum_spending(connection: sa.Connection, hour: str) -> None:
    """A row for each day and each month (UTC)."""
    requests, tokens = Counter[str](), Counter[str]()
    summed = "sum(prompt_tokens + completion_tokens)"
    for query, sums in (
        (f"SELECT {hour}, count(*) FROM runs GROUP BY 1", requests),  # noqa: S608
        (f"SELECT hour, {summed} FROM usage_hours GROUP BY 1", tokens),  # noqa: S608
    ):
        for at, count in connection.execute(sa.text(query)):
            day = f"{datetime.fromtimestamp(at * 3600, UTC):%Y-%m-%d}"
            sums[day] += int(count)
            sums[day[:7]] += int(count)
    spending = sa.Table("spending", sa.MetaData(), autoload_with=connection)
    zero = {"tenant": "default", "nano_usd": 0, "reserved_tokens": 0, "reserved_nano_usd": 0}
    if periods := sorted(requests | tokens):
        rows = [{**zero, "period": each, "requests": requests[each], "tokens": tokens[each]} for each in periods]
        connection.execute(spending.insert(), rows)


def _create() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("request_id", sa.String),
        sa.Column("fingerprint", sa.String, nullable=False),
        sa.Column("request", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("duration_s", sa.Float, nullable=False),
        sa.Column("gateway_id", sa.String, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("held_tokens", sa.BigInteger, nullable=False),
        sa.Column("held_nano_usd", sa.BigInteger, nullable=False),
        sa.Column("trace_bytes", sa.Integer, nullable=False),
        sa.Column("trace", sa.LargeBinary),
    )
    op.create_index("runs_by_time", "runs", ["started_at", "run_id", "trace_bytes"])
    op.create_index("runs_by_tenant", "runs", ["tenant", "started_at", "run_id"])
    op.create_index("runs_by_request_id", "runs", ["tenant", "request_id"], unique=True)
    op.create_index("runs_by_status", "runs", ["status", "tenant"])
    op.create_table(
        "calls",
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.run_id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("deployment", sa.String, nullable=False),
        sa.Column("executor_version", sa.String, nullable=False),
        sa.Column("purpose", sa.String, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("sub_query", sa.Integer),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("counted", sa.String),
        sa.Column("prompt_tokens", sa.BigInteger),
        sa.Column("cached_tokens", sa.BigInteger),
        sa.Column("completion_tokens", sa.BigInteger),
        sa.Column("reasoning_tokens", sa.BigInteger),
        sa.Column("wasted_tokens", sa.BigInteger, nullable=False),
        sa.Column("nano_usd", sa.BigInteger),
        sa.Column("max_tokens", sa.Integer, nullable=False),
        sa.Column("prompt_bound", sa.Integer, nullable=False, server_default="0"),
        sa.Column("reserved_tokens", sa.BigInteger, nullable=False),
        sa.Column("reserved_nano_usd", sa.BigInteger),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("first_token_s", sa.Float),
        sa.Column("duration_s", sa.Float, nullable=False),
    )
    op.create_index("calls_by_tenant", "calls", ["tenant", "started_at"])
    op.create_index("calls_by_deployment", "calls", ["deployment", "started_at"])
    op.create_table(
        "usage_hours",
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("hour", sa.Integer, primary_key=True),
        sa.Column("role", sa.String, primary_key=True),
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("deployment", sa.String, primary_key=True),
        sa.Column("executor_version", sa.String, primary_key=True),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("attempts_without_usage", sa.BigInteger, nullable=False),
        sa.Column("attempts_without_cost", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger),
        sa.Column("reasoning_tokens", sa.BigInteger),
        sa.Column("wasted_tokens", sa.BigInteger, nullable=False),
        sa.Column("nano_usd", sa.BigInteger),
    )
    op.create_index("usage_hours_by_time", "usage_hours", ["hour"])
    op.create_table(
        "spending",
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("period", sa.String, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("nano_usd", sa.BigInteger, nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger, nullable=False),
        sa.Column("reserved_nano_usd", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "tenants",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("tokens_per_day", sa.BigInteger),
        sa.Column("tokens_per_month", sa.BigInteger),
        sa.Column("nano_usd_per_day", sa.BigInteger),
        sa.Column("nano_usd_per_month", sa.BigInteger),
        sa.Column("requests_per_day", sa.BigInteger),
        sa.Column("requests_per_month", sa.BigInteger),
        sa.Column("runs_in_flight", sa.Integer),
        sa.Column("redact", sa.Boolean, nullable=False),
        sa.Column("training", sa.Boolean, nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("key_id", sa.String, primary_key=True),
        sa.Column("tenant", sa.String, sa.ForeignKey("tenants.name")),
        sa.Column("scopes", sa.String, nullable=False),
        sa.Column("label", sa.String, nullable=False),
        sa.Column("secret_sha256", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("revoked_at", sa.Float),
    )
    op.create_table(
        "gateways",
        sa.Column("gateway_id", sa.String, primary_key=True),
        sa.Column("host", sa.String, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
    )
    op.create_table(
        "feedback",
        sa.Column("feedback_id", sa.String, primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.run_id"), nullable=False, index=True),
        sa.Column("given_at", sa.Float, nullable=False),
        sa.Column("accepted", sa.Boolean),
        sa.Column("score", sa.Float),
        sa.Column("gold_answer", sa.String, nullable=False),
        sa.Column("comment", sa.String, nullable=False),
    )
