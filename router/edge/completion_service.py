"""The wire side of single model calls."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import completion_service_pb2_grpc as pb_grpc

from router.edge.convert import completion_from_proto, usage_to_proto
from router.execution import Conversation
from router.gateway import Gateway
from router.model import Completion, Delta
from router.run import Run


class CompletionServicer(pb_grpc.CompletionServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Complete(self, request: pb.CompleteRequest, context: Any) -> pb.CompleteResponse:
        """Call the model of a role."""
        run = await self._gateway.complete(completion_from_proto(request), context.time_remaining())
        output = _output(run)
        return pb.CompleteResponse(
            text=output.text,
            reasoning=output.reasoning,
            finish_reason=output.finish_reason,
            usage=usage_to_proto(run.calls)[0],
            run_id=run.id,
        )

    async def StreamComplete(
        self, request: pb.StreamCompleteRequest, context: Any
    ) -> AsyncIterator[pb.StreamCompleteResponse]:
        """Call the model of a role and pass on what it writes."""
        deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        asked = completion_from_proto(request)

        async def complete() -> Run:
            try:
                return await self._gateway.complete(asked, context.time_remaining(), deltas.put)
            finally:
                deltas.put_nowait(None)

        async with asyncio.TaskGroup() as group:
            running = group.create_task(complete())
            while (delta := await deltas.get()) is not None:
                if delta.text or delta.reasoning:
                    yield pb.StreamCompleteResponse(text=delta.text, reasoning=delta.reasoning)
        run = running.result()
        yield pb.StreamCompleteResponse(
            finish_reason=_output(run).finish_reason, usage=usage_to_proto(run.calls)[0], run_id=run.id
        )


def _output(run: Run) -> Completion:
    assert isinstance(run.result, Conversation)
    return run.result.outputs[-1]
