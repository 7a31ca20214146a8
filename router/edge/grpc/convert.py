"""Values to wire types: fields whose names agree are copied by one function, the others are
said where they differ.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, islice
from typing import Any, TypeVar

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2, run_service_pb2, usage_pb2, usage_service_pb2
from rolegate.v1 import executor_version_service_pb2 as version_pb

from router.background import in_worker
from router.edge.status import Failure
from router.ledger import UsageReport
from router.ledger.reconciliation import Reconciliation
from router.runs.archive import RunSummary, shortened
from router.trace import Call, Event, Execution, Run, Trajectory
from router.trace.call import totals
from router.trace.citation import Citation, cite_answer
from router.trace.export import outcome_of, output_of, trace_json
from router.trace.run import Feedback
from router.trace.table import RowKey
from router.trace.values import Reported, SubQueryDispatched
from router.versions import ExecutorVersion, VersionDecision
from router.versions.book import TrialFigures

M = TypeVar("M", bound=Message)
WIRE_NAMES = {
    "call_id": "request_id",
    "cost_nano_usd": "nano_usd",
    "start_time": "started_at",
    "time_to_first_token": "first_token_s",
    "duration": "duration_s",
}
"""Fields of messages that have another name here; units are in the wire's types."""
_MOST_BYTES = 2 << 20
_MOST_CITATIONS = 500
"""Of the results of an answer, and of the sentences that it rests on, so that it fits into the
same 4 MB.
"""
_MOST_CHARS = 200_000
"""Of a request and of an output, so that a run with all its feedback fits into the 4 MB that gRPC's
clients take; the trace has all of both.
"""


def to_proto(kind: type[M], value: object, **given: Any) -> M:
    """A message of `kind` with the fields of `value`, by name, and with those that are `given`.
    None leaves a field out; times are seconds, and enums are their names in small letters, without
    the prefix.
    """
    fields = {}
    for name, attribute, converted in _fields(kind.DESCRIPTOR):
        known = given[name] if name in given else _named(value, attribute)
        if known is not None:
            fields[name] = known if converted is None else converted(known)
    return kind(**fields)


@cache
def _fields(message: Descriptor) -> list[tuple[str, str, Callable[[Any], Any] | None]]:
    """The fields of a message: name, name here, and what makes a value of the wire of one of
    ours.
    """
    return [
        (each.name, WIRE_NAMES.get(each.name, each.name), _conversion(each))
        for each in message.fields
    ]


def _named(value: object, name: str) -> Any:
    return (
        value.count(name)
        if isinstance(value, Call) and not hasattr(value, name)
        else getattr(value, name)
    )


