"""Times of the wire and of values, which are Unix times and seconds."""

from typing import Literal

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rolegate.v1 import run_service_pb2, usage_service_pb2

from router.errors import BadRequest

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
