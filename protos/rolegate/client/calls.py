"""Calls of a gateway: the request of each, and the part of the response that it returns.

Both clients have a method for each. All raise `ValueError` for an unknown kind, state, topology or
dimension.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Unpack

from google.protobuf.message_factory import GetMessageClass

from rolegate.client.connection import Connection
from rolegate.client.options import Result
from rolegate.client.requests import (
    ANSWER_S,
    SHORT_S,
    TABLE_S,
    ExportFilter,
    FeedbackFields,
    ListFilter,
    M,
    RequestOptions,
    TableOptions,
    TriedState,
    UsageOptions,
    request,
)
from rolegate.client.table import Columns, Rows, Table, given_rows, parse_columns
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1.evidence_pb2 import Passage
from rolegate.v1.retrieval_service_pb2 import SearchRequest

_PAGE = 100
_ROWS = 1000
_VERDICTS = {
    None: run_pb.VERDICT_UNSPECIFIED,
    True: run_pb.VERDICT_ACCEPTED,
    False: run_pb.VERDICT_REJECTED,
}


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """One call, unary or streamed."""

    method: str
    """Method of the service that `request` belongs to."""
    request: Any
    result: Callable[[Any], Result] = lambda response: response
    """Maps a response to what the caller gets."""
    timeout_s: float | None = SHORT_S
    repeatable: bool = False
    """True to retry once if the connection breaks: the `request_id` prevents double spending."""

    def begin(self, channel: Any, connection: Connection, timeout_s: float | None) -> Any:
        """Begin the call on a channel of the connection. Return gRPC's call."""
        (service,) = self.request.DESCRIPTOR.file.services_by_name.values()
        method = service.methods_by_name[self.method]
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        call = make(
            f"/{service.full_name}/{method.name}",
            request_serializer=type(self.request).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return call(self.request, timeout=timeout_s, metadata=connection.metadata)


def ask(
    question: str, timeout_s: float = ANSWER_S, **options: Unpack[RequestOptions]
) -> Call[answer_pb.AnswerResponse]:
    """Answer a question, with citations and cost. If the connection breaks, the request is sent
    once more with the same `request_id`, which spends nothing twice.
    """
    sent = request(answer_pb.AnswerRequest, options, question=question)
    sent.request_id = sent.request_id or str(uuid.uuid4())
    return Call("Answer", sent, timeout_s=timeout_s, repeatable=True)


def stream(
    question: str, timeout_s: float = ANSWER_S, **options: Unpack[RequestOptions]
) -> Call[answer_pb.StreamAnswerResponse]:
    """Answer a question and stream its events; the last one is `done`, with the whole answer."""
    return Call(
        "StreamAnswer",
        request(answer_pb.StreamAnswerRequest, options, question=question),
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
    sent = _table_request(
        table_pb.FillTableRequest,
        question,
        columns,
        rows,
        options,
    )
    sent.request_id = sent.request_id or str(uuid.uuid4())
    return Call(
        "FillTable",
        sent,
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
    sent = _table_request(
        table_pb.StreamTableRequest,
        question,
        columns,
        rows,
        options,
    )
    return Call("StreamTable", sent, timeout_s=timeout_s)


def begin_table(
    question: str,
    columns: Columns,
    rows: Rows = (),
    **options: Unpack[TableOptions],
) -> Call[str]:
    """Start a detached run that fills a table. Return its identifier, for `get_table` and
    `watch`.
    """
    sent = _table_request(
        table_pb.FillTableRequest,
        question,
        columns,
        rows,
        options,
    )
    sent.detached = True
    return Call("FillTable", sent, attrgetter("run_id"))


def _table_request(
    kind: type[M],
    question: str,
    columns: Columns,
    rows: Rows,
    options: TableOptions,
) -> M:
    parsed = parse_columns(columns)
    given = given_rows(parsed, rows)
    return request(
        kind,
        options,
        question=question,
        columns=parsed,
        rows=given,
    )


def table_page(run_id: str, page_token: str) -> Call[table_pb.GetTableResponse]:
    """Return a page of a run's table; an empty token requests the first page."""
    sent = table_pb.GetTableRequest(run_id=run_id, page_size=_ROWS, page_token=page_token)
    return Call("GetTable", sent)


def search(query: str, top_k: int = 0, timeout_s: float = SHORT_S) -> Call[Sequence[Passage]]:
    """Return the nearest passages, best first. `top_k`: 0 for the server's default."""
    sent = SearchRequest(queries=[query], top_k=top_k)
    return Call(
        "Search",
        sent,
        lambda response: response.results[0].passages,
        timeout_s,
    )


def run(run_id: str, *, trace: bool = False) -> Call[run_pb.GetRunResponse]:
    """Return a run, running or ended, with its output, usage, feedback and, if asked for, its
    trace.
    """
    return Call("GetRun", run_pb.GetRunRequest(run_id=run_id, include_trace=trace))


def page(page_token: str, wanted: ListFilter) -> Call[run_pb.ListRunsResponse]:
    """Return a page of runs, newest first; an empty token requests the first page."""
    return Call(
        "ListRuns",
        request(run_pb.ListRunsRequest, wanted, page_size=_PAGE, page_token=page_token),
    )


Event = answer_pb.StreamAnswerResponse | table_pb.StreamTableResponse


def watch(run_id: str, after: int = 0, timeout_s: float | None = None) -> Call[Event]:
    """Stream the events of an answer or a table after event number `after`, as `stream` and
    `stream_table` do.
    """

    def event(response: run_pb.WatchRunResponse) -> Event:
        return response.table_event if response.HasField("table_event") else response.event

    return Call(
        "WatchRun",
        run_pb.WatchRunRequest(run_id=run_id, after_event_number=after),
        event,
        timeout_s,
    )


def cancel(run_id: str) -> Call[None]:
    """Cancel a run; does nothing if it has ended."""
    return Call("CancelRun", run_pb.CancelRunRequest(run_id=run_id), lambda _: None)


def feedback(run_id: str, **opinion: Unpack[FeedbackFields]) -> Call[str]:
    """Submit feedback on an answer. Return the feedback's identifier."""
    verdict = _VERDICTS[opinion.pop("accepted", None)]
    sent = request(run_pb.SubmitFeedbackRequest, opinion, run_id=run_id, verdict=verdict)
    return Call("SubmitFeedback", sent, attrgetter("feedback_id"))


def export(
    timeout_s: float | None = None, **wanted: Unpack[ExportFilter]
) -> Call[run_pb.ExportRunsResponse]:
    """Stream all ended runs with their traces, oldest first."""
    sent = request(run_pb.ExportRunsRequest, wanted)
    return Call("ExportRuns", sent, timeout_s=timeout_s)


def usage(**sums: Unpack[UsageOptions]) -> Call[usage_pb.GetUsageResponse]:
    """Sum tokens and cost over all calls."""
    return Call("GetUsage", request(usage_pb.GetUsageRequest, sums))


def reconcile() -> Call[Sequence[usage_pb.Reconciliation]]:
    """Compare the ledger with the engines' own counters."""
    return Call(
        "ReconcileUsage",
        usage_pb.ReconcileUsageRequest(),
        attrgetter("reconciliations"),
    )


def versions() -> Call[Sequence[version_pb.ExecutorVersion]]:
    """Return the executor's versions, newest first."""
    return Call(
        "ListExecutorVersions",
        version_pb.ListExecutorVersionsRequest(),
        attrgetter("versions"),
    )


def register_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Check a published version, load it and register it."""
    sent = version_pb.RegisterExecutorVersionRequest(version=version)
    return Call("RegisterExecutorVersion", sent, attrgetter("version"), ANSWER_S)


def set_version_traffic(
    version: str, state: TriedState, share: float = 0.0
) -> Call[version_pb.ExecutorVersion]:
    """Make a version the shadow, give it a share of the runs, or take its traffic away."""
    sent = request(
        version_pb.SetExecutorVersionTrafficRequest,
        {"state": state},
        version=version,
        canary_share=share,
    )
    return Call("SetExecutorVersionTraffic", sent, attrgetter("version"), ANSWER_S)


def promote_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Make a version the active one."""
    sent = version_pb.PromoteExecutorVersionRequest(version=version)
    return Call("PromoteExecutorVersion", sent, attrgetter("version"), ANSWER_S)


def roll_back_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Take a version out of service. Return the version that is active now."""
    sent = version_pb.RollBackExecutorVersionRequest(version=version)
    return Call("RollBackExecutorVersion", sent, attrgetter("active"))


def version_decisions(
    version: str = "", after: int = 0
) -> Call[Sequence[version_pb.ExecutorVersionDecision]]:
    """Return the decisions on one version, or on all, after decision number `after`: oldest
    first, at most 1000.
    """
    sent = version_pb.ListExecutorVersionDecisionsRequest(version=version, after_number=after)
    return Call("ListExecutorVersionDecisions", sent, attrgetter("decisions"))