def _conversion(field: Any) -> Callable[[Any], Any] | None:
    if field.enum_type is not None:
        prefix = prefix_of(field.enum_type)
        return {
            each.name.removeprefix(prefix).lower(): each.number for each in field.enum_type.values
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
    """The beginning of all names of an enum, such as `ROLE_`."""
    return str(enum.values_by_number[0].name.removesuffix("UNSPECIFIED"))


def execution_to_proto(
    execution: Execution, cited: Sequence[Sequence[Citation]] | None = None
) -> evidence_pb2.SubQueryResult:
    """A sub-query with its report and where its evidence stands. `cited`: its citations, where
    they are known.
    """
    report = execution.report
    points = zip(report.evidence, cited or execution.citations(report.evidence), strict=True)
    result = to_proto(
        evidence_pb2.SubQueryResult,
        execution,
        answer=report.answer,
        evidence=[
            to_proto(evidence_pb2.EvidencePoint, None, text=text, citations=found)
            for text, found in points
        ],
        workers=[execution_to_proto(one) for one in execution.work.executions]
        if execution.work
        else (),
        search_queries=[search.query for search in execution.every_search],
        cut=None,
    )
    return _within(result, _MOST_BYTES)


def _within(result: evidence_pb2.SubQueryResult, most: int) -> evidence_pb2.SubQueryResult:
    """Return a result that is too large for a message without what supports it."""
    if result.ByteSize() > most:
        for name in ("evidence", "workers", "search_queries"):
            result.ClearField(name)
        result.cut = True
    return result


async def answer_to_proto(run: Run) -> pb.AnswerResponse:
    """The answer to a question, from its finished run. A worker thread cites, as passages may
    be long.
    """
    assert isinstance(run.result, Trajectory)
    results = list[evidence_pb2.SubQueryResult]()
    cited = dict[Citation, None]()
    room = _MOST_BYTES
    for execution in run.result.executions:
        found = await in_worker(execution.citations, execution.report.evidence)
        result = _within(await in_worker(execution_to_proto, execution, found), room)
        room -= result.ByteSize()
        results.append(result)
        cited.update(dict.fromkeys(chain.from_iterable(found)))
    for search in run.result.searches:
        cited.update(dict.fromkeys(await in_worker(cite_answer, run.result.answer, search.shown)))
    return to_proto(
        pb.AnswerResponse,
        run.result,
        run_id=run.id,
        results=results,
        usage=usage_to_proto(run.calls),
        duration=run.duration_s,
        citations=islice(cited, _MOST_CITATIONS),
    )


def event_to_proto(kind: type[M], number: int, event: Event, **given: Any) -> M:
    """One numbered event, as a message of a stream. `given`: as `to_proto`."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    if isinstance(event, Reported):
        given["result"] = None if event.execution is None else execution_to_proto(event.execution)
    if isinstance(event, SubQueryDispatched):
        row, columns = (event.ask.row, event.ask.columns) if event.ask else (None, ())
        given |= {"row_id": row and row_id(row), "columns": columns}
    field: Any = kind.DESCRIPTOR.fields_by_name[name]
    fields: dict[str, Any] = {name: to_proto(GetMessageClass(field.message_type), event, **given)}
    return kind(event_number=number, **fields)


async def tell_event(told: Callable[[int, Event], M], number: int, event: Event) -> M:
    """Return an event as `told` converts it, in a worker thread where its passages are to be
    cited.
    """
    return (
        await in_worker(told, number, event) if isinstance(event, Reported) else told(number, event)
    )


def row_id(key: RowKey) -> str:
    """The identifier of a table's row: the canonical values of its keys, as a JSON array."""
    return msgspec.json.encode(key).decode()


async def last_events_to_proto(
    number: int, run: Run
) -> tuple[pb.StreamAnswerResponse, pb.StreamAnswerResponse]:
    """The tokens, as event `number`, and then the answer, of a finished run."""
    done = await answer_to_proto(run)
    return (
        pb.StreamAnswerResponse(
            event_number=number, usage_counted=pb.UsageCounted(usage=done.usage)
        ),
        pb.StreamAnswerResponse(event_number=number + 1, done=done),
    )


def run_to_proto(run: Run | RunSummary) -> run_service_pb2.Run:
    """A run, without what was said in it."""
    outcome = run.outcome if isinstance(run, RunSummary) else outcome_of(run)
    duration = None if run.status == "running" else run.duration_s
    of_table = run.kind == "table"
    outcomes = {
        "outcome": None if of_table else outcome,
        "table_outcome": outcome if of_table else None,
    }
    return to_proto(run_service_pb2.Run, run, run_id=run.id, duration=duration, **outcomes)


def whole_run_to_proto(
    run: Run, feedback: Iterable[Feedback], with_trace: bool
) -> run_service_pb2.GetRunResponse:
    """A run with what it spent, and what was said of it."""
    return to_proto(
        run_service_pb2.GetRunResponse,
        run,
        run=run_to_proto(msgspec.structs.replace(run, request=shortened(run.request, _MOST_CHARS))),
        usage=usage_to_proto(run.calls),
        trace_json=trace_json(run) if with_trace else None,
        output=shortened(output_of(run), _MOST_CHARS),
        feedback=map(feedback_to_proto, feedback),
    )


def feedback_to_proto(feedback: Feedback) -> run_service_pb2.Feedback:
    """Feedback, as it was given."""
    verdict = None if feedback.accepted is None else "accepted" if feedback.accepted else "rejected"
    return to_proto(run_service_pb2.Feedback, feedback, verdict=verdict)


def version_to_proto(
    version: ExecutorVersion, figures: TrialFigures | None = None
) -> version_pb.ExecutorVersion:
    """A version with what it has shown in its trial."""
    return to_proto(
        version_pb.ExecutorVersion,
        version,
        canary_share=version.share,
        state_time=version.state_at,
        register_time=version.registered_at,
        manifest_json=version.manifest,
        figures=figures,
    )


def decision_to_proto(decision: VersionDecision) -> version_pb.ExecutorVersionDecision:
    """A decision with what it rests on."""
    return to_proto(version_pb.ExecutorVersionDecision, decision, time=decision.decided_at)


def usage_to_proto(calls: tuple[Call, ...]) -> list[usage_pb2.RoleUsage]:
    """Sums by role and model."""
    return [to_proto(usage_pb2.RoleUsage, total) for total in totals(calls)]


def usage_report_to_proto(report: UsageReport) -> usage_service_pb2.GetUsageResponse:
    """Sums over many runs."""
    kind = usage_service_pb2.UsageRow
    rows = [
        to_proto(kind, row, bucket_start_time=row.bucket_start, usage=row) for row in report.rows
    ]
    return usage_service_pb2.GetUsageResponse(runs=report.runs, rows=rows)


def reconciliation_to_proto(found: Reconciliation) -> usage_service_pb2.Reconciliation:
    """The comparison with one deployment."""
    return to_proto(usage_service_pb2.Reconciliation, found, start_time=found.start)


DOMAIN = "rolegate"
"""Of the reasons in statuses."""


def status_to_proto(failure: Failure) -> status_pb2.Status:
    """The failure with its details: `ErrorInfo`, and `RetryInfo` where it is known when to come
    back.
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
