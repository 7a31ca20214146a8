"""The gRPC services. Each method converts its request, calls the gateway or the store, and converts
the result.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from grpc_status import rpc_status
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import answer_service_pb2_grpc as answer_pb_grpc
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import completion_service_pb2_grpc as completion_pb_grpc
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import execution_service_pb2_grpc as execution_pb_grpc
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import executor_version_service_pb2_grpc as version_pb_grpc
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import run_service_pb2_grpc as run_pb_grpc
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1 import usage_service_pb2_grpc as usage_pb_grpc

from router.access import caller
from router.administration import Auditor
from router.background import in_viewer
from router.edge.grpc import convert
from router.edge.grpc import convert_request as parse
from router.edge.grpc.convert import to_proto
from router.edge.grpc.convert_table import EventsToProto
from router.edge.running import Running, Work
from router.edge.status import as_seen_by, failure_of_run
from router.ledger import Reconciler
from router.ledger.usage import Usages
from router.models import Completion, Delta
from router.runs import Gateway, Runs
from router.runs.archive import ExportedRun
from router.runs.support import unblocked
from router.trace import Conversation, Event, Execution, Run
from router.trace.call import totals
from router.trace.export import output_of, trace_json
from router.trace.identity import Identity
from router.trace.run import RunKind
from router.versions import Versions


async def streamed(kind: RunKind, work: Work) -> AsyncIterator[Any]:
    """Do the work of a run in a task. Yield the run's events as messages while it is under way,
    then its usage and its result.
    """
    to_proto = EventsToProto(kind)
    number = 1
    async with Running[Event, Run](work) as running:
        async for events in running:
            for event in events:
                yield await to_proto.one(number, event)
                number += 1
        run = await running.result()
    for last in await to_proto.last(number, run):
        yield last


class _OfGateway:
    """Base class of the services that pass their requests to a `Gateway`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway


class AnswerServicer(_OfGateway, answer_pb_grpc.AnswerServiceServicer):
    """Implements `AnswerService`."""

    async def Answer(
        self, request: answer_pb.AnswerRequest, context: Any
    ) -> answer_pb.AnswerResponse:
        """Answer a question, and return the answer with its citations and usage."""
        options = parse.options_from_proto(request, context)
        run = await self._gateway.answer(parse.answer_from_proto(request), options)
        return await convert.answer_to_proto(run)

    def StreamAnswer(
        self, request: answer_pb.StreamAnswerRequest, context: Any
    ) -> AsyncIterator[answer_pb.StreamAnswerResponse]:
        """Answer a question and stream the events of the run."""
        options = parse.options_from_proto(request, context)
        asked = parse.answer_from_proto(request)
        return streamed(
            "answer", lambda emit: self._gateway.answer(asked, options, emit, streamed=True)
        )


_PIECE_CHARS = 65536
"""Max characters of text, and of reasoning, in one streamed message."""


class CompletionServicer(_OfGateway, completion_pb_grpc.CompletionServiceServicer):
    """Implements `CompletionService`."""

    async def Complete(
        self, request: completion_pb.CompleteRequest, context: Any
    ) -> completion_pb.CompleteResponse:
        """Continue a conversation by one call of a role's model."""
        run = await self._gateway.complete(
            parse.completion_from_proto(request), parse.options_from_proto(request, context)
        )
        usage = totals(run.calls)[0]
        return to_proto(completion_pb.CompleteResponse, _output(run), usage=usage, run_id=run.id)

    async def StreamComplete(
        self, request: completion_pb.StreamCompleteRequest, context: Any
    ) -> AsyncIterator[completion_pb.StreamCompleteResponse]:
        """Continue a conversation by one call of a role's model, and stream the output."""
        completion = parse.completion_from_proto(request)
        options = parse.options_from_proto(request, context)
        streamed = False
        async with Running[Delta, Run](
            lambda emit: self._gateway.complete(completion, options, emit)
        ) as running:
            async for deltas in running:
                for piece in _pieces(
                    "".join(delta.text for delta in deltas),
                    "".join(delta.reasoning for delta in deltas),
                ):
                    streamed = True
                    yield piece
            run = await running.result()
        output = _output(run)
        if not streamed:  # an earlier request with the same request_id has produced the output
            for piece in _pieces(output.text, output.reasoning):
                yield piece
        yield to_proto(
            completion_pb.StreamCompleteResponse,
            text=None,
            reasoning=None,
            finish_reason=output.finish_reason,
            usage=totals(run.calls)[0],
            run_id=run.id,
        )


