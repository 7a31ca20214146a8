"""The calls of a gateway. Each function returns a `Call`, with the request and a function that
converts the response to a result.

Both clients, `Client` and `AsyncClient`, have a method for each of these functions, with the same
name and parameters; the method makes the call and returns its result. A method raises `ValueError`
for an unknown kind, state, topology or dimension, and for a `timeout_s` that is not above 0.

Without `timeout_s`, the client sets no deadline for answers and tables. The gateway's limit then
applies: `server.timeout_s`, or `table.timeout_s` for tables.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from io import SEEK_END, BytesIO
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, Generic, Unpack

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message_factory import GetMessageClass

from rolegate.client.connection import Connection
from rolegate.client.options import Result
from rolegate.client.requests import (
    ANSWER_S,
    SHORT_S,
    UPLOAD_S,
    ExportFilter,
    FeedbackFields,
    IndexOptions,
    M,
    RequestOptions,
    TableOptions,
    TriedState,
    UsageOptions,
    request,
)
from rolegate.client.table import (
    Columns,
    Rows,
    Table,
    given_rows,
    parse_columns,
    parse_conditions,
)
from rolegate.v1 import admin_service_pb2 as admin_pb
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import document_service_pb2 as document_pb
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1.evidence_pb2 import Passage
from rolegate.v1.retrieval_service_pb2 import SearchRequest

PAGE = 100
_ROWS = 1000
_PIECE_BYTES = 1 << 18
_VERDICTS = {
    None: run_pb.VERDICT_UNSPECIFIED,
    True: run_pb.VERDICT_ACCEPTED,
    False: run_pb.VERDICT_REJECTED,
}


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """A call to the gateway that has not been sent yet. It is unary or streamed."""

    request: Any
    """Request message. Its type determines the gRPC method: an `AnswerRequest` is sent to `Answer`,
    in the service of the same proto file.
    """
    result: Callable[[Any], Result] = lambda response: response
    """Converts the response message to the result that the client's method returns."""
    timeout_s: float | None = SHORT_S
    """Deadline in seconds; None for no deadline."""
    repeatable: bool = False
    """True if the client sends the request again after the connection broke. The request must have
    a `request_id`, so that the gateway does not answer it twice.
    """
    messages: Iterable[Any] = ()
    """Messages of a streamed request, all of the same type as `request`. Empty for a unary request.
    """

    def __post_init__(self) -> None:
        given = self.timeout_s
        if not (given is None or (isinstance(given, int | float) and given > 0)):
            raise ValueError(f"timeout_s: must be a number of seconds more than 0, got {given!r}.")

    @property
    def method(self) -> str:
        """Name of the gRPC method."""
        return type(self.request).__name__.removesuffix("Request")

    def begin(self, channel: Any, connection: Connection, timeout_s: float | None) -> Any:
        """Begin the call on `channel`, which `connection` opened, and return gRPC's call object."""
        (service,) = self.request.DESCRIPTOR.file.services_by_name.values()
        method = service.methods_by_name[self.method]
        make = channel.unary_stream if method.server_streaming else channel.unary_unary
        sent = self.request
        if method.client_streaming:
            make = channel.stream_unary
            sent = self.messages
        call = make(
            f"/{service.full_name}/{method.name}",
            request_serializer=type(self.request).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return call(sent, timeout=timeout_s, metadata=connection.metadata)


def ask(
    question: str, timeout_s: float | None = None, **options: Unpack[RequestOptions]
) -> Call[answer_pb.AnswerResponse]:
    """Answer a question. The result has the answer, its citations and its cost.

    If the connection breaks, the client sends the request once more with the same `request_id`, so
    that the gateway does not answer it twice.
    """
    sent = request(answer_pb.AnswerRequest, options, question=question)
    sent.request_id = sent.request_id or str(uuid.uuid4())
    return Call(sent, timeout_s=timeout_s, repeatable=True)


def stream(
    question: str, timeout_s: float | None = None, **options: Unpack[RequestOptions]
) -> Call[answer_pb.StreamAnswerResponse]:
    """Answer a question and stream the events of the run. The last event is `done`, with the whole
    answer.
    """
    return Call(
        request(answer_pb.StreamAnswerRequest, options, question=question),
        timeout_s=timeout_s,
    )


def table(
    question: str,
    columns: Columns,
    rows: Rows = (),
    timeout_s: float | None = None,
    **options: Unpack[TableOptions],
) -> Call[Table]:
    """Fill a table and return it.

    `columns`: the columns, as a text such as "city*, founder, founded:integer" or as messages; see
    `parse_columns`. `rows`: known rows. Each row is a sequence with a value for every column, or a
    mapping with values for some columns by name. The gateway searches for empty values, and keeps
    all other values. If the connection breaks, the client sends the request once more, as in `ask`.
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
        sent,
        lambda filled: Table(filled.table),
        timeout_s,
        repeatable=True,
    )


def stream_table(
    question: str,
    columns: Columns,
    rows: Rows = (),
    timeout_s: float | None = None,
    **options: Unpack[TableOptions],
) -> Call[table_pb.StreamTableResponse]:
    """Fill a table and stream the events of the run. The last event is `done`. The table in `done`
    may have only the first rows; the client's method `with_all_rows` fetches the other rows.
    """
    return Call(
        _table_request(
            table_pb.StreamTableRequest,
            question,
            columns,
            rows,
            options,
        ),
        timeout_s=timeout_s,
    )


def begin_table(
    question: str,
    columns: Columns,
    rows: Rows = (),
    **options: Unpack[TableOptions],
) -> Call[str]:
    """Start filling a table, in a run that continues even if the client disconnects. Return the
    identifier of the run, for `get_table` and `watch`.
    """
    sent = _table_request(
        table_pb.FillTableRequest,
        question,
        columns,
        rows,
        options,
    )
    sent.detached = True
    return Call(sent, attrgetter("run_id"))


def _table_request(
    kind: type[M],
    question: str,
    columns: Columns,
    rows: Rows,
    options: TableOptions,
) -> M:
    parsed = parse_columns(columns)
    given = given_rows(parsed, rows)
    conditions = parse_conditions(options.get("conditions", ()))
    return request(
        kind,
        {**options, "conditions": conditions},
        question=question,
        columns=parsed,
        rows=given,
    )


def table_page(run_id: str, page_token: str) -> Call[table_pb.GetTableResponse]:
    """Return a page of the table of a run. `page_token`: token from the previous page; empty for
    the first page.
    """
    return Call(table_pb.GetTableRequest(run_id=run_id, page_size=_ROWS, page_token=page_token))


def search(
    query: str, top_k: int = 0, timeout_s: float | None = SHORT_S, **options: Unpack[IndexOptions]
) -> Call[Sequence[Passage]]:
    """Return the passages that match a query best, best first. `top_k`: max number of passages; 0
    for the server's default.
    """
    return Call(
        request(SearchRequest, options, queries=[query], top_k=top_k),
        lambda response: response.results[0].passages,
        timeout_s,
    )


def upload(
    document: Path | str | bytes, name: str = "", *, wait: bool = False, timeout_s: float = UPLOAD_S
) -> Call[document_pb.Document]:
    """Store a document of the caller's tenant, and return it. A document of the same name is
    replaced.

    `document`: the path of a file, or the content. `name`: name of the document; by default, the
    file's name. `wait`: True to return only after searches can find the document, or after the
    gateway has failed to read it. Raises `OSError` if the file cannot be opened.
    """

    def opened() -> BinaryIO:
        return BytesIO(document) if isinstance(document, bytes) else Path(document).open("rb")

    with opened() as file:
        size = file.seek(0, SEEK_END)
    if not isinstance(document, bytes):
        name = name or Path(document).name
    first = document_pb.UploadDocumentRequest(name=name, size_bytes=size, wait=wait)

    def messages() -> Iterator[document_pb.UploadDocumentRequest]:
        with opened() as file:
            yield first
            while piece := file.read(_PIECE_BYTES):
                yield document_pb.UploadDocumentRequest(content=piece)

    return Call(
        first,
        attrgetter("document"),
        timeout_s,
        messages=messages(),
    )


def delete_document(name: str) -> Call[None]:
    """Delete a document of the caller's tenant. Searches still find it until the index has been
    built again.
    """
    return Call(document_pb.DeleteDocumentRequest(name=name), lambda _: None)


def get_build() -> Call[document_pb.GetBuildResponse]:
    """Return the state of the index of uploaded documents (of the caller's tenant). The result also
    lists the documents that could not be read.
    """
    return Call(document_pb.GetBuildRequest())


def run(run_id: str, *, trace: bool = False) -> Call[run_pb.GetRunResponse]:
    """Return a run, which may still be in progress, with its output, usage and feedback. `trace`:
    True to include the whole trace.
    """
    return Call(run_pb.GetRunRequest(run_id=run_id, include_trace=trace))


Event = answer_pb.StreamAnswerResponse | table_pb.StreamTableResponse


def watch(run_id: str, after: int = 0, timeout_s: float | None = None) -> Call[Event]:
    """Stream the events of a run. They are the same as those of `stream` for a question, or of
    `stream_table` for a table. `after`: number of the last event to leave out; 0 for all events.
    """

    def event(response: run_pb.WatchRunResponse) -> Event:
        return response.table_event if response.HasField("table_event") else response.event

    return Call(
        run_pb.WatchRunRequest(run_id=run_id, after_event_number=after),
        event,
        timeout_s,
    )


def cancel(run_id: str) -> Call[None]:
    """Cancel a run. Does nothing if the run has ended."""
    return Call(run_pb.CancelRunRequest(run_id=run_id), lambda _: None)


def feedback(run_id: str, **opinion: Unpack[FeedbackFields]) -> Call[str]:
    """Submit feedback on the answer of a run. Return the identifier of the feedback."""
    verdict = _VERDICTS[opinion.pop("accepted", None)]
    return Call(
        request(run_pb.SubmitFeedbackRequest, opinion, run_id=run_id, verdict=verdict),
        attrgetter("feedback_id"),
    )


def export(
    timeout_s: float | None = None, **wanted: Unpack[ExportFilter]
) -> Call[run_pb.ExportRunsResponse]:
    """Stream all runs that have ended and match the filter `wanted`, with their traces, oldest
    first.
    """
    return Call(request(run_pb.ExportRunsRequest, wanted), timeout_s=timeout_s)


def usage(**sums: Unpack[UsageOptions]) -> Call[usage_pb.GetUsageResponse]:
    """Return the tokens and the cost of model calls, summed by group. `sums`: filter and grouping
    of the calls, see `UsageOptions`.
    """
    return Call(request(usage_pb.GetUsageRequest, sums))


def reconcile() -> Call[Sequence[usage_pb.Reconciliation]]:
    """Compare token counts. For each engine, the result has the gateway's own count and the
    engine's count.
    """
    return Call(
        usage_pb.ReconcileUsageRequest(),
        attrgetter("reconciliations"),
    )


def versions() -> Call[Sequence[version_pb.ExecutorVersion]]:
    """Return all versions of the executor (the model that searches), newest first."""
    return Call(
        version_pb.ListExecutorVersionsRequest(),
        attrgetter("versions"),
    )


def register_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Check a published version of the executor, load it, register it, and return it."""
    return Call(
        version_pb.RegisterExecutorVersionRequest(version=version), attrgetter("version"), ANSWER_S
    )


def set_version_traffic(
    version: str, state: TriedState, share: float = 0.0
) -> Call[version_pb.ExecutorVersion]:
    """Start or end a trial of a version of the executor (the model that searches), and return the
    version.

    `state`: `shadow` to repeat finished runs with the version, without effect on answers; `canary`
    to use it in a share of new runs; or `registered` to end the trial. `share`: share of new runs
    that use a canary, more than 0 and at most 1.
    """
    return Call(
        request(
            version_pb.SetExecutorVersionTrafficRequest,
            {"state": state},
            version=version,
            canary_share=share,
        ),
        attrgetter("version"),
        ANSWER_S,
    )


def promote_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Make a version of the executor the active version, and return it."""
    return Call(
        version_pb.PromoteExecutorVersionRequest(version=version), attrgetter("version"), ANSWER_S
    )


def roll_back_version(version: str) -> Call[version_pb.ExecutorVersion]:
    """Take a version of the executor out of service, and return the new active version."""
    return Call(version_pb.RollBackExecutorVersionRequest(version=version), attrgetter("active"))


def version_decisions(
    version: str = "", after: int = 0
) -> Call[Sequence[version_pb.ExecutorVersionDecision]]:
    """Return the decisions to register, try, promote or roll back versions of the executor, oldest
    first. `after`: return only decisions with higher numbers; at most 1000 are returned. `version`:
    name of a version; empty for decisions on all versions.
    """
    return Call(
        version_pb.ListExecutorVersionDecisionsRequest(version=version, after_number=after),
        attrgetter("decisions"),
    )


def create_key(
    tenant: str | None = None, scopes: Sequence[str] = (), label: str = ""
) -> Call[admin_pb.CreateKeyResponse]:
    """Create an API key of a tenant, or an operator's key if `tenant` is None. Only this result
    contains the text of the key. `scopes`: what the key permits, any of `ask`, `documents`,
    `operate` and `train`; by default `ask`, or all for an operator's key. `label`: note for people.
    """
    return Call(admin_pb.CreateKeyRequest(tenant=tenant, scopes=scopes, label=label))


def rotate_key(key_id: str, grace_s: float = 0.0) -> Call[admin_pb.RotateKeyResponse]:
    """Replace an API key with a new key. Only this result contains the text of the new key. The old
    key stays valid for `grace_s` seconds.
    """
    return Call(admin_pb.RotateKeyRequest(key_id=key_id, grace=timedelta(seconds=grace_s)))


def expire_key(key_id: str, at: datetime | None) -> Call[admin_pb.Key]:
    """Set the time at which an API key expires; None for never. Return the key."""
    return Call(
        request(admin_pb.ExpireKeyRequest, {"expire_time": at}, key_id=key_id), attrgetter("key")
    )


def revoke_key(key_id: str) -> Call[admin_pb.RevokeKeyResponse]:
    """Revoke an API key permanently. The result has the key, and says if no valid key is left."""
    return Call(admin_pb.RevokeKeyRequest(key_id=key_id))


def update_key(key: admin_pb.Key, limits: Sequence[str]) -> Call[admin_pb.Key]:
    """Change limits of an API key, and return the key. `key`: message with the key's id and the new
    limits. `limits`: names of the fields of `key` to change.
    """
    return Call(
        admin_pb.UpdateKeyRequest(key=key, update_mask=FieldMask(paths=limits)), attrgetter("key")
    )


def audit(size: int = PAGE, page_token: str = "") -> Call[admin_pb.ListAuditEventsResponse]:
    """Return a page of the audit log, newest event first. `size`: max number of events, at most
    1000. `page_token`: token from the previous page; empty for the first page.
    """
    return Call(admin_pb.ListAuditEventsRequest(page_size=size, page_token=page_token))


def tenant(name: str) -> Call[admin_pb.GetTenantResponse]:
    """Return a tenant, with the tenant's usage of the current day and month (UTC)."""
    return Call(admin_pb.GetTenantRequest(name=name))


def update_tenant(
    tenant: admin_pb.Tenant, settings: Sequence[str], *, allow_missing: bool = False
) -> Call[admin_pb.UpdateTenantResponse]:
    """Change settings of a tenant. `settings`: names of the fields of `tenant` to change.
    `allow_missing`: True to create the tenant if it does not exist.
    """
    return Call(
        admin_pb.UpdateTenantRequest(
            tenant=tenant, update_mask=FieldMask(paths=settings), allow_missing=allow_missing
        )
    )
