"""HTTP/1.1 client for models' endpoints: received bytes are pushed to a reader immediately, and
the calling task wakes once, at the end.
"""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import cached_property
from typing import Protocol, Self, cast

import aiohttp
import httptools
from aiohappyeyeballs import AddrInfoType, start_connection
from yarl import URL

IDLE_S = 4.0
"""Seconds after which an idle connection is closed. vLLM's server closes it after 5, and loses a
call that is sent at that moment.
"""
_CONNECT_S = 5.0
_NEXT_ADDRESS_S = 0.25
"""Seconds before the next address of a host is tried in parallel."""
_MAX_HEAD = 64 << 10
"""Max bytes without any of a body."""
_STEP = 16 << 10
"""Max bytes of a reply that are read in one turn of the event loop."""
_MAX_HELD = 32
"""Max pieces that are held back for a patient reader."""
_MUCH = 2 << 10
"""Bytes of a piece that is not held back."""
_END = b"\r\n\r\n"
_ENDS = _END, b"[DONE]\n\n\r\n"
"""Ends of the last piece of a chunked body, and of the last event of a stream."""


class TransportError(OSError):
    """A connection failed or broke."""


class ConnectError(TransportError):
    """The endpoint was not reached, so nothing was sent."""


class CertificateError(ConnectError):
    """The endpoint's certificate is not trusted."""


class ReplyReader(Protocol):
    """Receiver of one reply as it arrives. An error that it raises ends the call and closes the
    connection.
    """

    @property
    def patient(self) -> bool:
        """Whether a few pieces may be held back and delivered together, which is cheaper."""

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status and headers, whose names are in lower case."""

    def received(self, data: bytes) -> bool:
        """Take a piece of the body; return True if the rest is not wanted."""


class Target:
    """URL to post to, with the headers of every call."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Raises `aiohttp.InvalidURL`. A user and password in the URL are sent."""
        try:
            parsed = URL(url)
        except ValueError as error:
            raise aiohttp.InvalidURL(url, str(error)) from error
        if parsed.scheme not in ("http", "https") or not parsed.raw_host or not parsed.port:
            raise aiohttp.InvalidURL(url)
        self.url = parsed
        self.host = parsed.raw_host
        self.port = parsed.port
        self.secure = parsed.scheme == "https"
        if parsed.user is not None:
            pair = f"{parsed.user}:{parsed.password or ''}"
            headers = {"Authorization": f"Basic {b64encode(pair.encode()).decode()}", **headers}
        lines = [f"POST {parsed.raw_path_qs} HTTP/1.1", f"Host: {parsed.host_port_subcomponent}"]
        lines.append("Accept-Encoding: identity")
        lines += [f"{name}: {' '.join(value.split())}" for name, value in headers.items()]
        self._head = "\r\n".join((*lines, "Content-Length: ")).encode()

    def request(self, body: bytes, more: str = "") -> bytes:
        """Return the whole request. `more`: further header lines, each with its line end."""
        return b"%b%d\r\n%b\r\n%b" % (self._head, len(body), more.encode(), body)


