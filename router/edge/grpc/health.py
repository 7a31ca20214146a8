"""The health service: what is served, unless it drains or something that it needs is down."""

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
"""The needs of each service; the others need the store, which the keys are in, too."""


class Health:
    """Says how each service is, and tells whoever watches when that changes."""

    def __init__(self, readiness: Readiness | None = None) -> None:
        """`readiness`: None where nothing is known to go down."""
        self._readiness = readiness or Readiness()
        self._servicer = health.aio.HealthServicer()
        self._names: tuple[str, ...] = ()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def serve(self, names: Iterable[str]) -> None:
        """From now on these are served; the empty name is the server as a whole."""
        self._names = tuple(names)
        await self._tell()

    async def follow(self) -> None:
        """Keep up with what is down, for ever."""
        async for _ in self._readiness.changes():
            await self._tell()

    async def drain(self) -> None:
        """Nothing is served any more, whatever happens."""
        await self._servicer.enter_graceful_shutdown()

    async def _tell(self) -> None:
        for name in self._names:
            down = self._readiness.down(_NEEDS.get(name, _STORE))
            status = (
                health_pb2.HealthCheckResponse.NOT_SERVING
                if down
                else health_pb2.HealthCheckResponse.SERVING
            )
            await self._servicer.set(name, status)
