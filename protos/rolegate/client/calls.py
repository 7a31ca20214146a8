"""Every call of a gateway, once: its request, and what of the response is wanted. The clients
make methods of them.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar, Unpack

from rolegate.client.options import Result
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
    """The services of a gateway, over a channel."""

    def __init__(self, channel: Any) -> None:
        self.answers = AnswerServiceStub(channel)
        self.runs = RunServiceStub(channel)
        self.usage = UsageServiceStub(channel)
        self.versions = ExecutorVersionServiceStub(channel)
        self.retrieval = RetrievalServiceStub(channel)
        self.tables = TableServiceStub(channel)


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """One call, with a single response or a stream of them."""

    method: Callable[[Stubs], Any]
    request: Any
    result: Callable[[Any], Result] = lambda response: response
    """Gets a response; returns what of it is wanted."""
    timeout_s: float | None = SHORT_S
    repeatable: bool = False
    """The call is made once more where the connection breaks: its request has a name, and
    spends nothing twice.
    """


# Each raises `ValueError` for a kind, a state, a topology or a dimension that there is not.


def ask(
    question: str, timeout_s: float = ANSWER_S, **options: Unpack[RequestOptions]
) -> Call[answer_pb.AnswerResponse]:
    """Answer a question, with what the answer rests on and what it cost. Where the connection
    breaks, it is asked once more, under the same request_id, which spends nothing twice.
    """
    request = answer_pb.AnswerRequest(question=question, **request_fields(options))
    request.request_id = request.request_id or str(uuid.uuid4())
    return Call(lambda to: to.answers.Answer, request, timeout_s=timeout_s, repeatable=True)


def stream(
    question: str, timeout_s: float = ANSWER_S, **options: Unpack[RequestOptions]
) -> Call[answer_pb.StreamAnswerResponse]:
    """Answer a question and tell what happens on the way; the last event is `done`, with the
    whole answer.
    """
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
    """Fill a table. `columns`: "city*, founder, founded:integer", for one, or messages. `rows`:
    known ones, each with a value for each column or with some by name; empty ones are asked for,
    the others kept. Asked once more as `ask`.
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
    """Fill a table and tell what happens on the way; the last event is `done`, of which `Table`
    takes the message.
    """
    request = _table_request(table_pb.StreamTableRequest, question, columns, rows, options)
    return Call(lambda to: to.tables.StreamTable, request, timeout_s=timeout_s)


def begin_table(
    question: str, columns: Columns, rows: Rows = (), **options: Unpack[TableOptions]
) -> Call[str]:
    """Let a table be filled by a run that goes on without the client. Its identifier, for
    `get_table` and `watch`.
    """
    request = _table_request(table_pb.FillTableRequest, question, columns, rows, options)
    request.detached = True
    return Call(lambda to: to.tables.FillTable, request, attrgetter("run_id"))


def _table_request(
    kind: Callable[..., Q], question: str, columns: Columns, rows: Rows, options: TableOptions
) -> Q:
    parsed = parse_columns(columns)
    return kind(
        question=question, columns=parsed, rows=given_rows(parsed, rows), **table_fields(options)
    )


def table_page(run_id: str, page_token: str) -> Call[table_pb.GetTableResponse]:
    """A page of a run's table; the first one has no token."""
    request = table_pb.GetTableRequest(run_id=run_id, page_size=_ROWS, page_token=page_token)
    return Call(lambda to: to.tables.GetTable, request)


def search(query: str, top_k: int = 0, timeout_s: float = SHORT_S) -> Call[Sequence[Passage]]:
    """The nearest passages, best first; as many as the server's default where `top_k` is 0."""
    request = SearchRequest(queries=[query], top_k=top_k)
    return Call(
        lambda to: to.retrieval.Search, request, lambda found: found.results[0].passages, timeout_s
    )


def run(run_id: str, *, trace: bool = False) -> Call[run_pb.GetRunResponse]:
    """A run, running or ended, with its output, its calls, the feedback on it and, if wanted,
    its trace.
    """
    return Call(lambda to: to.runs.GetRun, run_pb.GetRunRequest(run_id=run_id, include_trace=trace))


