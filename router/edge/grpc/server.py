"""The gRPC server, with its services, the health service, reflection and limits."""

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import Any

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from router.access import Access
from router.background import background_tasks
from router.calls import Readiness
from router.edge.grpc.health import follow_health, publish_health
from router.edge.grpc.interceptor import CallInterceptor
from router.edge.grpc.services import (
    AnswerServicer,
    CompletionServicer,
    ExecutionServicer,
)
from router.edge.limits import DEFAULT_LIMITS, Limits
from router.edge.listening import TLS, before_listening
from router.errors import BadConfig
from router.runs import Gateway, Observer

_ENDING_S = 0.5
"""Seconds for storing interrupted runs and sending their errors to the clients. Afterwards, the
calls of these clients are cancelled, and their tasks get as many seconds to end.
"""


class Server:
    """gRPC server that serves the given services from `start` until `drain`."""

    def __init__(
        self,
        gateway: Gateway | None,
        *servicers: Any,
        access: Access | None = None,
        tls: TLS | None = None,
        readiness: Readiness | None = None,
        limits: Limits = DEFAULT_LIMITS,
        observer: Observer | None = None,
    ) -> None:
        """`gateway`: does the work of AnswerService, CompletionService and ExecutionService; None
        to leave these services out. `servicers`: implementations of further services; None is
        ignored. `access`: checks the keys; None to admit every caller to every method. `tls`: None
        for a server without TLS. `readiness`: state of the dependencies, for the health service.
        """
        self._server = grpc.aio.server(
            interceptors=[CallInterceptor(access, observer, limits.reading_s)],
            options=[*limits.grpc_options.items(), ("grpc.so_reuseport", 0)],
        )
        self._access = access
        self._tls = tls
        self._gateway = gateway
        self._health = health.aio.HealthServicer()
        self._readiness = readiness or Readiness()
        self._tasks = AsyncExitStack()
        _add(self._health, self._server)
        if gateway is not None:
            servicers += (
                AnswerServicer(gateway),
                CompletionServicer(gateway),
                ExecutionServicer(gateway),
            )
        self._names = [_add(servicer, self._server) for servicer in servicers if servicer]
        reflection.enable_server_reflection(
            [*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )

    async def start(self, address: str) -> int:
        """Listen on `host:port` and report the services as healthy. Port 0 means any free port.
        Return the port.

        Raises `BadConfig` if the server cannot listen on the address, or if other machines can
        reach the address although no key is required. Raises `StoreFailed` if the keys cannot be
        read.
        """
        port = await listen(self._server, address, self._access, self._tls)
        reported = self._health, self._readiness, ("", *self._names)
        await publish_health(*reported)
        following = [self._access.follow()] if self._access else []
        await self._tasks.enter_async_context(
            background_tasks(follow_health(*reported), *following)
        )
        return port

    async def drain(self, grace_s: float) -> None:
        """Report NOT_SERVING and refuse new calls. Calls under way may finish within `grace_s`
        seconds. Then runs that are still under way are interrupted, and all other calls are
        cancelled. When this method returns, every run is stored.
        """
        await self._health.enter_graceful_shutdown()
        try:
            await self._stop(grace_s)
        except asyncio.CancelledError:  # `drain` itself was cancelled
            await self._stop(0)
            raise
        finally:
            await self._tasks.aclose()

    async def _stop(self, grace_s: float) -> None:
        if self._gateway:
            self._gateway.lifecycle.live.stop(grace_s)
        await self._server.stop(grace_s + _ENDING_S)
        if self._gateway:
            await self._gateway.settled()

        # `grpc.aio.Server.stop` does not wait for the tasks of cancelled calls. If the event loop
        # ended before them, gRPC would print a traceback for each. These tasks are known only by
        # the name of their coroutine, so this also waits for calls of other servers in the process.
        calls = [task for task in asyncio.all_tasks() if "_schedule_rpc" in str(task)]
        if calls:
            await asyncio.wait(calls, timeout=_ENDING_S)


async def listen(
    server: grpc.aio.Server, address: str, access: Access | None, tls: TLS | None
) -> int:
    """Start a server on `host:port`, and return the port. See `Server.start`."""
    await before_listening(address, "server.address", access, tls)
    try:
        if tls:
            port = server.add_secure_port(address, tls.for_grpc())
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise BadConfig(
            f"server.address: cannot listen on {address}; is the port in use? Set another port, or "
            "port 0 for any free port."
        ) from error
    await server.start()
    return port


def _add(servicer: Any, server: grpc.aio.Server) -> str:
    """Add a servicer to the server by its generated function `add_…_to_server`. Return the name of
    the service.
    """
    base = next(kind for kind in type(servicer).__mro__ if kind.__module__.endswith("_pb2_grpc"))
    getattr(sys.modules[base.__module__], f"add_{base.__name__}_to_server")(servicer, server)
    return f"rolegate.v1.{base.__name__.removesuffix('Servicer')}"
