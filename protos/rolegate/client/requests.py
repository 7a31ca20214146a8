"""Options of the client's calls, and their conversion to request fields."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, TypedDict

from rolegate.client.options import enum_name
from rolegate.v1.answer_service_pb2 import Topology
from rolegate.v1.budget_pb2 import Budget
from rolegate.v1.run_service_pb2 import RunKind
from rolegate.v1.table_service_pb2 import TableTopology

ADDRESS = "127.0.0.1:50551"
"""Default address of the gateway."""
ANSWER_S = 120.0
"""Default deadline of questions, in seconds."""
TABLE_S = 1800.0
"""Default deadline of tables, in seconds."""
SHORT_S = 30.0
"""Default deadline of calls without models, in seconds."""
TriedState = Literal["registered", "shadow", "canary"]
"""States of an executor version that can be set; a registered one gets no traffic."""
TopologyName = Literal[
    "factorized", "host", "single_agent", "homogeneous", "searcher", "no_retrieval"
]
"""Search topology: the three roles, or one of the baselines."""
TableTopologyName = Literal["wide", "wide_written", "wide_single"]
"""Search topology of a table: delegator and executors, or one of the baselines."""


class SearchOptions(TypedDict, total=False):
    """Options of a question and of a table."""

    request_id: str
    """Idempotency key: within a day, the same one gets the same answer and spends nothing."""
    max_total_tokens: int
    """Max prompt and completion tokens of all models together."""
    max_cost_usd: float
    no_cache: bool
    """Search for every sub-query again instead of reusing reports of other runs."""
    resume_run_id: str
    """Interrupted run to resume; leave the question empty, the other options are that run's."""


class RequestOptions(SearchOptions, total=False):
    """Options of a question."""

    topology: TopologyName
    """Search topology."""


class TableOptions(SearchOptions, total=False):
    """Options of a table."""

    topology: TableTopologyName
    """Search topology."""
    closed: bool
    """Search for no further rows than the given ones."""
    max_rows: int


class FeedbackFields(TypedDict, total=False):
    """Opinion on an answer; at least one field is set."""

    accepted: bool | None
    score: float | None
    """From 0 to 1."""
    right_answer: str
    comment: str


class Filter(TypedDict, total=False):
    """Filter of runs; absent fields match all. A time without a time zone is local."""

    tenant: str
    kind: Literal["answer", "complete", "execute", "table", "shadow"] | None
    start: datetime | None
    """Started at this time or later."""
    end: datetime | None
    """Started before this time."""


class ListFilter(Filter, total=False):
    """Filter of listed runs."""

    status: Literal["running", "finished", "failed", "cancelled", "interrupted"] | None
    unsupported: bool
    """Only answers with names or numbers that no cited evidence contains."""


class ExportFilter(Filter, total=False):
    """Filter of exported runs."""

    for_training: bool
    """Leave out tenants whose runs must not be trained on."""


class UsageOptions(TypedDict, total=False):
    """Filter and grouping of usage. A time without a time zone is local."""

    start: datetime | None
    """Calls that started at this time or later."""
    end: datetime | None
    """Calls that started before this time."""
    by: Sequence[Literal["tenant", "role", "model", "executor_version", "manager"]]
    """Dimensions to group by; role and model if empty."""
    bucket: Literal["hour", "day", "month"] | None
    """Time buckets, in UTC."""
    tenant: str


def request_fields(options: RequestOptions) -> dict[str, Any]:
    """Return the option fields of an answer request. Raises `ValueError` for a cost that is not
    finite.
    """
    topology = enum_name(Topology, "topology", options.get("topology"))
    return {**_search_fields(options), "topology": topology}


def table_fields(options: TableOptions) -> dict[str, Any]:
    """Return the option fields of a table request. Raises `ValueError` for a cost that is not
    finite.
    """
    return {
        **_search_fields(options),
        "topology": enum_name(TableTopology, "topology", options.get("topology")),
        "closed": options.get("closed", False),
        "max_rows": options.get("max_rows", 0),
    }


def _search_fields(options: SearchOptions) -> dict[str, Any]:
    tokens = options.get("max_total_tokens")
    cost = options.get("max_cost_usd")
    if cost is not None and not isfinite(cost):
        raise ValueError(f"max_cost_usd must be a finite number of dollars, got {cost}.")
    budget = Budget(
        max_total_tokens=tokens, max_cost_nano_usd=None if cost is None else round(cost * 1e9)
    )
    return {
        "request_id": options.get("request_id", ""),
        "budget": None if tokens is None and cost is None else budget,
        "no_cache": options.get("no_cache", False),
        "resume_run_id": options.get("resume_run_id", ""),
    }


def filter_fields(wanted: Filter) -> dict[str, Any]:
    """Return the filter fields of a request for runs."""
    return {
        "tenant": wanted.get("tenant", ""),
        "kind": enum_name(RunKind, "kind", wanted.get("kind")),
        "start_time": utc(wanted.get("start")),
        "end_time": utc(wanted.get("end")),
    }


def utc(moment: datetime | None) -> datetime | None:
    """Convert a time to UTC; without a time zone it is local."""
    return None if moment is None else moment.astimezone(UTC)
