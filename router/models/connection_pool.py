"""HTTP/1.1 to models' endpoints: what arrives is pushed to a reader at once, and the caller
wakes at the end.
"""

import asyncio
import socket
import ssl
import zlib
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
"""vLLM's server closes connections after 5 idle seconds; a call that is sent at that moment is
lost.
"""
_CONNECT_S = 5.0
_NEXT_ADDRESS_S = 0.25
_MOST_HEAD = 64 << 10
_STEP = 16 << 10
"""Bytes that may come without any of a body, and bytes of a reply that are read in one turn of
the event loop.
"""
_DEFLATED = 32 + zlib.MAX_WBITS
"""Either of zlib's formats."""
_MOST_HELD = 32
_MUCH = 2 << 10
_END = b"\r\n\r\n"
_ENDS = _END, b"[DONE]\n\n\r\n"
"""What the last piece of a body in chunks ends with, and the last event of one."""


class TransportError(OSError):
    """There is no connection, or it broke."""


class ConnectError(TransportError):
    """The endpoint was not reached, so that nothing was sent."""


class CertificateError(ConnectError):
    """Its certificate is not to be trusted."""


class Reader(Protocol):
    """Gets one reply as it arrives. What it raises ends the call, and closes the connection."""

    @property
    def patient(self) -> bool:
        """Whether a few pieces may be held back, to come at once: a task that wakes costs more
        than what it reads.
        """

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head; the headers' names are in lower case."""

    def received(self, data: bytes) -> bool:
        """Take a piece of the body, inflated; True where nothing that follows is wanted."""


class Target:
    """A URL that is posted to, with headers that are the same for every call."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Raises `aiohttp.InvalidURL`. A user and a password in it are sent."""
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
        lines += [f"{name}: {' '.join(value.split())}" for name, value in headers.items()]
        self._head = "\r\n".join((*lines, "Content-Length: ")).encode()

    def request(self, body: bytes, more: str = "") -> bytes:
        """The whole request. `more`: further lines of its head, each with its end."""
        return b"%b%d\r\n%b\r\n%b" % (self._head, len(body), more.encode(), body)


