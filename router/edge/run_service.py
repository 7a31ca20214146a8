"""The wire side of stored runs."""

from collections.abc import AsyncIterator
from typing import Any

from grpc_status import rpc_status
from rolegate.v1 import run_service_pb2 as pb
from rolegate.v1 import run_service_pb2_grpc as pb_grpc

from router.edge.caller import caller
from router.edge.convert import event_to_proto, last_events_to_proto
from router.edge.convert_run import (
    export_filter_from_proto,
    feedback_from_proto,
    feedback_to_proto,
    list_filter_from_proto,
    run_to_proto,
    whole_run_to_proto,
)
from router.edge.run_failure import as_seen_by, failure_of
from router.errors import BadRequest
from router.export_row import output_of, trace_json
from router.run import Run
from router.runs import Runs

_PAGE, _LARGEST_PAGE = 50, 1000


class RunServicer(pb_grpc.RunServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    async def GetRun(self, request: pb.GetRunRequest, _context: Any) -> pb.GetRunResponse:
        """One run."""
        run = as_seen_by(await self._runs.get(request.run_id, caller()), caller())
        return whole_run_to_proto(run, await self._runs.feedback_on(run), with_trace=request.include_trace)

    async def ListRuns(self, request: pb.ListRunsRequest, _context: Any) -> pb.ListRunsResponse:
        """A page of runs, newest first."""
        if request.page_size < 0:
            raise BadRequest(f"page_size is {request.page_size}; leave it 0 for {_PAGE}.")
        size = min(request.page_size or _PAGE, _LARGEST_PAGE)
        page = await self._runs.list(list_filter_from_proto(request), size, request.page_token, caller())
        return pb.ListRunsResponse(runs=map(run_to_proto, page.runs), next_page_token=page.next_page)

    async def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> AsyncIterator[pb.WatchRunResponse]:
        """What happens in an answer; a run that did not finish ends in its error."""
        after, identity = request.after_event_number, caller()
        async for number, item in self._runs.watch(request.run_id, after, identity):
            if not isinstance(item, Run):
                yield pb.WatchRunResponse(event=event_to_proto(number, item))
            elif item.status == "finished":
                for event in await last_events_to_proto(number - 1, item):
                    if event.event_number > after:
                        yield pb.WatchRunResponse(event=event)
            else:
                await context.abort_with_status(rpc_status.to_status(failure_of(item, identity)))

    async def CancelRun(self, request: pb.CancelRunRequest, _context: Any) -> pb.CancelRunResponse:
        """Stop a run."""
        await self._runs.cancel(request.run_id, caller())
        return pb.CancelRunResponse()

    async def SubmitFeedback(self, request: pb.SubmitFeedbackRequest, _context: Any) -> pb.SubmitFeedbackResponse:
        """Keep feedback on a run."""
        feedback_id = await self._runs.feedback(feedback_from_proto(request), caller())
        return pb.SubmitFeedbackResponse(feedback_id=feedback_id)

    async def ExportRuns(self, request: pb.ExportRunsRequest, _context: Any) -> AsyncIterator[pb.ExportRunsResponse]:
        """All runs that have ended, oldest first."""
        identity = caller()
        async for told in self._runs.export(export_filter_from_proto(request), identity):
            seen = as_seen_by(told.run, identity)
            yield pb.ExportRunsResponse(
                run=run_to_proto(seen),
                output=output_of(seen),
                trace_json=trace_json(seen),
                feedback=map(feedback_to_proto, told.feedback),
            )
