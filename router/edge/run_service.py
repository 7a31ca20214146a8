"""The wire side of stored runs."""

from typing import Any

from rolegate.v1 import run_service_pb2 as pb
from rolegate.v1 import run_service_pb2_grpc as pb_grpc

from router.edge.convert import feedback_from_proto
from router.gateway import Gateway


class RunServicer(pb_grpc.RunServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def SubmitFeedback(self, request: pb.SubmitFeedbackRequest, _context: Any) -> pb.SubmitFeedbackResponse:
        """Keep feedback on a run."""
        return pb.SubmitFeedbackResponse(feedback_id=await self._gateway.feedback(feedback_from_proto(request)))
