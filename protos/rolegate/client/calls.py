"""Calls of a gateway: the request of each, and the part of the response that it returns.

Both clients have a method for each. All raise `ValueError` for an unknown kind, state, topology or
dimension.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar, Unpack

from rolegate.client.options import Result, enum_name
from rolegate.client.requests import (
    ANSWER_S,
    SHORT_S,
    TABLE_S,
    ExportFilter,
    FeedbackFields,
    ListFilter,
    RequestOptions,
    TableOptions,
    TriedState,
    UsageOptions,
    filter_fields,
    request_fields,
    table_fields,
    utc,
)
from rolegate.client.table import Columns, Rows, Table, given_rows, parse_columns
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.evidence_pb2 import Passage
from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceStub
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.table_service_pb2_grpc import TableServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

_PAGE = 100
_ROWS = 1000
_VERDICTS = {
    None: run_pb.VERDICT_UNSPECIFIED,
    True: run_pb.VERDICT_ACCEPTED,
    False: run_pb.VERDICT_REJECTED,
}
Q = TypeVar("Q")


class Stubs:
    """Stubs of a gateway's services on one channel."""

    def __init__(self, channel: Any) -> None:
        self.answers = AnswerServiceStub(channel)
        self.runs = RunServiceStub(channel)
        self.usage = UsageServiceStub(channel)
        self.versions = ExecutorVersionServiceStub(channel)
        self.retrieval = RetrievalServiceStub(channel)
        self.tables = TableServiceStub(channel)


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """One call, unary or streamed."""

    method: Callable[[Stubs], Any]
    request: Any
    result: Callable[[Any], Result] = lambda response: response
    """Maps a response to what the caller gets."""
    timeout_s: float | None = SHORT_S
    repeatable: bool = False
    """True to retry once if the connection breaks: the `request_id` prevents double spending."""


def ask(
    question: str, timeout_s: float = ANSWER_S, **options: Unpack[RequestOptions]
) -> Call[answer_pb.AnswerResponse]:
    """Answer a question, with citations and cost. If the connection breaks, the request is sent
    once more with the same `request_id`, which spends nothing twice.
    """
    request = answer_pb.AnswerRequest(question=question, **request_fields(options))
    request.request_id = request.request_id or str(uuid.uuid4())
    return Call(lambda to: to.answers.Answer, request, timeout_s=timeout_s, repeatable=True)


def stream(
    question: str, timeout_s: float = ANSWER_S, **options: Unpack[RequestOptions]
) -> Call[answer_pb.StreamAnswerResponse]:
    """Answer a question and stream its events; the last one is `done`, with the whole answer."""
    return Call(
        lambda to: to.answers.StreamAnswer,
        answer_pb.StreamAnswerRequest(question=question, **request_fields(options)),
        timeout_s=timeout_s,
    )


def table(
    question: str,
    columns: Columns,
    rows: Rows = (),
    timeout_s: float = TABLE_S,
    **options: Unpack[TableOptions],
) -> Call[Table]:
    """Fill a table. `columns`: text such as "city*, founder, founded:integer", or messages.
    `rows`: known rows, each with a value for every column or with some by name; empty values are
    searched for, the others kept. Retried like `ask`.
    """
    request = _table_request(table_pb.FillTableRequest, question, columns, rows, options)
    request.request_id = request.request_id or str(uuid.uuid4())
    return Call(
        lambda to: to.tables.FillTable,
        request,
        lambda filled: Table(filled.table),
        timeout_s,
        repeatable=True,
    )


def stream_table(
    question: str,
    columns: Columns,
    rows: Rows = (),
    timeout_s: float = TABLE_S,
    **options: Unpack[TableOptions],
) -> Call[table_pb.StreamTableResponse]:
    """Fill a table and stream its events; the last one is `done`, whose message `Table` takes."""
    request = _table_request(table_pb.StreamTableRequest, question, columns, rows, options)
    return Call(lambda to: to.tables.StreamTable, request, timeout_s=timeout_s)


def begin_table(
    question: str,
    columns: Columns,
    rows: Rows = (),
    **options: Unpack[TableOptions],
) -> Call[str]:
    """Start a detached run that fills a table. Return its identifier, for `get_table` and
    `watch`.
    """
    request = _table_request(table_pb.FillTableRequest, question, columns, rows, options)
    request.detached = True
    return Call(lambda to: to.tables.FillTable, request, attrgetter("run_id"))


def _table_request(
    kind: Callable[..., Q],
    question: str,
    columns: Columns,
    rows: Rows,
    options: TableOptions,
) -> Q:
    parsed = parse_columns(columns)
    return kind(
        question=question,
        columns=parsed,
        rows=given_rows(parsed, rows),
        **table_fields(options),
    )


def table_page(run_id: str, page_token: str) -> Call[table_pb.GetTableResponse]:
    """Return a page of a run's table; an empty token requests the first page."""
    request = table_pb.GetTableRequest(run_id=run_id, page_size=_ROWS, page_token=page_token)
    return Call(lambda to: to.tables.GetTable, request)


def search(query: str, top_k: int = 0, timeout_s: float = SHORT_S) -> Call[Sequence[Passage]]:
    """Return the nearest passages, best first. `top_k`: 0 for the server's default."""
    request = SearchRequest(queries=[query], top_k=top_k)
    return Call(
        lambda to: to.retrieval.Search,
        request,
        lambda response: response.results[0].passages,
        timeout_s,
    )