def page(page_token: str, wanted: ListFilter) -> Call[run_pb.ListRunsResponse]:
    """A page of runs, newest first; the first one has no token."""
    status = wanted.get("status")
    named = status and f"RUN_STATUS_{status.upper()}"
    request = run_pb.ListRunsRequest(
        page_size=_PAGE, page_token=page_token, status=named, **filter_fields(wanted)
    )
    request.unsupported = wanted.get("unsupported", False)
    return Call(lambda to: to.runs.ListRuns, request)


Event = answer_pb.StreamAnswerResponse | table_pb.StreamTableResponse


def watch(run_id: str, after: int = 0, timeout_s: float | None = None) -> Call[Event]:
    """Events of an answer or a table, as `stream` or `stream_table` tells it, after event
    number `after`.
    """

    def event(told: run_pb.WatchRunResponse) -> Event:
        return told.table_event if told.HasField("table_event") else told.event

    return Call(
        lambda to: to.runs.WatchRun,
        run_pb.WatchRunRequest(run_id=run_id, after_event_number=after),
        event,
        timeout_s,
    )


def cancel(run_id: str) -> Call[None]:
    """Stop a run; one that has ended stays as it is."""
    return Call(
        lambda to: to.runs.CancelRun, run_pb.CancelRunRequest(run_id=run_id), lambda _: None
    )


def feedback(run_id: str, **opinion: Unpack[FeedbackFields]) -> Call[str]:
    """Say what became of an answer. The feedback's identifier."""
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
    """All runs that have ended, oldest first, with their traces."""
    request = run_pb.ExportRunsRequest(
        for_training=wanted.get("for_training", False), **filter_fields(wanted)
    )
    return Call(lambda to: to.runs.ExportRuns, request, timeout_s=timeout_s)


def usage(**sums: Unpack[UsageOptions]) -> Call[usage_pb.GetUsageResponse]:
    """Tokens and cost of all calls."""
    bucket = sums.get("bucket")
    request = usage_pb.GetUsageRequest(
        start_time=utc(sums.get("start")),
        end_time=utc(sums.get("end")),
        tenant=sums.get("tenant", ""),
        group_by=[f"USAGE_DIMENSION_{name.upper()}" for name in sums.get("by", ())],
        bucket=bucket and f"USAGE_BUCKET_{bucket.upper()}",
    )
    return Call(lambda to: to.usage.GetUsage, request)


def reconcile() -> Call[Sequence[usage_pb.Reconciliation]]:
    """The ledger, compared with what the engines counted."""
    return Call(
        lambda to: to.usage.ReconcileUsage,
        usage_pb.ReconcileUsageRequest(),
        attrgetter("reconciliations"),
    )


def versions() -> Call[Sequence[version_pb.ExecutorVersion]]:
    """Versions of the executor, newest first."""
    return Call(
        lambda to: to.versions.ListExecutorVersions,
        version_pb.ListExecutorVersionsRequest(),
        attrgetter("versions"),
    )


def register_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Check a published version, load it, and put it on record."""
    request = version_pb.RegisterExecutorVersionRequest(version=version)
    return Call(
        lambda to: to.versions.RegisterExecutorVersion, request, attrgetter("version"), ANSWER_S
    )


def set_version_traffic(
    version: str, state: TriedState, share: float = 0.0
) -> Call[version_pb.ExecutorVersion]:
    """Let a version work beside the active one, or for a share of the runs, or do nothing."""
    named = f"EXECUTOR_VERSION_STATE_{state.upper()}"
    request = version_pb.SetExecutorVersionTrafficRequest(
        version=version, state=named, canary_share=share
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
    """Take a version out of service. The one that is active now."""
    request = version_pb.RollBackExecutorVersionRequest(version=version)
    return Call(lambda to: to.versions.RollBackExecutorVersion, request, attrgetter("active"))


def version_decisions(
    version: str = "", after: int = 0
) -> Call[Sequence[version_pb.ExecutorVersionDecision]]:
    """Decisions on one version, or on all, after decision number `after`; oldest first, at most
    1000.
    """
    request = version_pb.ListExecutorVersionDecisionsRequest(version=version, after_number=after)
    return Call(
        lambda to: to.versions.ListExecutorVersionDecisions, request, attrgetter("decisions")
    )
