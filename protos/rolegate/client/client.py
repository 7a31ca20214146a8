"""The client for programs that wait."""

import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar, Unpack

import grpc

from rolegate.client.connection import Access, Connection
from rolegate.client.gateway_error import GatewayError, translated
from rolegate.client.requests import (
    ADDRESS,
    ANSWER_S,
    SHORT_S,
    ExportFilter,
    ListFilter,
    Opinion,
    Sums,
    Terms,
    TriedState,
    answer_request,
    export_request,
    feedback_request,
    list_request,
    stream_request,
    traffic_request,
    usage_request,
)
from rolegate.v1.answer_service_pb2 import AnswerResponse, StreamAnswerResponse
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.executor_version_service_pb2 import (
    ExecutorVersion,
    ExecutorVersionDecision,
    ListExecutorVersionDecisionsRequest,
    ListExecutorVersionsRequest,
    PromoteExecutorVersionRequest,
    RegisterExecutorVersionRequest,
    RollBackExecutorVersionRequest,
)
from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceStub
from rolegate.v1.run_service_pb2 import (
    CancelRunRequest,
    ExportRunsResponse,
    GetRunRequest,
    GetRunResponse,
    Run,
    WatchRunRequest,
)
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_service_pb2 import GetUsageResponse, ReconcileUsageRequest, Reconciliation
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

Request = TypeVar("Request")
Response = TypeVar("Response")
Item = TypeVar("Item")


