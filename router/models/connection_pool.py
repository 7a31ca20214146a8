"""HTTP/1.1 client for model endpoints. The event loop passes received bytes directly to a reader,
without switching to the calling task. The task is resumed only once, when the reply has ended.
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

from router.background import loop_time

IDLE_S = 4.0
"""Seconds after which an idle connection is closed. vLLM's server closes it after 5 seconds, and a
call that is sent at that moment would be lost.
"""
_CONNECT_S = 5.0
_NEXT_ADDRESS_S = 0.25
"""Seconds after which the next IP address of a host is tried in parallel (Happy Eyeballs)."""
_MAX_HEAD = 64 << 10
"""Max bytes that may arrive without any byte of the body. This limits the size of the headers."""
_STEP = 16 << 10
"""Max bytes of a reply that are parsed in one iteration of the event loop."""
_MAX_HELD = 32
"""Max received pieces that are held back if the reader accepts a delay (`ReplyReader.patient`)."""
_MUCH = 2 << 10
"""Pieces of at least this many bytes are never held back."""
_END = b"\r\n\r\n"
_ENDS = _END, b"[DONE]\n\n\r\n"
"""Byte strings at the end of the last piece of a chunked body, and of the last event of a stream.
A piece that ends with one of them is never held back.
"""


class TransportError(OSError):
    """Raised when a connection cannot be opened or breaks."""


class ConnectError(TransportError):
    """Raised when the endpoint was not reached, so that nothing was sent."""


class CertificateError(ConnectError):
    """Raised when the endpoint's certificate is not trusted."""


class ReplyReader(Protocol):
    """Receiver of one reply. It gets the reply in pieces, as they arrive. An error that one of the
    receiver's methods raises ends the call and closes the connection.
    """

    @property
    def patient(self) -> bool:
        """Whether the reader accepts a short delay of the body. If so, the connection may pass
        several pieces on in one call, to save CPU time.
        """

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive the status and the headers. The headers' names are in lower case."""

    def received(self, data: bytes) -> bool:
        """Receive a piece of the body. Return True to stop reading the reply."""


class Target:
    """URL to which requests are posted, and the headers of all these requests."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """A user and password in `url` are sent as basic authentication. Raises
        `aiohttp.InvalidURL` if `url` is not an HTTP or HTTPS address.
        """
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
        """Return the bytes of a whole request. `more`: further header lines, each of which ends
        with CRLF.
        """
        return b"%b%d\r\n%b\r\n%b" % (self._head, len(body), more.encode(), body)


class ConnectionPool:
    """Pool of connections to any number of endpoints. A connection is reused until it has been idle
    for `IDLE_S` seconds.
    """

    def __init__(self, max_calls: int = 0) -> None:
        """`max_calls`: max concurrent calls to all endpoints together; 0 for no limit."""
        self._places = asyncio.Semaphore(max_calls) if max_calls else nullcontext()
        self._idle = dict[tuple[str, int, bool], dict[_Connection, None]]()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._timer:
            self._timer.cancel()
        for connections in self._idle.values():
            for connection in [*connections]:
                connection.close()
        await asyncio.sleep(0)  # lets the event loop close their sockets

    async def post(
        self,
        target: Target,
        request: Callable[[], bytes],
        reader: ReplyReader,
    ) -> None:
        """Send one request, pass its reply to `reader`, and return once the reply has ended or the
        reader has asked to stop.

        `request`: builds the bytes of the request. It is called only when the request can be sent,
        so that calls that wait for a connection do not hold their requests in memory. Raises
        `TransportError`, `httptools.HttpParserError`, and the errors of `reader`.
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
        oldest = loop_time() - IDLE_S
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
    """Return the host's IP addresses. If the host is an IP address itself, there is no lookup."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    return await asyncio.get_running_loop().getaddrinfo(
        target.host, target.port, type=socket.SOCK_STREAM
    )


class _Connection(asyncio.Protocol):
    """Connection for one call at a time.

    The event loop calls `data_received`, and the parser calls the methods that begin with `on_`.
    Received bytes are first held, then parsed in steps of `_STEP` bytes. The event loop runs other
    tasks between two steps, so that a long reply does not delay them. Reading from the socket is
    paused until all held bytes are parsed.
    """

    _parser: httptools.HttpResponseParser
    _ended: asyncio.Future[None]

    def __init__(self) -> None:
        self.free = True
        """Whether the reply of the last call has ended completely."""
        self.since = 0.0
        """Time at which the last call ended, by the event loop's clock."""
        self.kept = dict[_Connection, None]()
        """The pool's idle connections to the same host. They include this connection while it is
        idle.
        """
        self._reader: ReplyReader | None = None
        """Receiver of the current reply; None if no call is waiting for a reply."""
        self._patient = False
        self._held = list[bytes]()
        """Received bytes that are not parsed yet."""
        self._goes_on = False
        """Whether the next step of parsing is scheduled."""
        self._pieces = list[bytes]()
        """Parsed pieces of the body that the reader has not received yet."""
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
        self._ended = asyncio.Future()
        try:
            await self._ended
        except asyncio.CancelledError:
            self._parse()  # pass on the bytes that were held back
            raise
        finally:
            self._reader = None
            self._patient = False

    def close(self) -> None:
        """Close the connection immediately, which makes the engine drop the request."""
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
            message = f"the connection was closed before the reply ended ({error or 'EOF'})"
            self._end(None if ends_here and error is None else TransportError(message))

    def data_received(self, data: bytes) -> None:
        self._held.append(data)
        # If the reader accepts a delay, wait for more bytes, unless this piece is large or may be
        # the last.
        enough = len(self._held) == _MAX_HELD or len(data) >= _MUCH
        if not self._patient or enough or len(data) < len(_END) or data.endswith(_ENDS):
            self._parse()

    def _parse(self) -> None:
        """Parse at most `_STEP` of the held bytes, and pass the result to the reader. If bytes are
        left, schedule another step.
        """
        if not self._held:
            return
        if self.free:  # the server sent bytes although no call is waiting
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
            broken = httptools.HttpParserError(
                f"the reply has more than {_MAX_HEAD >> 10} KiB of headers; check base_url"
            )
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
        """Feed the next held bytes to the parser. Return an error if they are not valid HTTP."""
        data = b"".join(self._held)
        self._held.clear()
        if len(data) > _STEP:
            self._held.append(data[_STEP:])
            data = data[:_STEP]
        self._bare += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return httptools.HttpParserError(
                f"the reply is not valid HTTP; check base_url: {error}"
            )
        return None

    def _pass_on(self, reader: ReplyReader) -> None:
        """Pass the status and headers to the reader once they are complete, and then the parsed
        pieces of the body.
        """
        if self._status and not self._begun:
            self._begun = True
            self._chunked = self._headers.get("transfer-encoding", "").lower().endswith("chunked")
            coding = self._headers.get("content-encoding", "identity")
            if coding != "identity" and self._status < 300:
                raise httptools.HttpParserError(
                    f"the reply has the encoding {coding!r}; turn compression off at the endpoint"
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
        """End the current call, with `error` if there is one. Do nothing if the call has ended."""
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
            raise ValueError("the server sent more than one reply")

    def on_message_complete(self) -> None:
        self.free = self._status > 0
        self._keeps = self._parser.should_keep_alive()
