"""The HTTP server, its limits on connections, and observation of requests."""

import asyncio
import time
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.access import Access
from router.edge.limits import Limits
from router.edge.listening import TLS, before_listening, host_of, is_named
from router.errors import BadConfig
from router.runs import Observer

_NO_GRACE_S = 0.01
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: text/plain\r\n\r\n"
    b"Too many connections from your address (server.http_connections_per_address); "
    b"close some, or use them again.\n"
)


class HTTPServer:
    """Serves an application until drained. A client that disconnects cancels its request.

    Requests with an unknown `Host` name are refused, to prevent DNS rebinding.
    """

    def __init__(
        self,
        app: web.Application,
        grace_s: float,
        *,
        access: Access | None = None,
        tls: TLS | None = None,
        limits: Limits | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        """`grace_s`: max time for running requests to finish when draining. `access`: keys of the
        application; None allows any address. `limits`: None for the defaults. `hosts`: names of
        this server, in addition to the one in its address.
        """
        self._access = access
        self._tls = tls
        self._limits = limits or Limits()
        # aiohttp waits this long twice, for the request and for its task; 0 would wait forever.
        timeout_s = max(grace_s / 2, _NO_GRACE_S)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            shutdown_timeout=timeout_s,
            keepalive_timeout=self._limits.opening_s,
            # Decompression would continue on the event loop after a request is refused, unbounded.
            auto_decompress=False,
        )
        app.middlewares.append(self._check_head)
        self._hosts = set(map(host_of, hosts))
        self._listening: asyncio.Server | None = None

    async def start(self, address: str, setting: str) -> str:
        """Listen on `host:port` (port 0: any free one). Return the actual address.

        Raises `BadConfig`, naming `setting`, also for an address beyond the loopback if no key is
        required, and `StoreFailed`.
        """
        await before_listening(address, setting, self._access, self._tls)
        context = self._tls.for_http() if self._tls else None
        self._hosts.add(host_of(address))
        host, _, port = address.rpartition(":")
        await self._runner.setup()
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                lambda: _Door(self._runner.server, self._limits),
                host.strip("[]"),
                int(port),
                ssl=context,
                ssl_handshake_timeout=self._limits.opening_s if context else None,
            )
        except (OSError, ValueError, OverflowError) as error:
            await self._runner.cleanup()
            raise BadConfig(f"{setting}: cannot listen on {address}: {error}.") from None
        return f"{host}:{self._listening.sockets[0].getsockname()[1]}"

    async def drain(self) -> None:
        """Refuse new requests, let running ones finish, and cancel those that do not."""
        if self._listening is not None:
            self._listening.close()
        try:
            await self._runner.cleanup()
        except asyncio.CancelledError:  # the caller waits no longer
            if self._runner.server is not None:
                await self._runner.server.shutdown(_NO_GRACE_S)
            raise

    @web.middleware
    async def _check_head(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        for host in request.headers.getall("Host", []):  # absent in HTTP/1.0, which no browser uses
            if not is_named(host, self._hosts):
                raise web.HTTPMisdirectedRequest(
                    text=f"{host[:100]!r} is not a name of this server; use its IP address, or add "
                    "the name to server.http_hosts (rolegate retrieve serve: --http-host)."
                )
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise web.HTTPUnsupportedMediaType(text="Send the body without a Content-Encoding.")
        return await handler(request)


class _Door(asyncio.Protocol):
    """Accepts a connection, or refuses it if there are too many, in total or from its address."""

    def __init__(self, server: Any, limits: Limits) -> None:
        self._server = server
        self._limits = limits

    def connection_made(self, transport: Any) -> None:
        addresses = [
            _address(connection.transport)
            for connection in self._server.connections
            if connection.transport
        ]
        if len(addresses) >= self._limits.connections:
            transport.close()
        elif addresses.count(_address(transport)) >= self._limits.connections_per_address:
            transport.write(_TOO_MANY)
            transport.close()
        else:
            handler = self._server()
            transport.set_protocol(handler)
            handler.connection_made(transport)


def _address(transport: Any) -> bytes:
    """Return the packed address of a connection's client; for IPv6 the /64 network."""
    return _packed((transport.get_extra_info("peername") or ["::"])[0])


@lru_cache(8192)
def _packed(host: str) -> bytes:
    return ip_address(host.partition("%")[0]).packed[:8]


def observing(observer: Observer) -> Middleware:
    """Return a middleware that notifies the observer of every request, with its final status."""

    @web.middleware
    async def observed(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = request.match_info.route.resource
        path = route.canonical if route else ""
        begun = time.monotonic()
        code = "499"
        observer.request_began(path, request.headers)
        try:
            response = await handler(request)
            code = str(response.status)
            return response
        finally:
            observer.request_ended(path, code, time.monotonic() - begun)

    return observed
