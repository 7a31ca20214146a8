"""Wire types of what was spent to values and back."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rolegate.v1 import run_service_pb2, usage_pb2, usage_service_pb2
from rolegate.v1 import usage_service_pb2 as pb

from router.errors import BadRequest
from router.ledger.reconciliation import ReconciledTokens, Reconciliation, Verdict
from router.ledger.usage import Bucket, Dimension, UsageQuery, UsageReport, UsageRow
from router.trace.call import Call, RoleName, RoleTotal, totals
from router.trace.identity import Identity

Spanned = usage_service_pb2.GetUsageRequest | run_service_pb2.ListRunsRequest | run_service_pb2.ExportRunsRequest


def span_from_proto(request: Spanned) -> tuple[float | None, float | None]:
    """From when until when, in Unix time; None for no bound. Raises `BadRequest` for what is no time, or no span."""
    start, end = _seconds(request, "start_time"), _seconds(request, "end_time")
    if start is not None and end is not None and start >= end:
        raise BadRequest("start_time is not before end_time; leave one of them out, or exchange them.")
    return start, end


def _seconds(request: Spanned, field: Literal["start_time", "end_time"]) -> float | None:
    if not request.HasField(field):
        return None
    timestamp: Timestamp = getattr(request, field)
    try:
        return timestamp.ToNanoseconds() / 1e9
    except ValueError as error:
        raise BadRequest(f"{field}: {error}") from None


def timestamp_to_proto(seconds: float) -> Timestamp:
    """A Unix time."""
    timestamp = Timestamp()
    timestamp.FromMicroseconds(round(seconds * 1e6))
    return timestamp


def duration_to_proto(seconds: float) -> Duration:
    """A length of time."""
    duration = Duration()
    duration.FromMicroseconds(round(seconds * 1e6))
    return duration


ROLES: dict[RoleName, usage_pb2.Role] = {
    "delegation": usage_pb2.ROLE_DELEGATION,
    "execution": usage_pb2.ROLE_EXECUTION,
    "answer": usage_pb2.ROLE_ANSWER,
    "judge": usage_pb2.ROLE_JUDGE,
}
ROLE_NAMES = {number: name for name, number in ROLES.items()}
_DIMENSIONS: dict[pb.UsageDimension, Dimension] = {
    pb.USAGE_DIMENSION_TENANT: "tenant",
    pb.USAGE_DIMENSION_ROLE: "role",
    pb.USAGE_DIMENSION_MODEL: "model",
    pb.USAGE_DIMENSION_EXECUTOR_VERSION: "executor_version",
}
_BUCKETS: dict[pb.UsageBucket, Bucket | None] = {
    pb.USAGE_BUCKET_UNSPECIFIED: None,
    pb.USAGE_BUCKET_HOUR: "hour",
    pb.USAGE_BUCKET_DAY: "day",
    pb.USAGE_BUCKET_MONTH: "month",
}
_VERDICTS: dict[Verdict, pb.ReconciliationVerdict] = {
    "equal": pb.RECONCILIATION_VERDICT_EQUAL,
    "within_bounds": pb.RECONCILIATION_VERDICT_WITHIN_BOUNDS,
    "different": pb.RECONCILIATION_VERDICT_DIFFERENT,
    "unknown": pb.RECONCILIATION_VERDICT_UNKNOWN,
}


def usage_to_proto(calls: tuple[Call, ...]) -> list[usage_pb2.RoleUsage]:
    """Sums by role and model."""
    return [_sums_to_proto(total) for total in totals(calls)]


def usage_query_from_proto(request: pb.GetUsageRequest, identity: Identity) -> UsageQuery:
    """What is to be summed, of one tenant alone where `identity` is one. Raises `BadRequest`."""
    for position, number in enumerate(request.group_by):
        if number not in _DIMENSIONS:
            raise BadRequest(f"group_by[{position}] is {number}; use USAGE_DIMENSION_TENANT, _ROLE, _MODEL, ….")
    if request.bucket not in _BUCKETS:
        raise BadRequest("bucket must be USAGE_BUCKET_HOUR, USAGE_BUCKET_DAY or USAGE_BUCKET_MONTH, or left out.")
    start, end = span_from_proto(request)
    by = tuple(dict.fromkeys(_DIMENSIONS[number] for number in request.group_by))
    return UsageQuery(
        start, end, identity.tenant or request.tenant or None, by or UsageQuery().by, _BUCKETS[request.bucket]
    )


def usage_report_to_proto(report: UsageReport) -> pb.GetUsageResponse:
    """Sums over many runs."""
    return pb.GetUsageResponse(runs=report.runs, rows=map(_row_to_proto, report.rows))


def reconciliation_to_proto(found: Reconciliation) -> pb.Reconciliation:
    """The comparison with one deployment."""
    return pb.Reconciliation(
        deployment=found.deployment,
        verdict=_VERDICTS[found.verdict],
        reason=found.reason,
        start_time=None if found.start is None else timestamp_to_proto(found.start),
        completed_calls=found.completed_calls,
        uncertain_calls=found.uncertain_calls,
        prompt_tokens=_tokens_to_proto(found.prompt_tokens),
        completion_tokens=_tokens_to_proto(found.completion_tokens),
    )


def _row_to_proto(row: UsageRow) -> pb.UsageRow:
    return pb.UsageRow(
        bucket_start_time=None if row.bucket_start is None else timestamp_to_proto(row.bucket_start),
        tenant=row.tenant or "",
        executor_version=row.executor_version or "",
        usage=_sums_to_proto(row),
    )


def _sums_to_proto(sums: RoleTotal | UsageRow) -> usage_pb2.RoleUsage:
    return usage_pb2.RoleUsage(**wire_fields(usage_pb2.RoleUsage, sums))


WIRE_NAMES = {
    "call_id": "request_id",
    "cost_nano_usd": "nano_usd",
    "start_time": "started_at",
    "time_to_first_token": "first_token_s",
    "duration": "duration_s",
}
"""The fields of calls and sums that are called otherwise on the wire."""


def wire_fields(message: type[Message], value: Call | RoleTotal | UsageRow) -> dict[str, Any]:
    """The fields of `message` that `value` knows, a call's usage included; units are in the wire's types."""
    known = {}
    for field in message.DESCRIPTOR.fields:
        name = WIRE_NAMES.get(field.name, field.name)
        count = value.count(name) if isinstance(value, Call) and not hasattr(value, name) else getattr(value, name)
        if count is not None:
            kind = field.message_type or field.enum_type
            known[field.name] = _TO_WIRE[kind.full_name](count) if kind else count
    return known


_TO_WIRE: dict[str, Callable[[Any], object]] = {
    Timestamp.DESCRIPTOR.full_name: timestamp_to_proto,
    Duration.DESCRIPTOR.full_name: duration_to_proto,
    usage_pb2.Role.DESCRIPTOR.full_name: ROLES.__getitem__,
}


def _tokens_to_proto(tokens: ReconciledTokens | None) -> pb.ReconciledTokens | None:
    return None if tokens is None else pb.ReconciledTokens(**msgspec.structs.asdict(tokens))
