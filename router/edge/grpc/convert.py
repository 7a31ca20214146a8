"""Conversion of the gateway's values (msgspec structs) to protobuf messages. Fields are copied by
name; fields that need more than a copy are passed explicitly.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2, run_service_pb2, usage_service_pb2
from rolegate.v1 import executor_version_service_pb2 as version_pb

from router.edge.status import Failure, message_of, reason_of
from router.ledger import UsageReport
from router.runs.archive import RunSummary, shortened
from router.runs.support import MAX_CITATIONS, answer_sentences, grounds_of, unblocked
from router.trace import Call, Event, Execution, Run, Trajectory
from router.trace.call import totals
from router.trace.citation import Citation
from router.trace.export import outcome_of, output_of, trace_json
from router.trace.run import Feedback
from router.trace.table import RowKey
from router.trace.values import Reported, SubQueryDispatched
from router.versions import ExecutorVersion
from router.versions.book import TrialFigures

M = TypeVar("M", bound=Message)
WIRE_NAMES = {
    "call_id": "request_id",
    "cost_nano_usd": "nano_usd",
    "start_time": "started_at",
    "time_to_first_token": "first_token_s",
    "duration": "duration_s",
    "upload_time": "uploaded_at",
    "end_time": "ended_at",
    "create_time": "created_at",
    "revoke_time": "revoked_at",
    "state_time": "state_at",
    "register_time": "registered_at",
    "time": "decided_at",
    "bucket_start_time": "bucket_start",
    "canary_share": "share",
    "manifest_json": "manifest",
}
"""Maps the name of a message field to the name of the gateway's attribute, where the two differ.
Most of these are times: the names of attributes contain the unit, such as `duration_s`, but
messages have types for times.
"""
_MAX_BYTES = 2 << 20
"""Max bytes of an answer's `results`. Together with at most `MAX_CITATIONS` citations, the message
stays below the 4 MB that gRPC clients accept by default.
"""
_MAX_CHARS = 200_000
"""Max characters of a run's request, and of its output, so that the message stays below 4 MB. The
trace contains the whole texts.
"""


def to_proto(kind: type[M], value: object = None, **given: Any) -> M:
    """Return a message of type `kind`. A field gets its value from the keyword arguments `given`,
    or else from the attribute of `value` with the field's name (see `WIRE_NAMES`).

    A field whose value is None stays unset. Times and durations in seconds are converted to
    protobuf's types. Enum values are converted from names, in lower case and without the prefix of
    the enum, to numbers. Values for fields of message types are converted recursively.
    """
    fields = {}
    for name, attribute, converted in _fields(kind.DESCRIPTOR):
        content = given[name] if name in given else _named(value, attribute)
        if content is not None:
            fields[name] = content if converted is None else converted(content)
    return kind(**fields)


@cache
def _fields(message: Descriptor) -> list[tuple[str, str, Callable[[Any], Any] | None]]:
    """Return three values for each field of a message: the field's name, the name of the attribute
    with its value, and the function that converts the value (None to copy it).
    """
    return [
        (field.name, WIRE_NAMES.get(field.name, field.name), _conversion(field))
        for field in message.fields
    ]


def _named(value: object, name: str) -> Any:
    """Return the attribute `name` of a value. For a call, `name` may also be a count of its usage,
    such as `prompt_tokens`.
    """
    if isinstance(value, Call) and not hasattr(value, name):
        return value.count(name)
    return getattr(value, name)


def _conversion(field: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts the values for a message field; None if they are copied."""
    if field.enum_type is not None:
        prefix = prefix_of(field.enum_type)
        return {
            choice.name.removeprefix(prefix).lower(): choice.number
            for choice in field.enum_type.values
        }.__getitem__
    if field.message_type is None:
        return None
    match field.message_type.full_name:
        case "google.protobuf.Timestamp":
            return lambda seconds: datetime.fromtimestamp(seconds, UTC)
        case "google.protobuf.Duration":
            return lambda seconds: timedelta(seconds=seconds)
    kind = GetMessageClass(field.message_type)

    def converted(value: Any) -> Any:
        return value if isinstance(value, Message) else to_proto(kind, value)

    return (lambda values: list(map(converted, values))) if field.is_repeated else converted


def prefix_of(enum: EnumDescriptor) -> str:
    """Return the prefix that all value names of an enum have, such as `ROLE_`."""
    return str(enum.values_by_number[0].name.removesuffix("UNSPECIFIED"))


def execution_to_proto(
    execution: Execution, cited: Sequence[Sequence[Citation]] | None = None
) -> evidence_pb2.SubQueryResult:
    """Convert an executor's work on one sub-query to a message with the sub-query, the report and
    its citations. `cited`: the citations of each evidence point, that is, of each statement in the
    report; None to compute them here.
    """
    report = execution.report
    points = zip(report.evidence, cited or execution.citations(report.evidence), strict=True)
    result = to_proto(
        evidence_pb2.SubQueryResult,
        execution,
        answer=report.answer,
        evidence=[
            to_proto(evidence_pb2.EvidencePoint, text=text, citations=citations)
            for text, citations in points
        ],
        workers=map(execution_to_proto, execution.work.executions if execution.work else ()),
        search_queries=[search.query for search in execution.every_search],
        cut=None,
    )
    return _within(result, _MAX_BYTES)


def _within(result: evidence_pb2.SubQueryResult, max_bytes: int) -> evidence_pb2.SubQueryResult:
    """Return the result. If it has more than `max_bytes` bytes, first remove its evidence, workers
    and searches, and set `cut`.
    """
    if result.ByteSize() > max_bytes:
        for name in ("evidence", "workers", "search_queries"):
            result.ClearField(name)
        result.cut = True
    return result


