"""The wire side of answering."""

from collections.abc import AsyncIterator
from typing import Any

from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import answer_service_pb2_grpc as pb_grpc

from router.edge.convert import answer_to_proto, event_to_proto, last_events_to_proto
from router.edge.convert_request import terms_from_proto, topology_from_proto
from router.edge.running import Running
from router.events import Event
from router.gateway import Gateway
from router.run import Run


class AnswerServicer(pb_grpc.AnswerServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Answer(self, request: pb.AnswerRequest, context: Any) -> pb.AnswerResponse:
        """Answer one question."""
        terms, topology = terms_from_proto(request, context), topology_from_proto(request)
        run = await self._gateway.answer(request.question, terms, lambda _event: None, topology)
        return await answer_to_proto(run)

    async def StreamAnswer(
        self, request: pb.StreamAnswerRequest, context: Any
    ) -> AsyncIterator[pb.StreamAnswerResponse]:
        """Answer one question, telling what happens."""
        terms, topology = terms_from_proto(request, context), topology_from_proto(request)
        number = 1
        async with Running[Event, Run](
            lambda tell: self._gateway.answer(request.question, terms, tell, topology)
        ) as running:
            async for event in running:
                yield event_to_proto(number, event)
                number += 1
            run = await running.result()
        for last in await last_events_to_proto(number, run):
            yield last