class Client:
    """Asks the gateway at `address`, host:port. Every method raises `GatewayError`."""

    def __init__(self, address: str | Connection = ADDRESS, **access: Unpack[Access]) -> None:
        """Raises `ValueError` where a key would be sent in the clear, and `OSError` where a file cannot be read."""
        self._to = address if isinstance(address, Connection) else Connection.to(address, **access)
        self._channel = self._to.channel()
        self._answers, self._runs = AnswerServiceStub(self._channel), RunServiceStub(self._channel)
        self._usage, self._versions = UsageServiceStub(self._channel), ExecutorVersionServiceStub(self._channel)

    def ask(self, question: str, timeout_s: float = ANSWER_S, **terms: Unpack[Terms]) -> AnswerResponse:
        """Answer a question, with what the answer rests on and what it cost. Where the connection breaks, it is asked
        once more, under the same request_id, which spends nothing twice.
        """
        request, deadline = answer_request(question, terms), time.monotonic() + timeout_s
        try:
            return self._called(self._answers.Answer, request, timeout_s)
        except GatewayError as error:
            if not error.connection_broke:
                raise
        with self._to.channel() as channel:  # the other one may not know yet that it is dead
            again = AnswerServiceStub(channel)
            return self._called(again.Answer, request, deadline - time.monotonic())

    def stream(
        self, question: str, timeout_s: float = ANSWER_S, **terms: Unpack[Terms]
    ) -> "Stream[StreamAnswerResponse]":
        """Answer a question and tell what happens on the way; the last event is `done`, with the whole answer."""
        return Stream(self._begun(self._answers.StreamAnswer, stream_request(question, terms), timeout_s), self._to)

    def run(self, run_id: str, *, trace: bool = False) -> GetRunResponse:
        """A run, running or ended, with its output, its calls, the feedback on it and, if wanted, its trace."""
        return self._called(self._runs.GetRun, GetRunRequest(run_id=run_id, include_trace=trace))

    def runs(self, **wanted: Unpack[ListFilter]) -> Iterator[Run]:
        """Runs, newest first, asked for a page at a time."""
        request = list_request(wanted)
        while True:
            page = self._called(self._runs.ListRuns, request)
            yield from page.runs
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def watch(self, run_id: str, after: int = 0, timeout_s: float | None = None) -> "Stream[StreamAnswerResponse]":
        """What happens in an answer, as `stream` tells it, from the event after number `after` on."""
        request = WatchRunRequest(run_id=run_id, after_event_number=after)
        return Stream(self._begun(self._runs.WatchRun, request, timeout_s), self._to, attrgetter("event"))

    def cancel(self, run_id: str) -> None:
        """Stop a run; one that has ended stays as it is."""
        self._called(self._runs.CancelRun, CancelRunRequest(run_id=run_id))

    def feedback(self, run_id: str, **opinion: Unpack[Opinion]) -> str:
        """Say what became of an answer. The feedback's identifier."""
        return self._called(self._runs.SubmitFeedback, feedback_request(run_id, opinion)).feedback_id

    def export(self, timeout_s: float | None = None, **wanted: Unpack[ExportFilter]) -> "Stream[ExportRunsResponse]":
        """All runs that have ended, oldest first, with their traces."""
        return Stream(self._begun(self._runs.ExportRuns, export_request(wanted), timeout_s), self._to)

    def usage(self, **sums: Unpack[Sums]) -> GetUsageResponse:
        """Tokens and cost of all calls."""
        return self._called(self._usage.GetUsage, usage_request(sums))

    def reconcile(self) -> Sequence[Reconciliation]:
        """The ledger, compared with what the engines counted."""
        return self._called(self._usage.ReconcileUsage, ReconcileUsageRequest()).reconciliations

    def versions(self) -> Sequence[ExecutorVersion]:
        """Versions of the executor, newest first."""
        return self._called(self._versions.ListExecutorVersions, ListExecutorVersionsRequest()).versions

    def register_version(self, version: str) -> ExecutorVersion:
        """Check a published version, load it, and put it on record."""
        request = RegisterExecutorVersionRequest(version=version)
        return self._called(self._versions.RegisterExecutorVersion, request, ANSWER_S).version

    def set_version_traffic(self, version: str, state: TriedState, share: float = 0.0) -> ExecutorVersion:
        """Let a version work beside the active one, or for a share of the runs, or do nothing."""
        request = traffic_request(version, state, share)
        return self._called(self._versions.SetExecutorVersionTraffic, request, ANSWER_S).version

    def promote_version(self, version: str) -> ExecutorVersion:
        """Make a version the active one."""
        request = PromoteExecutorVersionRequest(version=version)
        return self._called(self._versions.PromoteExecutorVersion, request, ANSWER_S).version

    def roll_back_version(self, version: str) -> ExecutorVersion:
        """Take a version out of service. The one that is active now."""
        request = RollBackExecutorVersionRequest(version=version)
        return self._called(self._versions.RollBackExecutorVersion, request).active

    def version_decisions(self, version: str = "", after: int = 0) -> Sequence[ExecutorVersionDecision]:
        """What was decided on one version, or on all, after decision number `after`; oldest first, at most 1000."""
        request = ListExecutorVersionDecisionsRequest(version=version, after_number=after)
        return self._called(self._versions.ListExecutorVersionDecisions, request).decisions

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _called(
        self, method: "grpc.UnaryUnaryMultiCallable[Request, Response]", request: Request, timeout_s: float = SHORT_S
    ) -> Response:
        with translated(self._to.address):
            return method(request, timeout=timeout_s, metadata=self._to.metadata)

    def _begun(
        self, method: "grpc.UnaryStreamMultiCallable[Request, Response]", request: Request, timeout_s: float | None
    ) -> object:
        return method(request, timeout=timeout_s, metadata=self._to.metadata)


class Stream(Generic[Item]):
    """What comes, as it comes.

    Cancelled, also by leaving its context, it stops the work upstream; reading on raises `GatewayError`.
    """

    def __init__(self, call: Any, to: Connection, item: Callable[[Any], Item] = lambda response: response) -> None:
        """`item`: what of a response is wanted."""
        self._call, self._address, self._item = call, to.address, item

    def cancel(self) -> None:
        """Stop; of no effect at the end."""
        self._call.cancel()

    def __iter__(self) -> Iterator[Item]:
        with self, translated(self._address):
            yield from map(self._item, self._call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cancel()
