"""Options of the client's calls, and their conversion to request fields."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, TypedDict, TypeVar

from google.protobuf.message import Message

from rolegate.client.options import enum_number
from rolegate.v1.budget_pb2 import Budget

M = TypeVar("M", bound=Message)

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
TopologyName = Literal["factorized", "host"]
"""Search topology: the three roles, or managers between them."""


_WIRE_NAMES = {"start": "start_time", "end": "end_time", "by": "group_by"}
"""Names of request fields that differ from the option's."""


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


def request(kind: type[M], options: Mapping[str, Any], **fields: Any) -> M:
    """Return a request with `fields` and options by name; times are converted to UTC, and one
    without a time zone is local. Raises `ValueError` for an unknown choice and for a cost that is
    not finite.
    """
    limits = dict[str, Any]()
    for option, value in options.items():
        if value is None or value == "":
            continue
        if option == "max_total_tokens":
            limits[option] = value
            continue
        if option == "max_cost_usd":
            limits["max_cost_nano_usd"] = _nano_usd(value)
            continue
        field = kind.DESCRIPTOR.fields_by_name[_WIRE_NAMES.get(option, option)]
        if isinstance(value, datetime):
            fields[field.name] = value.astimezone(UTC)
        elif field.enum_type is None:
            fields[field.name] = value
        elif field.is_repeated:
            fields[field.name] = [enum_number(field.enum_type, option, name) for name in value]
        else:
            fields[field.name] = enum_number(field.enum_type, option, value)
    if limits:
        fields["budget"] = Budget(**limits)
    return kind(**fields)


def _nano_usd(dollars: float) -> int:
    if not isfinite(dollars):
        raise ValueError(f"max_cost_usd must be a finite number of dollars, got {dollars}.")
    return round(dollars * 1e9)