def _pieces(text: str, reasoning: str) -> Iterator[completion_pb.StreamCompleteResponse]:
    """Yield the text and the reasoning in messages of at most `_PIECE_CHARS` characters of each."""
    for at in range(0, max(len(text), len(reasoning)), _PIECE_CHARS):
        end = at + _PIECE_CHARS
        yield completion_pb.StreamCompleteResponse(text=text[at:end], reasoning=reasoning[at:end])


def _output(run: Run) -> Completion:
    assert isinstance(run.result, Conversation)
    return run.result.outputs[-1]


class ExecutionServicer(_OfGateway, execution_pb_grpc.ExecutionServiceServicer):
    """Implements `ExecutionService`."""

    async def Execute(
        self, request: execution_pb.ExecuteRequest, context: Any
    ) -> execution_pb.ExecuteResponse:
        """Let an executor work on one sub-query, and return its report."""
        run = await self._gateway.execute(
            request.sub_query, parse.options_from_proto(request, context)
        )
        assert isinstance(run.result, Execution)
        result = await unblocked(run.result, convert.execution_to_proto, run.result)
        return to_proto(
            execution_pb.ExecuteResponse, run_id=run.id, result=result, usage=totals(run.calls)
        )


class ExecutorVersionServicer(version_pb_grpc.ExecutorVersionServiceServicer):
    """Implements `ExecutorVersionService`."""

    def __init__(self, versions: Versions, auditor: Auditor) -> None:
        self._versions = versions
        self._act = auditor.act

    async def ListExecutorVersions(
        self, _request: version_pb.ListExecutorVersionsRequest, _context: Any
    ) -> version_pb.ListExecutorVersionsResponse:
        """Return all versions of the executor with the figures of their trials, newest first."""
        listed = await self._versions.list()
        return version_pb.ListExecutorVersionsResponse(
            versions=[convert.version_to_proto(version, figures) for version, figures in listed]
        )

    async def RegisterExecutorVersion(
        self, request: version_pb.RegisterExecutorVersionRequest, _context: Any
    ) -> version_pb.RegisterExecutorVersionResponse:
        """Check a published version of the executor, load it, register it and return it."""
        version = await self._act(
            "register_version", request.version, self._versions.register(request.version)
        )
        return version_pb.RegisterExecutorVersionResponse(version=convert.version_to_proto(version))

    async def SetExecutorVersionTraffic(
        self, request: version_pb.SetExecutorVersionTrafficRequest, _context: Any
    ) -> version_pb.SetExecutorVersionTrafficResponse:
        """Start a trial of a version, as a shadow or a canary, or stop the trial. Return the
        version.
        """
        state = parse.state_from_proto(request)
        change = self._versions.set_traffic(request.version, state, request.canary_share)
        version = await self._act("set_version_traffic", request.version, change, state=state)
        figures = await self._versions.figures(version)
        return version_pb.SetExecutorVersionTrafficResponse(
            version=convert.version_to_proto(version, figures)
        )

    async def PromoteExecutorVersion(
        self, request: version_pb.PromoteExecutorVersionRequest, _context: Any
    ) -> version_pb.PromoteExecutorVersionResponse:
        """Make a version the active version, and return it."""
        version = await self._act(
            "promote_version", request.version, self._versions.promote(request.version)
        )
        return version_pb.PromoteExecutorVersionResponse(version=convert.version_to_proto(version))

    async def RollBackExecutorVersion(
        self, request: version_pb.RollBackExecutorVersionRequest, _context: Any
    ) -> version_pb.RollBackExecutorVersionResponse:
        """Take a version out of service, and return the version that is active afterwards."""
        active = await self._act(
            "roll_back_version", request.version, self._versions.roll_back(request.version)
        )
        return version_pb.RollBackExecutorVersionResponse(
            active=None if active is None else convert.version_to_proto(active)
        )

    async def ListExecutorVersionDecisions(
        self, request: version_pb.ListExecutorVersionDecisionsRequest, _context: Any
    ) -> version_pb.ListExecutorVersionDecisionsResponse:
        """Return the decisions on one version, or on all versions, oldest first."""
        decisions = await self._versions.decisions(request.version or None, request.after_number)
        return to_proto(version_pb.ListExecutorVersionDecisionsResponse, decisions=decisions)


_PAGE = 50


