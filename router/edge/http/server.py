"""An HTTP application at an address."""

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
from router.edge.listening import (
    TLS,
    check_listening,
    host_of,
    is_named,
    wait_for_port,
    warn_unencrypted,
)
from router.errors import BadConfig
from router.runs import Observer

_AT_ONCE_S = 0.01
_TOO_MANY = (
    b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: text/plain\r\n\r\n"
    b"Too many connections from your address (server.http_connections_per_address); "
    b"close some, or use them again.\n"
)


class HTTPServer:
    """Serves an application until drained. A client that leaves cancels its request. One that asks
    for a host by a name that is not this server's is refused: it may be a web page of elsewhere
    that has had its name made to lead here.
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
        """`grace_s`: how long running requests may take to finish once it is drained. `access`: the
        application lets in by keys; without it, any address will do. `limits`: None for the
        defaults. `hosts`: names of this server, beside that in its address.
        """
        self._access = access
        self._tls = tls
        self._limits = limits or Limits()
        # aiohttp waits this long twice, for the request and then for its task, and for ever if it
        # is 0.
        timeout_s = max(grace_s / 2, _AT_ONCE_S)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            shutdown_timeout=timeout_s,
            keepalive_timeout=self._limits.opening_s,
            # Which would go on after a request is refused, on the event loop, without a bound
            auto_decompress=False,
        )
        app.middlewares.append(self._check_head)
        self._hosts = set(map(host_of, hosts))
        self._listening: asyncio.Server | None = None

    async def start(self, address: str, setting: str) -> str:
        """Listen on `host:port` (port 0: any free one); where it listens.

        Raises `BadConfig`, naming `setting`, also for an address beyond the loopback while there
        are no keys, and `StoreFailed`.
        """
        if self._access:
            await check_listening(address, setting, self._access)
            warn_unencrypted(address, self._tls)
        context = self._tls.for_http() if self._tls else None
        self._hosts.add(host_of(address))
        host, _, port = address.rpartition(":")
        await self._runner.setup()
        await wait_for_port(address)
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
        """Take nothing new, let running requests finish, and cancel those that do not."""
        if self._listening is not None:
            self._listening.close()
        try:
            await self._runner.cleanup()
        except asyncio.CancelledError:  # whoever waits has lost patience
            if self._runner.server is not None:
                await self._runner.server.shutdown(_AT_ONCE_S)
            raise

    @web.middleware
    async def _check_head(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        for host in request.headers.getall("Host", []):  # none in HTTP/1.0, which no browser speaks
            if not is_named(host, self._hosts):
                raise web.HTTPMisdirectedRequest(
                    text=f"This server does not go by the name of {host[:100]!r}; use its IP "
                    "address, or have its "
                    "operator add the name to server.http_hosts (rolegate retrieve "
                    "serve: --http-host)."
                )
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise web.HTTPUnsupportedMediaType(
                text="Send the body as it is, without a Content-Encoding."
            )
        return await handler(request)


class _Door(asyncio.Protocol):
    """Lets a connection in, or turns it away where there are too many, in all or from its
    address.
    """

    def __init__(self, server: Any, limits: Limits) -> None:
        self._server = server
        self._limits = limits

    def connection_made(self, transport: Any) -> None:
        addresses = [
            _address(each.transport) for each in self._server.connections if each.transport
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
    """Return the address that a connection comes from; of IPv6, where hosts have many, the
    network.
    """
    return _packed((transport.get_extra_info("peername") or ["::"])[0])


@lru_cache(8192)
def _packed(host: str) -> bytes:
    return ip_address(host.partition("%")[0]).packed[:8]


def observing(observer: Observer) -> Middleware:
    """Tell of every request; it stands outside of whoever translates errors."""

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