async def answer_to_proto(run: Run) -> pb.AnswerResponse:
    """Convert the answer of a finished run to a message, with its sub-query results, citations and
    usage.
    """
    assert isinstance(run.result, Trajectory)
    return await unblocked(run.result, _answer_to_proto, run, run.result)


def _answer_to_proto(run: Run, result: Trajectory) -> pb.AnswerResponse:
    executions = result.executions
    results = list[evidence_pb2.SubQueryResult]()
    cited = list[list[list[Citation]]]()
    bytes_left = _MAX_BYTES
    for execution in executions:
        citations = execution.citations(execution.report.evidence)
        converted = _within(execution_to_proto(execution, citations), bytes_left)
        bytes_left -= converted.ByteSize()
        results.append(converted)
        cited.append(citations)
    grounds = grounds_of(executions, cited)
    return to_proto(
        pb.AnswerResponse,
        result,
        run_id=run.id,
        results=results,
        usage=totals(run.calls),
        question=run.question,
        duration=run.duration_s,
        citations=islice(grounds, MAX_CITATIONS),
        sentences=answer_sentences(run.question, result, grounds),
    )


def event_to_proto(
    kind: type[M],
    number: int,
    event: Event,
    **given: Any,
) -> M:
    """Convert an event of a run to a message of a stream. `kind`: the type of the message.
    `number`: the number of the event in the run. `given`: fields of the event, see `to_proto`.
    """
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    if isinstance(event, Reported):
        given["result"] = None if event.execution is None else execution_to_proto(event.execution)
    if isinstance(event, SubQueryDispatched):
        row, columns = (event.ask.row, event.ask.columns) if event.ask else (None, ())
        given |= {"row_id": row and row_id(row), "columns": columns}
    field: Any = kind.DESCRIPTOR.fields_by_name[name]
    fields: dict[str, Any] = {name: to_proto(GetMessageClass(field.message_type), event, **given)}
    return kind(event_number=number, **fields)


def row_id(key: RowKey) -> str:
    """Return the identifier of a table's row: the canonical values of the row's key columns, as a
    JSON array.
    """
    return msgspec.json.encode(key).decode()


def run_to_proto(run: Run | RunSummary) -> run_service_pb2.Run:
    """Convert a run, or an entry of a list of runs, to a `Run` message, which has no output and no
    trace.
    """
    outcome = run.outcome if isinstance(run, RunSummary) else outcome_of(run)
    duration = None if run.status == "running" else run.duration_s
    of_table = run.kind == "table"
    outcomes = {
        "outcome": None if of_table else outcome,
        "table_outcome": outcome if of_table else None,
    }
    return to_proto(
        run_service_pb2.Run,
        run,
        run_id=run.id,
        duration=duration,
        **outcomes,
    )


def full_run_to_proto(
    run: Run, feedback: Iterable[Feedback], with_trace: bool
) -> run_service_pb2.GetRunResponse:
    """Convert a run with its usage, calls, output and feedback. `with_trace`: True to include the
    whole trace as JSON.
    """
    return to_proto(
        run_service_pb2.GetRunResponse,
        run,
        run=run_to_proto(msgspec.structs.replace(run, request=shortened(run.request, _MAX_CHARS))),
        usage=totals(run.calls),
        error=message_of(run.error),
        error_reason=reason_of(run.error),
        trace_json=trace_json(run) if with_trace else None,
        output=shortened(output_of(run), _MAX_CHARS),
        feedback=map(feedback_to_proto, feedback),
    )


def feedback_to_proto(feedback: Feedback) -> run_service_pb2.Feedback:
    """Convert feedback on a run to its message."""
    verdict = {None: None, True: "accepted", False: "rejected"}[feedback.accepted]
    return to_proto(run_service_pb2.Feedback, feedback, verdict=verdict)


def version_to_proto(
    version: ExecutorVersion, figures: TrialFigures | None = None
) -> version_pb.ExecutorVersion:
    """Convert a version of the executor to its message. `figures`: the figures of the
    version's trial; None if the version is not on trial.
    """
    return to_proto(version_pb.ExecutorVersion, version, figures=figures)


def usage_report_to_proto(report: UsageReport) -> usage_service_pb2.GetUsageResponse:
    """Convert a report of usage (sums of calls over many runs) to its message."""
    kind = usage_service_pb2.UsageRow
    rows = [to_proto(kind, row, usage=row) for row in report.rows]
    return usage_service_pb2.GetUsageResponse(runs=report.runs, rows=rows)


DOMAIN = "rolegate"
"""Domain in the `ErrorInfo` of all errors of the gateway."""


def status_to_proto(failure: Failure) -> status_pb2.Status:
    """Convert a failure to a gRPC status with `ErrorInfo`, and with `RetryInfo` if the delay until
    a retry is known.
    """
    info = error_details_pb2.ErrorInfo(reason=failure.reason, domain=DOMAIN)
    if failure.role:
        info.metadata["role"] = failure.role
    status = status_pb2.Status(code=failure.code, message=failure.message)
    if (wait_s := failure.retry_after_s) is not None:
        info.metadata["retry_after_s"] = f"{wait_s:.3f}"
    status.details.add().Pack(info)
    if wait_s is not None:
        status.details.add().Pack(
            error_details_pb2.RetryInfo(retry_delay=timedelta(seconds=wait_s))
        )
    return status