class ConnectionPool:
    """Connections to any number of endpoints, reused until they are idle for `IDLE_S`."""

    def __init__(self, max_calls: int = 0) -> None:
        """`max_calls`: max concurrent calls; 0 for any number."""
        self._places = asyncio.Semaphore(max_calls) if max_calls else nullcontext()
        self._idle: dict[tuple[str, int, bool], dict[_Connection, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._timer:
            self._timer.cancel()
        for connections in self._idle.values():
            for connection in [*connections]:
                connection.close()
        await asyncio.sleep(0)  # which closes their sockets

    async def post(
        self,
        target: Target,
        request: Callable[[], bytes],
        reader: ReplyReader,
    ) -> None:
        """Send one request, and return once its reply has ended or its reader wants no more.

        `request` builds the request when it can leave, so that it takes no memory before or after.
        Raises `TransportError`, `httptools.HttpParserError`, and the errors of `reader`.
        """
        async with self._places:
            connection = self._kept(target) or await self._connected(target)
            try:
                await connection.exchange(request, reader)
            except BaseException:
                connection.close()
                raise
            self._keep(connection, target)

    def _kept(self, target: Target) -> "_Connection | None":
        idle = self._idle.get((target.host, target.port, target.secure), {})
        oldest = asyncio.get_running_loop().time() - IDLE_S
        for connection in reversed(idle):
            if connection.free and connection.since > oldest:
                del idle[connection]
                return connection
        return None

    def _keep(self, connection: "_Connection", target: Target) -> None:
        if not connection.transport.is_closing():
            loop = asyncio.get_running_loop()
            connection.since = loop.time()
            connection.kept = self._idle.setdefault((target.host, target.port, target.secure), {})
            connection.kept[connection] = None
            self._timer = self._timer or loop.call_later(IDLE_S, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_S
        for connections in self._idle.values():
            for connection in [*connections]:
                if connection.since <= oldest:
                    connection.close()
        self._timer = loop.call_later(IDLE_S / 4, self._sweep) if any(self._idle.values()) else None

    async def _connected(self, target: Target) -> "_Connection":
        loop = asyncio.get_running_loop()
        where = f"cannot connect to {target.host}:{target.port}"
        try:
            async with asyncio.timeout(_CONNECT_S):
                sock = await start_connection(
                    await _addresses(target), happy_eyeballs_delay=_NEXT_ADDRESS_S
                )
                _, connection = await loop.create_connection(
                    _Connection,
                    sock=sock,
                    ssl=self._tls if target.secure else None,
                    server_hostname=target.host if target.secure else None,
                )
        except TimeoutError as error:
            raise ConnectError(f"{where} within {_CONNECT_S:g} s") from error
        except ssl.SSLCertVerificationError as error:
            raise CertificateError(f"{where}: {error}") from error
        except OSError as error:
            raise ConnectError(f"{where}: {error}") from error
        return connection

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        return context


async def _addresses(target: Target) -> Sequence[AddrInfoType]:
    """Return the host's addresses, without a lookup if the host is an address."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    return await asyncio.get_running_loop().getaddrinfo(
        target.host, target.port, type=socket.SOCK_STREAM
    )


class _Connection(asyncio.Protocol):
    """Connection for one call at a time.

    The event loop calls `data_received`, the parser calls the methods that begin with `on_`. Bytes
    are first held, then parsed in steps of `_STEP`, one in a turn of the loop, so that a long reply
    does not keep other tasks waiting. Reading is paused until all held bytes are parsed.
    """

    _parser: httptools.HttpResponseParser
    _ended: asyncio.Future[None]

    def __init__(self) -> None:
        self.free = True
        """Whether the reply of the last call has ended."""
        self.since = 0.0
        """Time of the event loop at which the last call was over."""
        self.kept: dict[_Connection, None] = {}
        """The idle connections among which it is kept."""
        self._reader: ReplyReader | None = None
        """None if nobody wants the received bytes."""
        self._patient = False
        self._held: list[bytes] = []
        """Received bytes that are still to be parsed."""
        self._goes_on = False
        """Whether the next step is scheduled."""
        self._pieces: list[bytes] = []
        """Parsed pieces of the body that the reader has not got."""
        self.on_body = self._pieces.append

    async def exchange(self, request: Callable[[], bytes], reader: ReplyReader) -> None:
        """See `ConnectionPool.post`."""
        self.transport.write(request())
        self._reader = reader
        self._run = copy_context().run
        self._parser = httptools.HttpResponseParser(self)
        self._headers = dict[str, str]()
        self._status = 0
        self._bare = 0
        self._begun = False
        self._chunked = False
        self.free = False
        self._ended = asyncio.get_running_loop().create_future()
        try:
            await self._ended
        except asyncio.CancelledError:
            self._parse()  # bytes that were held back count
            raise
        finally:
            self._reader = None
            self._patient = False

    def close(self) -> None:
        """Close immediately; the engine drops the request."""
        self.kept.pop(self, None)
        self._held.clear()
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.kept.pop(self, None)
        self._parse()
        if self._goes_on:
            asyncio.get_running_loop().call_soon(self.connection_lost, error)
        elif self._reader:
            ends_here = self._status and not self._chunked and "content-length" not in self._headers
            message = f"the connection was closed before the end of the reply: {error or 'EOF'}"
            self._end(None if ends_here and error is None else TransportError(message))

    def data_received(self, data: bytes) -> None:
        self._held.append(data)
        # A patient reader waits for more, unless this is much, or may be the end.
        enough = len(self._held) == _MAX_HELD or len(data) >= _MUCH
        if not self._patient or enough or len(data) < len(_END) or data.endswith(_ENDS):
            self._parse()

    def _parse(self) -> None:
        """Parse the next `_STEP` held bytes and pass them on; schedule the rest."""
        if not self._held:
            return
        if self.free:  # bytes that no call asked for
            self.close()
            return

        broken = self._feed()
        if self._reader and (self._pieces or not self._begun):
            try:
                self._run(self._pass_on, self._reader)
            except Exception as error:
                self._end(error)
                self.close()
        self._pieces.clear()

        if self.free:
            self._end()
        elif self._bare > _MAX_HEAD:
            broken = httptools.HttpParserError(f"more than {_MAX_HEAD >> 10} KiB of headers")
        if broken or (self.free and not self._keeps):
            self._end(broken)
            self.close()
        if self._held and not self._goes_on:
            self._goes_on = True
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._parse()
        if not (self._goes_on or self.transport.is_closing()):
            self.transport.resume_reading()

    def _feed(self) -> Exception | None:
        """Feed the parser the next bytes, and return the error if they are no HTTP."""
        data = b"".join(self._held)
        self._held.clear()
        if len(data) > _STEP:
            self._held.append(data[_STEP:])
            data = data[:_STEP]
        self._bare += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return httptools.HttpParserError(f"no HTTP reply: {error}")
        return None

    def _pass_on(self, reader: ReplyReader) -> None:
        """Pass on the head, once it is complete, and the pieces of the body."""
        if self._status and not self._begun:
            self._begun = True
            self._chunked = self._headers.get("transfer-encoding", "").lower().endswith("chunked")
            coding = self._headers.get("content-encoding", "identity")
            if coding != "identity" and self._status < 300:
                raise httptools.HttpParserError(
                    f"a body in the encoding {coding!r}, though none was accepted"
                )
            reader.begun(self._status, self._headers)
        if not self._pieces:
            return
        self._bare = 0
        if reader.received(b"".join(self._pieces)):
            self._end()
            return
        self._patient = self._chunked and reader.patient

    def _end(self, error: Exception | None = None) -> None:
        """End the call, unless it has ended."""
        if self._reader and not self._ended.done():
            if error:
                self._ended.set_exception(error)
            else:
                self._ended.set_result(None)
        self._reader = None
        self._patient = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # later headers are trailers
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if (status := self._parser.get_status_code()) >= 200:
            self._status = status
        else:  # an informational reply; the real head follows
            self._headers.clear()

    def on_message_begin(self) -> None:
        if self.free:
            raise ValueError("more than one reply")

    def on_message_complete(self) -> None:
        self.free = self._status > 0
        self._keeps = self._parser.should_keep_alive()
