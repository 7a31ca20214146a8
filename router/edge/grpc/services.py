"""The services on the wire: each method converts, calls, converts."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
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
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1 import usage_service_pb2_grpc as usage_pb_grpc

from router.access import caller
from router.background import in_viewer, in_worker
from router.edge.found_table import TableEvents
from router.edge.grpc import convert, convert_table
from router.edge.grpc import convert_request as parse
from router.edge.running import Running
from router.edge.status import as_seen_by, failure_of_run
from router.errors import BadRequest
from router.ledger import Reconciler
from router.ledger.usage import Usages
from router.models import Completion, Delta
from router.runs import Gateway, Runs
from router.runs.archive import ExportedRun
from router.trace import Conversation, Event, Execution, Run
from router.trace.export import output_of, trace_json
from router.trace.identity import Identity
from router.versions import Versions


class AnswerServicer(answer_pb_grpc.AnswerServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Answer(
        self, request: answer_pb.AnswerRequest, context: Any
    ) -> answer_pb.AnswerResponse:
        """Answer one question."""
        options = parse.options_from_proto(request, context)
        topology = parse.topology_from_proto(request)
        run = await self._gateway.answer(request.question, options, topology=topology)
        return await convert.answer_to_proto(run)

    async def StreamAnswer(
        self, request: answer_pb.StreamAnswerRequest, context: Any
    ) -> AsyncIterator[answer_pb.StreamAnswerResponse]:
        """Answer one question, telling what happens."""
        options = parse.options_from_proto(request, context)
        topology = parse.topology_from_proto(request)
        number = 1
        told = partial(convert.event_to_proto, answer_pb.StreamAnswerResponse)
        async with Running[Event, Run](
            lambda tell: self._gateway.answer(request.question, options, tell, topology)
        ) as running:
            async for events in running:
                for event in events:
                    yield await convert.tell_event(told, number, event)
                    number += 1
            run = await running.result()
        for last in await convert.last_events_to_proto(number, run):
            yield last


_PIECE_CHARS = 65536


class CompletionServicer(completion_pb_grpc.CompletionServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Complete(
        self, request: completion_pb.CompleteRequest, context: Any
    ) -> completion_pb.CompleteResponse:
        """Call the model of a role."""
        run = await self._gateway.complete(
            parse.completion_from_proto(request), parse.options_from_proto(request, context)
        )
        usage = convert.usage_to_proto(run.calls)[0]
        return convert.to_proto(
            completion_pb.CompleteResponse, _output(run), usage=usage, run_id=run.id
        )

    async def StreamComplete(
        self, request: completion_pb.StreamCompleteRequest, context: Any
    ) -> AsyncIterator[completion_pb.StreamCompleteResponse]:
        """Call the model of a role and pass on what it writes."""
        asked = parse.completion_from_proto(request)
        options = parse.options_from_proto(request, context)
        told = False
        async with Running[Delta, Run](
            lambda tell: self._gateway.complete(asked, options, tell)
        ) as running:
            async for deltas in running:
                for piece in _pieces(
                    "".join(delta.text for delta in deltas), "".join(d.reasoning for d in deltas)
                ):
                    told = True
                    yield piece
            run = await running.result()
        output = _output(run)
        # Of an earlier request of the same name
        for piece in () if told else _pieces(output.text, output.reasoning):
            yield piece
        yield completion_pb.StreamCompleteResponse(
            finish_reason=output.finish_reason,
            usage=convert.usage_to_proto(run.calls)[0],
            run_id=run.id,
        )


def _pieces(text: str, reasoning: str) -> Iterator[completion_pb.StreamCompleteResponse]:
    """Messages that hold so much, none of them too large for a client."""
    for at in range(0, max(len(text), len(reasoning)), _PIECE_CHARS):
        end = at + _PIECE_CHARS
        yield completion_pb.StreamCompleteResponse(text=text[at:end], reasoning=reasoning[at:end])


def _output(run: Run) -> Completion:
    assert isinstance(run.result, Conversation)
    return run.result.outputs[-1]


class ExecutionServicer(execution_pb_grpc.ExecutionServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Execute(
        self, request: execution_pb.ExecuteRequest, context: Any
    ) -> execution_pb.ExecuteResponse:
        """Search for one sub-query and report."""
        run = await self._gateway.execute(
            request.sub_query, parse.options_from_proto(request, context)
        )
        assert isinstance(run.result, Execution)
        result = await in_worker(convert.execution_to_proto, run.result)
        return execution_pb.ExecuteResponse(
            run_id=run.id, result=result, usage=convert.usage_to_proto(run.calls)
        )


class ExecutorVersionServicer(version_pb_grpc.ExecutorVersionServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def ListExecutorVersions(
        self, _request: version_pb.ListExecutorVersionsRequest, _context: Any
    ) -> version_pb.ListExecutorVersionsResponse:
        """All versions, newest first."""
        found = await self._versions.list()
        return version_pb.ListExecutorVersionsResponse(
            versions=[convert.version_to_proto(*each) for each in found]
        )

    async def RegisterExecutorVersion(
        self, request: version_pb.RegisterExecutorVersionRequest, _context: Any
    ) -> version_pb.RegisterExecutorVersionResponse:
        """Check, load, and put on record."""
        version = await self._versions.register(request.version)
        return version_pb.RegisterExecutorVersionResponse(version=convert.version_to_proto(version))

    async def SetExecutorVersionTraffic(
        self, request: version_pb.SetExecutorVersionTrafficRequest, _context: Any
    ) -> version_pb.SetExecutorVersionTrafficResponse:
        """Let it be tried, or not."""
        state = parse.state_from_proto(request.state)
        version = await self._versions.set_traffic(request.version, state, request.canary_share)
        figures = await self._versions.figures(version)
        return version_pb.SetExecutorVersionTrafficResponse(
            version=convert.version_to_proto(version, figures)
        )

    async def PromoteExecutorVersion(
        self, request: version_pb.PromoteExecutorVersionRequest, _context: Any
    ) -> version_pb.PromoteExecutorVersionResponse:
        """Make it the active one."""
        version = await self._versions.promote(request.version)
        return version_pb.PromoteExecutorVersionResponse(version=convert.version_to_proto(version))

    async def RollBackExecutorVersion(
        self, request: version_pb.RollBackExecutorVersionRequest, _context: Any
    ) -> version_pb.RollBackExecutorVersionResponse:
        """Take it out of service."""
        active = await self._versions.roll_back(request.version)
        return version_pb.RollBackExecutorVersionResponse(
            active=None if active is None else convert.version_to_proto(active)
        )

    async def ListExecutorVersionDecisions(
        self, request: version_pb.ListExecutorVersionDecisionsRequest, _context: Any
    ) -> version_pb.ListExecutorVersionDecisionsResponse:
        """Decisions, oldest first."""
        found = await self._versions.decisions(request.version or None, request.after_number)
        return version_pb.ListExecutorVersionDecisionsResponse(
            decisions=map(convert.decision_to_proto, found)
        )


_PAGE = 50
_LARGEST_PAGE = 1000


class RunServicer(run_pb_grpc.RunServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def GetRun(self, request: run_pb.GetRunRequest, _context: Any) -> run_pb.GetRunResponse:
        """One run."""
        run = await in_viewer(as_seen_by, await self._runs.get(request.run_id, caller()), caller())
        return await in_viewer(
            convert.whole_run_to_proto,
            run,
            await self._runs.feedback_on(run),
            request.include_trace,
        )

    async def ListRuns(
        self, request: run_pb.ListRunsRequest, _context: Any
    ) -> run_pb.ListRunsResponse:
        """A page of runs, newest first."""
        if request.page_size < 0:
            raise BadRequest(f"page_size is {request.page_size}; leave it 0 for {_PAGE}.")
        size = min(request.page_size or _PAGE, _LARGEST_PAGE)
        page = await self._runs.list(
            parse.list_filter_from_proto(request), size, request.page_token, caller()
        )
        return run_pb.ListRunsResponse(
            runs=map(convert.run_to_proto, page.runs), next_page_token=page.next_page
        )

    async def WatchRun(
        self, request: run_pb.WatchRunRequest, context: Any
    ) -> AsyncIterator[run_pb.WatchRunResponse]:
        """Events of an answer or a table; a run that did not finish ends in its error."""
        after = request.after_event_number
        identity = caller()
        run = await self._runs.get(request.run_id, identity)
        table = TableEvents(run.events[: max(0, after)]) if run.kind == "table" else None
        last_events = convert_table.last_events_to_proto if table else convert.last_events_to_proto
        told = (
            partial(convert_table.told_to_proto, table)
            if table
            else partial(convert.event_to_proto, answer_pb.StreamAnswerResponse)
        )
        async for number, item in self._runs.watch(request.run_id, after, identity):
            if not isinstance(item, Run):
                yield _watched(await convert.tell_event(told, number, item))
            elif item.status == "finished":
                for event in await last_events(number - 1, item):
                    if event.event_number > after:
                        yield _watched(event)
            else:
                await context.abort_with_status(
                    rpc_status.to_status(convert.status_to_proto(failure_of_run(item, identity)))
                )

    async def CancelRun(
        self, request: run_pb.CancelRunRequest, _context: Any
    ) -> run_pb.CancelRunResponse:
        """Stop a run."""
        await self._runs.cancel(request.run_id, caller())
        return run_pb.CancelRunResponse()

    async def SubmitFeedback(
        self, request: run_pb.SubmitFeedbackRequest, _context: Any
    ) -> run_pb.SubmitFeedbackResponse:
        """Keep feedback on a run."""
        feedback_id = await self._runs.feedback(parse.feedback_from_proto(request), caller())
        return run_pb.SubmitFeedbackResponse(feedback_id=feedback_id)

    async def ExportRuns(
        self, request: run_pb.ExportRunsRequest, _context: Any
    ) -> AsyncIterator[run_pb.ExportRunsResponse]:
        """All runs that have ended, oldest first."""
        identity = caller()
        async for told in self._runs.export(parse.export_filter_from_proto(request), identity):
            yield await in_viewer(_exported, told, identity)


def _exported(told: ExportedRun, identity: Identity) -> run_pb.ExportRunsResponse:
    seen = as_seen_by(told.run, identity)
    return run_pb.ExportRunsResponse(
        run=convert.run_to_proto(seen),
        output=output_of(seen),
        trace_json=trace_json(seen),
        feedback=map(convert.feedback_to_proto, told.feedback),
    )


def _watched(
    event: answer_pb.StreamAnswerResponse | table_pb.StreamTableResponse,
) -> run_pb.WatchRunResponse:
    if isinstance(event, table_pb.StreamTableResponse):
        return run_pb.WatchRunResponse(table_event=event)
    return run_pb.WatchRunResponse(event=event)


class UsageServicer(usage_pb_grpc.UsageServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, usages: Usages, reconciler: Reconciler) -> None:
        self._usages = usages
        self._reconciler = reconciler

    async def GetUsage(
        self, request: usage_pb.GetUsageRequest, _context: Any
    ) -> usage_pb.GetUsageResponse:
        """Sum what was spent; nothing where it is another tenant's."""
        query = parse.usage_query_from_proto(request, caller())
        if request.tenant and not caller().sees(request.tenant):
            return usage_pb.GetUsageResponse()
        return convert.usage_report_to_proto(await self._usages.usage(query))

    async def ReconcileUsage(
        self, _request: usage_pb.ReconcileUsageRequest, _context: Any
    ) -> usage_pb.ReconcileUsageResponse:
        """Compare the ledger with the engines' own counters."""
        return usage_pb.ReconcileUsageResponse(
            reconciliations=map(convert.reconciliation_to_proto, await self._reconciler.reconcile())
        )
