"""The tables."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

METADATA = MetaData()
SCHEMA_NUMBER = 1
"""Of these tables: whoever changes them counts it up, here and in the name of the demo's file (`presets/mini.toml`)."""
SCHEMA = Table("rolegate_schema", METADATA, Column("number", Integer, primary_key=True, autoincrement=False))

RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("request_id", String),  # of the client; null where there is none, or where it was let go
    Column("fingerprint", String, nullable=False),
    Column("request", String, nullable=False),
    Column("status", String, nullable=False),
    Column("outcome", String, nullable=False),  # of an answer; empty for other kinds
    Column("started_at", Float, nullable=False),
    Column("duration_s", Float, nullable=False),
    Column("gateway_id", String, nullable=False),  # the process that runs it, or ran it
    Column("cancel_requested", Boolean, nullable=False),
    Column("held_tokens", BigInteger, nullable=False),
    Column("held_nano_usd", BigInteger, nullable=False),
    Column("trace_bytes", Integer, nullable=False),
    Column("trace", LargeBinary),  # null while it runs; last, as SQLite reads what stands behind it through it
    Index("runs_by_time", "started_at", "run_id", "trace_bytes"),
    Index("runs_by_tenant", "tenant", "started_at", "run_id"),
    Index("runs_by_request_id", "tenant", "request_id", unique=True),
    Index("runs_by_status", "status", "tenant"),
)
CALLS = Table(
    "calls",
    METADATA,
    Column("run_id", String, ForeignKey("runs.run_id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("role", String, nullable=False),
    Column("model", String, nullable=False),
    Column("deployment", String, nullable=False),
    Column("executor_version", String, nullable=False),  # empty for the other roles
    Column("purpose", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("sub_query", Integer),
    Column("outcome", String, nullable=False),  # `open` while it runs
    Column("counted", String),  # as `Call.counted`; null where the usage is unknown
    Column("prompt_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("completion_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("wasted_tokens", BigInteger, nullable=False),
    Column("nano_usd", BigInteger),
    Column("max_tokens", Integer, nullable=False),
    Column("prompt_bound", Integer, nullable=False, server_default="0"),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("reserved_nano_usd", BigInteger),  # null where the price was not known
    Column("started_at", Float, nullable=False),
    Column("first_token_s", Float),
    Column("duration_s", Float, nullable=False),
    Index("calls_by_tenant", "tenant", "started_at"),
    Index("calls_by_deployment", "deployment", "started_at"),
)
USAGE_HOURS = Table(  # sums of ended calls by the hour in which they started, kept when the calls are deleted
    "usage_hours",
    METADATA,
    Column("tenant", String, primary_key=True),
    Column("hour", Integer, primary_key=True),  # Unix time / 3600
    Column("role", String, primary_key=True),
    Column("model", String, primary_key=True),
    Column("deployment", String, primary_key=True),
    Column("executor_version", String, primary_key=True),
    Column("attempts", BigInteger, nullable=False),
    Column("attempts_without_usage", BigInteger, nullable=False),
    Column("attempts_without_cost", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger),
    Column("reasoning_tokens", BigInteger),
    Column("wasted_tokens", BigInteger, nullable=False),
    Column("nano_usd", BigInteger),
    Index("usage_hours_by_time", "hour"),
)
SPENDING = Table(  # what counts against quotas: a row for each day and each month in which a tenant asked
    "spending",
    METADATA,
    Column("tenant", String, primary_key=True),
    Column("period", String, primary_key=True),  # 2026-11-21 or 2026-11, UTC
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),
    Column("reserved_tokens", BigInteger, nullable=False),
    Column("reserved_nano_usd", BigInteger, nullable=False),
)
FEEDBACK = Table(
    "feedback",
    METADATA,
    Column("feedback_id", String, primary_key=True),
    Column("run_id", String, ForeignKey("runs.run_id"), nullable=False, index=True),
    Column("given_at", Float, nullable=False),
    Column("accepted", Boolean),
    Column("score", Float),
    Column("gold_answer", String, nullable=False),
    Column("comment", String, nullable=False),
)
TENANTS = Table(
    "tenants",
    METADATA,
    Column("name", String, primary_key=True),
    Column("tokens_per_day", BigInteger),
    Column("tokens_per_month", BigInteger),
    Column("nano_usd_per_day", BigInteger),
    Column("nano_usd_per_month", BigInteger),
    Column("requests_per_day", BigInteger),
    Column("requests_per_month", BigInteger),
    Column("runs_in_flight", Integer),
    Column("redact", Boolean, nullable=False),
    Column("training", Boolean, nullable=False),
)
KEYS = Table(
    "keys",
    METADATA,
    Column("key_id", String, primary_key=True),
    Column("tenant", String, ForeignKey("tenants.name")),  # null for the operator's
    Column("scopes", String, nullable=False),  # separated by commas
    Column("label", String, nullable=False),
    Column("secret_sha256", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("revoked_at", Float),
)
GATEWAYS = Table(  # the processes that write here; the runs of one that is dead are closed as interrupted
    "gateways",
    METADATA,
    Column("gateway_id", String, primary_key=True),
    Column("host", String, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("seen_at", Float, nullable=False),
)
EXECUTOR_VERSIONS = Table(
    "executor_versions",
    METADATA,
    Column("version", String, primary_key=True),
    Column("state", String, nullable=False),
    Column("share", Float, nullable=False),  # of a canary
    Column("state_at", Float, nullable=False),
    Column("registered_at", Float, nullable=False),
    Column("manifest", String, nullable=False),  # as JSON; empty for a model that the config names
)
VERSION_TRIALS = Table(  # runs that two versions have worked on; deleted with the run
    "version_trials",
    METADATA,
    Column("run_id", String, ForeignKey("runs.run_id"), primary_key=True),
    Column("candidate", String, nullable=False),
    Column("active", String, nullable=False),
    Column("stage", String, nullable=False),
    Column("candidate_answer", String, nullable=False),
    Column("candidate_failed", Boolean, nullable=False),
    Column("candidate_tokens", BigInteger, nullable=False),
    Column("active_answer", String, nullable=False),
    Column("active_failed", Boolean, nullable=False),
    Column("active_tokens", BigInteger, nullable=False),
    Column("ended_at", Float, nullable=False),
    Column("judged_at", Float),  # null while it is not known which answers were right
    Column("candidate_right", Boolean),
    Column("active_right", Boolean),
    Index("version_trials_by_candidate", "candidate", "stage", "ended_at"),
)
VERSION_DECISIONS = Table(
    "version_decisions",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),  # given under a lock, so in the order of commits
    Column("version", String, ForeignKey("executor_versions.version"), nullable=False, index=True),
    Column("decision", String, nullable=False),
    Column("from_state", String),  # null for a version that was new
    Column("to_state", String, nullable=False),
    Column("decided_by", String, nullable=False),
    Column("decided_at", Float, nullable=False),
    Column("reason", String, nullable=False),
    Column("figures", String),  # as JSON
)
