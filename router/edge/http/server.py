"""The HTTP server: addresses, limits on connections, draining, and notification of observers."""

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from router.access import Access
from router.edge.limits import DEFAULT_LIMITS, Limits
from router.edge.listening import TLS, before_listening, host_of, is_named
from router.errors import BadConfig
from router.runs import Observer

_ENDING_S = 0.25
"""Seconds for sending errors to the clients of interrupted runs. aiohttp waits twice for this time
when it shuts down.
"""
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: text/plain\r\n\r\n"
    b"Too many connections from your address (server.http_connections_per_address); "
    b"close some connections, or reuse them.\n"
)


def _is_ours(record: logging.LogRecord) -> bool:
    """Return True if a log record is about an error of this server. Malformed requests are not
    logged: the client gets status 400, and could otherwise fill the log without a key.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_LOGGER = logging.getLogger("http")


class HTTPServer:
    """Serves an application from `start` until `drain`. If a client disconnects, its request is
    cancelled.

    To prevent DNS rebinding, requests are refused if their `Host` header is not a name of this
    server.
    """

    def __init__(
        self,
        app: web.Application,
        grace_s: float,
        *,
        access: Access | None = None,
        tls: TLS | None = None,
        limits: Limits = DEFAULT_LIMITS,
        hosts: Iterable[str] = (),
    ) -> None:
        """`grace_s`: max seconds for requests under way to finish when the server drains. `access`:
        the keys of the application. If given, and no key is required, the server refuses to listen
        on an address that other machines can reach. `tls`: None for a server without TLS. `hosts`:
        host names of this server, in addition to the host in its address.
        """
        self._access = access
        self._tls = tls
        self._limits = limits
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            # aiohttp waits for this time twice: for requests, and then for their tasks. With 0, it
            # would wait without a limit.
            shutdown_timeout=grace_s / 2 + _ENDING_S,
            keepalive_timeout=self._limits.opening_s,
            # aiohttp would decompress the rest of a refused request on the event loop, without a
            # limit on its size.
            auto_decompress=False,
            logger=_LOGGER,
        )
        app.middlewares.append(self._check_head)
        self._hosts = set(map(host_of, hosts))
        self._listening: asyncio.Server | None = None

    async def start(self, address: str, setting: str) -> str:
        """Listen on `host:port`. Port 0 means any free port. Return the address with the actual
        port.

        Raises `BadConfig`, with the name `setting` in the message, if the server cannot listen on
        the address, or if other machines can reach the address although no key is required. Raises
        `StoreFailed` if the keys cannot be read.
        """
        _LOGGER.addFilter(_is_ours)  # no effect if it was added before
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
            raise BadConfig(
                f"{setting}: cannot listen on {address}: {error}; use another address."
            ) from None
        return f"{host}:{self._listening.sockets[0].getsockname()[1]}"

    async def drain(self) -> None:
        """Refuse new requests, wait for requests under way, and cancel those that do not finish in
        time.
        """
        if self._listening is not None:
            self._listening.close()
        try:
            await self._runner.cleanup()
        except asyncio.CancelledError:  # `drain` itself was cancelled
            if self._runner.server is not None:
                await self._runner.server.shutdown(_ENDING_S)
            raise

    @web.middleware
    async def _check_head(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        for host in request.headers.getall("Host", []):  # none in HTTP/1.0
            if not is_named(host, self._hosts):
                raise web.HTTPMisdirectedRequest(
                    text=f"{host[:100]!r} is not an allowed host name; use the IP address, or add "
                    "the name to server.http_hosts (rolegate retrieve serve: --http-host)."
                )
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise web.HTTPUnsupportedMediaType(
                text="The body is compressed; send it without a Content-Encoding."
            )
        return await handler(request)


class _Door(asyncio.Protocol):
    """Accepts a new connection. If there are too many connections, in total or from the client's
    address, closes the new one. An accepted connection is passed on to aiohttp's protocol.
    """

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
    """Return the address of a connection's client as bytes; for IPv6 only the /64 network."""
    return _packed((transport.get_extra_info("peername") or ["::"])[0])


@lru_cache(8192)
def _packed(host: str) -> bytes:
    return ip_address(host.partition("%")[0]).packed[:8]


def observing(observer: Observer) -> Middleware:
    """Return a middleware that notifies the observer of the beginning of every request, and of its
    end with the HTTP status.
    """

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
