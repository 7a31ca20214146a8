"""Servers that answer while a gateway is starting: it is alive, but not ready yet."""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
from aiohttp import web
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_status import rpc_status

from router.edge.grpc.convert import status_to_proto
from router.edge.grpc.health import NEEDS
from router.edge.grpc.server import listen
from router.edge.http.openai_reply import failure_body
from router.edge.http.server import HTTPServer
from router.edge.listening import TLS
from router.edge.status import failure_of
from router.errors import Starting

_STARTING = failure_of(Starting("The gateway is starting; try again in a few seconds."))


@asynccontextmanager
async def answering_while_starting(
    address: str, http: str | None, tls: TLS | None, hosts: Iterable[str]
) -> AsyncIterator[None]:
    """Answer on the gateway's addresses until the context is left. Then the addresses are free for
    the gateway's own servers. An address with port 0 is left out, because no client can know the
    port yet.

    The health service says NOT_SERVING, and `GET /healthz` is answered. All other requests are
    refused as UNAVAILABLE, or with HTTP status 503. `hosts`: see `HTTPServer`.

    Raises `BadConfig` if the TLS files cannot be read, or if a server cannot listen on its address.
    """
    async with AsyncExitStack() as stack:
        if not address.endswith(":0"):
            server = await _grpc_server()
            stack.push_async_callback(server.stop, None)
            await listen(server, address, None, tls)
        if http and not http.endswith(":0"):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", _answer)
            http_server = HTTPServer(app, 0, tls=tls, hosts=hosts)
            stack.push_async_callback(http_server.drain)
            await http_server.start(http, "server.http")
        yield


async def _grpc_server() -> grpc.aio.Server:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    servicer = health.aio.HealthServicer()
    add_HealthServicer_to_server(servicer, server)
    server.add_generic_rpc_handlers((_Refusing(),))
    for name in NEEDS:
        await servicer.set(name, HealthCheckResponse.NOT_SERVING)
    return server


class _Refusing(grpc.GenericRpcHandler):
    """Refuses every call."""

    def service(self, _call: grpc.HandlerCallDetails) -> Any:
        """Return a handler that refuses the call with UNAVAILABLE."""

        async def refuse(_request: bytes, context: Any) -> None:
            await context.abort_with_status(rpc_status.to_status(status_to_proto(_STARTING)))

        return grpc.unary_unary_rpc_method_handler(refuse)


async def _answer(request: web.Request) -> web.Response:
    if request.path == "/healthz":
        return web.json_response({"status": "ok"})
    return web.json_response(failure_body(_STARTING), status=503, headers={"Retry-After": "1"})
