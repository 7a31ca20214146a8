"""The wire side of answering."""

from collections.abc import AsyncIterator
from typing import Any

from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import answer_service_pb2_grpc as pb_grpc

from router.edge.convert import answer_to_proto, event_to_proto, usage_to_proto
from router.edge.running import Running
from router.events import Event
from router.gateway import Gateway
from router.run import Run
from router.trajectory import Trajectory


class AnswerServicer(pb_grpc.AnswerServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Answer(self, request: pb.AnswerRequest, context: Any) -> pb.AnswerResponse:
        """Answer one question."""
        run = await self._gateway.answer(request.question, context.time_remaining(), lambda _event: None)
        return _response(run)

    async def StreamAnswer(
        self, request: pb.StreamAnswerRequest, context: Any
    ) -> AsyncIterator[pb.StreamAnswerResponse]:
        """Answer one question, telling what happens."""
        time_s = context.time_remaining()
        number = 0
        async with Running[Event, Run](lambda tell: self._gateway.answer(request.question, time_s, tell)) as running:
            async for event in running:
                number += 1
                yield event_to_proto(number, event)
            run = await running.result()
        yield pb.StreamAnswerResponse(
            event_number=number + 1, usage_counted=pb.UsageCounted(usage=usage_to_proto(run.calls))
        )
        yield pb.StreamAnswerResponse(event_number=number + 2, done=_response(run))


def _response(run: Run) -> pb.AnswerResponse:
    assert isinstance(run.result, Trajectory)
    return answer_to_proto(run, run.result)
