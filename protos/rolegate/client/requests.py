"""Arguments of a client's calls, and the fields of requests that they become."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, TypedDict

from rolegate.v1.budget_pb2 import Budget

ADDRESS = "127.0.0.1:50551"
"""The address of a gateway unless told otherwise."""
ANSWER_S = 120.0
"""The deadline of questions, seconds."""
TABLE_S = 1800.0
"""The deadline of tables, seconds."""
SHORT_S = 30.0
"""The deadline of calls that ask no model, seconds."""
TriedState = Literal["registered", "shadow", "canary"]
"""States that a version of the executor can be given; registered, it does nothing."""
TopologyName = Literal[
    "factorized", "host", "single_agent", "homogeneous", "searcher", "no_retrieval"
]
"""The searcher and the answerer: three roles, or one of the baselines that they are compared
with.
"""
TableTopologyName = Literal["wide", "wide_written", "wide_single"]
"""Whoever finds rows and cells: the delegator with executors and a program, or one of the
baselines.
"""


class SearchOptions(TypedDict, total=False):
    """Options of a question and of a table."""

    request_id: str
    """A name for the request; within a day, the same name gets the same answer and spends
    nothing.
    """
    max_total_tokens: int
    """Prompt and completion tokens of all models together."""
    max_cost_usd: float
    no_cache: bool
    """Have every sub-query worked on anew, instead of using what other runs have found."""
    resume_run_id: str
    """An interrupted run to go on with; the question is left empty, and the other options are
    that run's.
    """


class RequestOptions(SearchOptions, total=False):
    """Options of a question."""

    topology: TopologyName
    """The searcher and the answerer."""


class TableOptions(SearchOptions, total=False):
    """Options of a table."""

    topology: TableTopologyName
    """Whoever finds rows and cells."""
    closed: bool
    """There are no rows besides those that are given: none are looked for."""
    max_rows: int


class FeedbackFields(TypedDict, total=False):
    """An opinion on an answer; at least one of these."""

    accepted: bool | None
    score: float | None
    """From 0 to 1."""
    right_answer: str
    comment: str


class Filter(TypedDict, total=False):
    """Runs that are meant; what is absent leaves nothing out. A moment without a time zone is
    local time.
    """

    tenant: str
    kind: Literal["answer", "complete", "execute", "table", "shadow"] | None
    start: datetime | None
    """Started at this time or later."""
    end: datetime | None
    """Started before this time."""


class ListFilter(Filter, total=False):
    """Runs that are to be listed."""

    status: Literal["running", "finished", "failed", "cancelled", "interrupted"] | None
    unsupported: bool
    """Only answers whose names or numbers stand in no evidence that a passage holds."""


class ExportFilter(Filter, total=False):
    """Runs that are to be exported."""

    for_training: bool
    """Leave out tenants whose runs must not train."""


class UsageOptions(TypedDict, total=False):
    """Calls that are summed, and their groups. A moment without a time zone is local time."""

    start: datetime | None
    """Calls that started at this time or later."""
    end: datetime | None
    """Calls that started before this time."""
    by: Sequence[Literal["tenant", "role", "model", "executor_version", "manager"]]
    """Groups of the sums; role and model, if it is empty."""
    bucket: Literal["hour", "day", "month"] | None
    """Buckets of time, in UTC."""
    tenant: str


def request_fields(options: RequestOptions) -> dict[str, Any]:
    """The fields of both requests for an answer. Raises `ValueError` for a cost that is no
    number.
    """
    topology = options.get("topology")
    return {**_search_fields(options), "topology": topology and f"TOPOLOGY_{topology.upper()}"}


def table_fields(options: TableOptions) -> dict[str, Any]:
    """The fields of both requests for a table that options say. Raises `ValueError` for a cost
    that is no number.
    """
    topology = options.get("topology")
    return {
        **_search_fields(options),
        "topology": topology and f"TABLE_TOPOLOGY_{topology.upper()}",
        "closed": options.get("closed", False),
        "max_rows": options.get("max_rows", 0),
    }


def _search_fields(options: SearchOptions) -> dict[str, Any]:
    tokens = options.get("max_total_tokens")
    cost = options.get("max_cost_usd")
    if cost is not None and not isfinite(cost):
        raise ValueError(f"max_cost_usd is {cost}; it must be a number of dollars.")
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
    """The fields of both requests for runs."""
    kind = wanted.get("kind")
    return {
        "tenant": wanted.get("tenant", ""),
        "kind": kind and f"RUN_KIND_{kind.upper()}",
        "start_time": utc(wanted.get("start")),
        "end_time": utc(wanted.get("end")),
    }


def utc(moment: datetime | None) -> datetime | None:
    """A moment in UTC, as messages want it; without a time zone it is local time."""
    return None if moment is None else moment.astimezone(UTC)
