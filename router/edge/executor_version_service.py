"""The wire side of versions of the executor."""

from typing import Any

from rolegate.v1 import executor_version_service_pb2 as pb
from rolegate.v1 import executor_version_service_pb2_grpc as pb_grpc

from router.edge.convert_version import decision_to_proto, state_from_proto, version_to_proto
from router.versions import Versions


class ExecutorVersionServicer(pb_grpc.ExecutorVersionServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def ListExecutorVersions(
        self, _request: pb.ListExecutorVersionsRequest, _context: Any
    ) -> pb.ListExecutorVersionsResponse:
        """All versions, newest first."""
        found = await self._versions.list()
        return pb.ListExecutorVersionsResponse(versions=[version_to_proto(*each) for each in found])

    async def RegisterExecutorVersion(
        self, request: pb.RegisterExecutorVersionRequest, _context: Any
    ) -> pb.RegisterExecutorVersionResponse:
        """Check, load, and put on record."""
        version = await self._versions.register(request.version)
        return pb.RegisterExecutorVersionResponse(version=version_to_proto(version))

    async def SetExecutorVersionTraffic(
        self, request: pb.SetExecutorVersionTrafficRequest, _context: Any
    ) -> pb.SetExecutorVersionTrafficResponse:
        """Let it be tried, or not."""
        state = state_from_proto(request.state)
        version = await self._versions.set_traffic(request.version, state, request.canary_share)
        figures = await self._versions.figures(version)
        return pb.SetExecutorVersionTrafficResponse(version=version_to_proto(version, figures))

    async def PromoteExecutorVersion(
        self, request: pb.PromoteExecutorVersionRequest, _context: Any
    ) -> pb.PromoteExecutorVersionResponse:
        """Make it the active one."""
        version = await self._versions.promote(request.version)
        return pb.PromoteExecutorVersionResponse(version=version_to_proto(version))

    async def RollBackExecutorVersion(
        self, request: pb.RollBackExecutorVersionRequest, _context: Any
    ) -> pb.RollBackExecutorVersionResponse:
        """Take it out of service."""
        active = await self._versions.roll_back(request.version)
        return pb.RollBackExecutorVersionResponse(active=None if active is None else version_to_proto(active))

    async def ListExecutorVersionDecisions(
        self, request: pb.ListExecutorVersionDecisionsRequest, _context: Any
    ) -> pb.ListExecutorVersionDecisionsResponse:
        """What was decided, oldest first."""
        found = await self._versions.decisions(request.version or None, request.after_number)
        return pb.ListExecutorVersionDecisionsResponse(decisions=map(decision_to_proto, found))