def run(run_id: str, *, trace: bool = False) -> Call[run_pb.GetRunResponse]:
    """Return a run, running or ended, with its output, usage, feedback and, if asked for, its
    trace.
    """
    return Call(lambda to: to.runs.GetRun, run_pb.GetRunRequest(run_id=run_id, include_trace=trace))


def page(page_token: str, wanted: ListFilter) -> Call[run_pb.ListRunsResponse]:
    """Return a page of runs, newest first; an empty token requests the first page."""
    status: Any = enum_name(run_pb.RunStatus, "status", wanted.get("status"))
    request = run_pb.ListRunsRequest(
        page_size=_PAGE,
        page_token=page_token,
        status=status,
        **filter_fields(wanted),
    )
    request.unsupported = wanted.get("unsupported", False)
    return Call(lambda to: to.runs.ListRuns, request)


Event = answer_pb.StreamAnswerResponse | table_pb.StreamTableResponse


def watch(run_id: str, after: int = 0, timeout_s: float | None = None) -> Call[Event]:
    """Stream the events of an answer or a table after event number `after`, as `stream` and
    `stream_table` do.
    """

    def event(response: run_pb.WatchRunResponse) -> Event:
        return response.table_event if response.HasField("table_event") else response.event

    return Call(
        lambda to: to.runs.WatchRun,
        run_pb.WatchRunRequest(run_id=run_id, after_event_number=after),
        event,
        timeout_s,
    )


def cancel(run_id: str) -> Call[None]:
    """Cancel a run; does nothing if it has ended."""
    return Call(
        lambda to: to.runs.CancelRun, run_pb.CancelRunRequest(run_id=run_id), lambda _: None
    )


def feedback(run_id: str, **opinion: Unpack[FeedbackFields]) -> Call[str]:
    """Submit feedback on an answer. Return the feedback's identifier."""
    request = run_pb.SubmitFeedbackRequest(
        run_id=run_id,
        verdict=_VERDICTS[opinion.get("accepted")],
        score=opinion.get("score"),
        right_answer=opinion.get("right_answer", ""),
        comment=opinion.get("comment", ""),
    )
    return Call(lambda to: to.runs.SubmitFeedback, request, attrgetter("feedback_id"))


def export(
    timeout_s: float | None = None, **wanted: Unpack[ExportFilter]
) -> Call[run_pb.ExportRunsResponse]:
    """Stream all ended runs with their traces, oldest first."""
    request = run_pb.ExportRunsRequest(
        for_training=wanted.get("for_training", False), **filter_fields(wanted)
    )
    return Call(lambda to: to.runs.ExportRuns, request, timeout_s=timeout_s)


def usage(**sums: Unpack[UsageOptions]) -> Call[usage_pb.GetUsageResponse]:
    """Sum tokens and cost over all calls."""
    groups: Any = [enum_name(usage_pb.UsageDimension, "by", name) for name in sums.get("by", ())]
    bucket: Any = enum_name(usage_pb.UsageBucket, "bucket", sums.get("bucket"))
    request = usage_pb.GetUsageRequest(
        start_time=utc(sums.get("start")),
        end_time=utc(sums.get("end")),
        tenant=sums.get("tenant", ""),
        group_by=groups,
        bucket=bucket,
    )
    return Call(lambda to: to.usage.GetUsage, request)


def reconcile() -> Call[Sequence[usage_pb.Reconciliation]]:
    """Compare the ledger with the engines' own counters."""
    return Call(
        lambda to: to.usage.ReconcileUsage,
        usage_pb.ReconcileUsageRequest(),
        attrgetter("reconciliations"),
    )


def versions() -> Call[Sequence[version_pb.ExecutorVersion]]:
    """Return the executor's versions, newest first."""
    return Call(
        lambda to: to.versions.ListExecutorVersions,
        version_pb.ListExecutorVersionsRequest(),
        attrgetter("versions"),
    )


def register_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Check a published version, load it and register it."""
    request = version_pb.RegisterExecutorVersionRequest(version=version)
    return Call(
        lambda to: to.versions.RegisterExecutorVersion, request, attrgetter("version"), ANSWER_S
    )


def set_version_traffic(
    version: str, state: TriedState, share: float = 0.0
) -> Call[version_pb.ExecutorVersion]:
    """Make a version the shadow, give it a share of the runs, or take its traffic away."""
    wanted: Any = enum_name(version_pb.ExecutorVersionState, "state", state)
    request = version_pb.SetExecutorVersionTrafficRequest(
        version=version, state=wanted, canary_share=share
    )
    return Call(
        lambda to: to.versions.SetExecutorVersionTraffic, request, attrgetter("version"), ANSWER_S
    )


def promote_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Make a version the active one."""
    request = version_pb.PromoteExecutorVersionRequest(version=version)
    return Call(
        lambda to: to.versions.PromoteExecutorVersion, request, attrgetter("version"), ANSWER_S
    )


def roll_back_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Take a version out of service. Return the version that is active now."""
    request = version_pb.RollBackExecutorVersionRequest(version=version)
    return Call(lambda to: to.versions.RollBackExecutorVersion, request, attrgetter("active"))


def version_decisions(
    version: str = "", after: int = 0
) -> Call[Sequence[version_pb.ExecutorVersionDecision]]:
    """Return the decisions on one version, or on all, after decision number `after`: oldest
    first, at most 1000.
    """
    request = version_pb.ListExecutorVersionDecisionsRequest(version=version, after_number=after)
    return Call(
        lambda to: to.versions.ListExecutorVersionDecisions, request, attrgetter("decisions")
    )
