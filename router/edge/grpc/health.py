"""The gRPC health service. A service of the gateway is SERVING, unless the gateway is draining
(finishing its last requests) or a dependency of the service is down.
"""

from collections.abc import Iterable

from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse

from router.calls import Need, Readiness

_STORE: frozenset[Need] = frozenset({"store"})
_MODELS: frozenset[Need] = _STORE | {"delegation", "execution", "answer"}
NEEDS: dict[str, frozenset[Need]] = {
    "": _MODELS | {"retrieval"},
    "rolegate.v1.AnswerService": _MODELS | {"retrieval"},
    "rolegate.v1.CompletionService": _MODELS,
    "rolegate.v1.ExecutionService": _STORE | {"execution", "retrieval"},
    "rolegate.v1.RetrievalService": _STORE | {"retrieval"},
}
"""Dependencies of each service. The empty name means the whole server. All other services depend
only on the store, which contains the keys.
"""


async def publish_health(
    servicer: health.aio.HealthServicer, readiness: Readiness, names: Iterable[str]
) -> None:
    """Set the status of each named service in the health service. The empty name means the whole
    server.
    """
    for name in names:
        down = readiness.down(NEEDS.get(name, _STORE))
        await servicer.set(
            name, HealthCheckResponse.NOT_SERVING if down else HealthCheckResponse.SERVING
        )


async def follow_health(
    servicer: health.aio.HealthServicer, readiness: Readiness, names: Iterable[str]
) -> None:
    """Update the status of the named services whenever the readiness of a dependency changes. Runs
    until it is cancelled.
    """
    async for _ in readiness.changes():
        await publish_health(servicer, readiness, names)
