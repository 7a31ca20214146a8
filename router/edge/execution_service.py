"""The wire side of the executor as a tool."""

from typing import Any

from rolegate.v1 import execution_service_pb2 as pb
from rolegate.v1 import execution_service_pb2_grpc as pb_grpc

from router.edge.convert import execution_to_proto
from router.edge.convert_request import terms_from_proto
from router.edge.convert_usage import usage_to_proto
from router.execution import Execution
from router.gateway import Gateway


class ExecutionServicer(pb_grpc.ExecutionServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Execute(self, request: pb.ExecuteRequest, context: Any) -> pb.ExecuteResponse:
        """Search for one sub-query and report."""
        run = await self._gateway.execute(request.sub_query, terms_from_proto(request, context))
        assert isinstance(run.result, Execution)
        return pb.ExecuteResponse(run_id=run.id, result=execution_to_proto(run.result), usage=usage_to_proto(run.calls))