class ConnectionPool:
    """Connections to any number of endpoints, kept for further calls, but not for longer than
    the other side does.
    """

    def __init__(self, most: int = 0) -> None:
        """`most`: calls that are under way at a time; 0 for any number."""
        self._places = asyncio.Semaphore(most) if most else nullcontext()
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

    async def post(self, target: Target, request: Callable[[], bytes], reader: Reader) -> None:
        """Send one request, and return once its reply has ended, or once its reader wants no more.
        `request`: makes it when it can leave, so that it is kept neither before nor afterwards.

        Raises `TransportError`, `httptools.HttpParserError`, and whatever `reader` raises.
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
        kept = self._idle.get((target.host, target.port, target.secure), {})
        oldest = asyncio.get_running_loop().time() - IDLE_S
        for connection in reversed(kept):
            if connection.free and connection.since > oldest:
                del kept[connection]
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
            for connection in [one for one in connections if one.since <= oldest]:
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
                tls, name = (self._tls, target.host) if target.secure else (None, None)
                _, connection = await loop.create_connection(
                    _Connection, sock=sock, ssl=tls, server_hostname=name
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
    """What the host's name stands for; an address is looked up nowhere."""
    with suppress(socket.gaierror):
        return socket.getaddrinfo(
            target.host, target.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
    return await asyncio.get_running_loop().getaddrinfo(
        target.host, target.port, type=socket.SOCK_STREAM
    )


class _Connection(asyncio.Protocol):
    """One call at a time. Its methods are called by the event loop, and those with `on_` by the
    parser.
    """

    _parser: httptools.HttpResponseParser
    _ended: asyncio.Future[None]

    def __init__(self) -> None:
        self.free = True
        self.since = 0.0
        """Whether the reply of the last call has come to its end; when that call was over, in
        the loop's time.
        """
        self.kept: dict[_Connection, None] = {}
        """Those among which it is kept."""
        self._reader: Reader | None = None
        """None where nobody wants what comes."""
        self._patient = False
        self._held: list[bytes] = []
        self._deflated = b""
        """Received bytes of a compressed body that are still to be inflated."""
        self._goes_on = False
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append

    async def exchange(self, request: Callable[[], bytes], reader: Reader) -> None:
        """See `ConnectionPool.post`."""
        self.transport.write(request())
        self._reader = reader
        self._run = copy_context().run
        self._parser = httptools.HttpResponseParser(self)
        self._headers = dict[str, str]()
        self._status = self._bare = 0
        self._begun = self._chunked = self.free = False
        self._ended = asyncio.get_running_loop().create_future()
        try:
            await self._ended
        except asyncio.CancelledError:
            self._parse()  # what was held back counts
            raise
        finally:
            self._reader = None
            self._patient = False

    def close(self) -> None:
        """Leave at once, upon which the engine drops what it was asked."""
        self.kept.pop(self, None)
        self._held.clear()
        self._deflated = b""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.kept.pop(self, None)
        self._parse()
        if self._goes_on:
            asyncio.get_running_loop().call_soon(self.connection_lost, error)
        elif self._reader:
            by_close = self._status and not self._chunked and "content-length" not in self._headers
            said = f"the connection was closed before the end of the reply: {error or 'EOF'}"
            self._end(None if by_close and error is None else TransportError(said))

    def data_received(self, data: bytes) -> None:
        self._held.append(data)
        # A patient reader waits for more, unless this is much, or may be the end.
        enough = len(self._held) == _MOST_HELD or len(data) >= _MUCH
        if not self._patient or enough or len(data) < len(_END) or data.endswith(_ENDS):
            self._parse()

    def _parse(self) -> None:
        """Hand on the next `_STEP` bytes of what has come; later turns of the loop go on with
        the rest.
        """
        if not (self._held or self._deflated):
            return
        if self.free and not self._deflated:  # nobody has asked for anything
            self.close()
            return
        broken = None if self._deflated else self._feed()
        if self._reader and (self._pieces or self._deflated or not self._begun):
            try:
                self._run(self._pass_on, self._reader)
            except Exception as error:
                self._end(error)
                self.close()
        self._pieces.clear()
        if self._reader is None:
            self._deflated = b""
        whole = self.free and not self._deflated
        if whole:
            self._end()
        elif self._bare > _MOST_HEAD:
            broken = httptools.HttpParserError(f"more than {_MOST_HEAD >> 10} KiB of headers")
        if broken or (whole and not self._keeps):
            self._end(broken)
            self.close()
        if (self._held or self._deflated) and not self._goes_on:
            self._goes_on = True
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._parse()
        if not (self._goes_on or self.transport.is_closing()):
            self.transport.resume_reading()

    def _feed(self) -> Exception | None:
        """Feed the parser the next bytes, and return what is wrong with them."""
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

    def _pass_on(self, reader: Reader) -> None:
        if self._status and not self._begun:
            self._begun = True
            self._chunked = self._headers.get("transfer-encoding", "").lower().endswith("chunked")
            coding = self._headers.get("content-encoding", "identity")
            self._inflates = (
                zlib.decompressobj(_DEFLATED) if coding in ("gzip", "x-gzip", "deflate") else None
            )
            if self._inflates is None and coding != "identity":
                raise httptools.HttpParserError(f"a body in the encoding {coding!r}")
            reader.begun(self._status, self._headers)
        data = self._deflated + b"".join(self._pieces)
        if not data:
            return
        self._bare = 0
        if self._inflates:
            try:
                piece = self._inflates.decompress(data, _STEP)
            except zlib.error as error:
                raise httptools.HttpParserError(f"no body of its encoding: {error}") from error
            self._deflated = self._inflates.unconsumed_tail
            data = piece
        if reader.received(data):
            self._end()
            return
        self._patient = self._chunked and reader.patient

    def _end(self, error: Exception | None = None) -> None:
        if self._reader and not self._ended.done():
            if error:
                self._ended.set_exception(error)
            else:
                self._ended.set_result(None)
        self._reader = None
        self._patient = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._status:  # others follow a body
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if (status := self._parser.get_status_code()) >= 200:
            self._status = status
        else:  # another head follows
            self._headers.clear()

    def on_message_begin(self) -> None:
        if self.free:
            raise ValueError("more than one reply")

    def on_message_complete(self) -> None:
        self.free, self._keeps = self._status > 0, self._parser.should_keep_alive()
