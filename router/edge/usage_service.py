"""The wire side of what was spent."""

from typing import Any

from rolegate.v1 import usage_service_pb2 as pb
from rolegate.v1 import usage_service_pb2_grpc as pb_grpc

from router.edge.caller import caller
from router.edge.convert_usage import reconciliation_to_proto, usage_query_from_proto, usage_report_to_proto
from router.reconciliation import Reconciler
from router.usage_report import Usages


class UsageServicer(pb_grpc.UsageServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, usages: Usages, reconciler: Reconciler) -> None:
        self._usages, self._reconciler = usages, reconciler

    async def GetUsage(self, request: pb.GetUsageRequest, _context: Any) -> pb.GetUsageResponse:
        """Sum what was spent; nothing where it is another tenant's."""
        query = usage_query_from_proto(request, caller())
        if request.tenant and not caller().sees(request.tenant):
            return pb.GetUsageResponse()
        return usage_report_to_proto(await self._usages.usage(query))

    async def ReconcileUsage(self, _request: pb.ReconcileUsageRequest, _context: Any) -> pb.ReconcileUsageResponse:
        """Compare the ledger with the engines' own counters."""
        return pb.ReconcileUsageResponse(
            reconciliations=map(reconciliation_to_proto, await self._reconciler.reconcile())
        )