class RunServicer(run_pb_grpc.RunServiceServicer):
    """Implements `RunService`."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._converting = asyncio.Lock()
        """Lets each step of the event loop convert only one event for one watcher. All watchers of
        a run wake in the same step, and would otherwise block the event loop together.
        """

    async def GetRun(self, request: run_pb.GetRunRequest, _context: Any) -> run_pb.GetRunResponse:
        """Return a run with its usage, output and feedback, and its trace if requested."""
        run = await in_viewer(as_seen_by, await self._runs.get(request.run_id, caller()), caller())
        return await in_viewer(
            convert.full_run_to_proto,
            run,
            await self._runs.feedback_on(run),
            request.include_trace,
        )

    async def ListRuns(
        self, request: run_pb.ListRunsRequest, _context: Any
    ) -> run_pb.ListRunsResponse:
        """Return a page of runs, newest first."""
        size = parse.page_size(request.page_size, _PAGE)
        page = await self._runs.list(
            parse.filter_from_proto(request), size, request.page_token, caller()
        )
        return run_pb.ListRunsResponse(
            runs=map(convert.run_to_proto, page.runs), next_page_token=page.next_page
        )

    async def WatchRun(
        self, request: run_pb.WatchRunRequest, context: Any
    ) -> AsyncIterator[run_pb.WatchRunResponse]:
        """Stream the events of an answer or a table, beginning after the event number in the
        request. If the run did not finish, the stream ends with the run's error.
        """
        after = request.after_event_number
        identity = caller()
        run = await self._runs.get(request.run_id, identity)
        to_proto = EventsToProto(run.kind, run.events[: max(0, after)])
        # If the run is running at another gateway, the client may have got more events there than
        # are known here.
        first = min(after, len(run.events)) if run.status == "running" else after
        field = "table_event" if run.kind == "table" else "event"
        async for number, item in self._runs.watch(request.run_id, first, identity):
            if not isinstance(item, Run):
                async with self._converting:
                    events: Iterable[Any] = [await to_proto.one(number, item)]
                    await asyncio.sleep(0)
            elif item.status == "finished":
                events = await to_proto.last(number - 1, item)
            else:
                await context.abort_with_status(
                    rpc_status.to_status(convert.status_to_proto(failure_of_run(item, identity)))
                )
            for event in events:
                if event.event_number > after:
                    yield run_pb.WatchRunResponse(**{field: event})

    async def CancelRun(
        self, request: run_pb.CancelRunRequest, _context: Any
    ) -> run_pb.CancelRunResponse:
        """Cancel a run that is under way."""
        await self._runs.cancel(request.run_id, caller())
        return run_pb.CancelRunResponse()

    async def SubmitFeedback(
        self, request: run_pb.SubmitFeedbackRequest, _context: Any
    ) -> run_pb.SubmitFeedbackResponse:
        """Store feedback on a run, and return the identifier of the feedback."""
        feedback_id = await self._runs.feedback(parse.feedback_from_proto(request), caller())
        return run_pb.SubmitFeedbackResponse(feedback_id=feedback_id)

    async def ExportRuns(
        self, request: run_pb.ExportRunsRequest, _context: Any
    ) -> AsyncIterator[run_pb.ExportRunsResponse]:
        """Stream all ended runs that match the filter, with their traces, oldest first."""
        identity = caller()
        async for exported in self._runs.export(parse.filter_from_proto(request), identity):
            yield await in_viewer(_exported, exported, identity)


def _exported(exported: ExportedRun, identity: Identity) -> run_pb.ExportRunsResponse:
    run = as_seen_by(exported.run, identity)
    return run_pb.ExportRunsResponse(
        run=convert.run_to_proto(run),
        output=output_of(run),
        trace_json=trace_json(run),
        feedback=map(convert.feedback_to_proto, exported.feedback),
    )


class UsageServicer(usage_pb_grpc.UsageServiceServicer):
    """Implements `UsageService`."""

    def __init__(self, usages: Usages, reconciler: Reconciler) -> None:
        self._usages = usages
        self._reconciler = reconciler

    async def GetUsage(
        self, request: usage_pb.GetUsageRequest, _context: Any
    ) -> usage_pb.GetUsageResponse:
        """Return sums of tokens and cost. They are empty if the request names a tenant that the
        caller may not see.
        """
        query = parse.usage_query_from_proto(request, caller())
        if request.tenant and not caller().sees(request.tenant):
            return usage_pb.GetUsageResponse()
        return convert.usage_report_to_proto(await self._usages.usage(query))

    async def ReconcileUsage(
        self, _request: usage_pb.ReconcileUsageRequest, _context: Any
    ) -> usage_pb.ReconcileUsageResponse:
        """Compare the ledger's counts of tokens with the engines' own counters."""
        return usage_pb.ReconcileUsageResponse(
            reconciliations=[
                to_proto(usage_pb.Reconciliation, comparison, start_time=comparison.start)
                for comparison in await self._reconciler.reconcile()
            ]
        )
