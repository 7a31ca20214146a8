"""The health service: a service is healthy unless it drains or a dependency is down."""

from collections.abc import Iterable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from router.calls import Need, Readiness

_STORE: frozenset[Need] = frozenset({"store"})
_MODELS: frozenset[Need] = _STORE | {"delegation", "execution", "answer"}
_NEEDS: dict[str, frozenset[Need]] = {
    "": _MODELS | {"retrieval"},
    "rolegate.v1.AnswerService": _MODELS | {"retrieval"},
    "rolegate.v1.CompletionService": _MODELS,
    "rolegate.v1.ExecutionService": _STORE | {"execution", "retrieval"},
    "rolegate.v1.RetrievalService": _STORE | {"retrieval"},
}
"""Dependencies of each service; other services need only the store, which holds the keys."""


class Health:
    """Reports the health of each service, and notifies watchers of changes."""

    def __init__(self, readiness: Readiness | None = None) -> None:
        """`readiness`: None if no dependency is watched."""
        self._readiness = readiness or Readiness()
        self._servicer = health.aio.HealthServicer()
        self._names: tuple[str, ...] = ()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Add the health service to a server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def serve(self, names: Iterable[str]) -> None:
        """Report the named services as served; the empty name is the whole server."""
        self._names = tuple(names)
        await self._publish()

    async def follow(self) -> None:
        """Follow the readiness of dependencies until cancelled."""
        async for _ in self._readiness.changes():
            await self._publish()

    async def drain(self) -> None:
        """Report every service as not serving from now on."""
        await self._servicer.enter_graceful_shutdown()

    async def _publish(self) -> None:
        for name in self._names:
            down = self._readiness.down(_NEEDS.get(name, _STORE))
            status = (
                health_pb2.HealthCheckResponse.NOT_SERVING
                if down
                else health_pb2.HealthCheckResponse.SERVING
            )
            await self._servicer.set(name, status)
