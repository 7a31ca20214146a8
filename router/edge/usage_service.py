"""The wire side of what was spent."""

from typing import Any

from rolegate.v1 import usage_service_pb2 as pb
from rolegate.v1 import usage_service_pb2_grpc as pb_grpc

from router.edge.convert import span_from_proto, usage_report_to_proto
from router.gateway import Gateway


class UsageServicer(pb_grpc.UsageServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def GetUsage(self, request: pb.GetUsageRequest, _context: Any) -> pb.GetUsageResponse:
        """Sum the tokens of the stored runs."""
        start, end = span_from_proto(request)
        return usage_report_to_proto(await self._gateway.usage(start, end))
