"""Two ways to make a streamed call: aiohttp, as most would write it, and bytes pushed into a parser."""

import asyncio
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import httptools
import msgspec

from benchmarks.pipelines.question import Said
from router.errors import RolegateError
from router.models.openai_wire import REQUEST_ID

_TIMEOUT_S = 120.0
_STREAMED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


class AiohttpCalls:
    """Reads streams in a task, which wakes for each piece; one session, whose connections are kept."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session, self._url = session, f"{base_url}/chat/completions"
        self._timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)

    async def __call__(self, body: dict[str, Any], name: str) -> Said:
        """Make a call. Raises `aiohttp.ClientError`."""
        data, said, rest = msgspec.json.encode(body | _STREAMED), Said(), b""
        headers = {"Content-Type": "application/json", REQUEST_ID: name}
        async with self._session.post(
            self._url, data=data, headers=headers, timeout=self._timeout, raise_for_status=True
        ) as response:
            async for received in response.content.iter_any():
                *events, rest = (rest + received).split(b"\n\n")
                for event in events:
                    said.take(event)
        return said


class _Connection(asyncio.Protocol):
    """One connection, one call at a time; the task wakes when the reply is whole."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser, self._body = httptools.HttpResponseParser(self), list[bytes]()
        self._reply: asyncio.Future[bytes] | None = None
        self._kept = True

    async def send(self, request: bytes) -> bytes:
        """The body of the reply. Raises `RolegateError`."""
        loop = asyncio.get_running_loop()
        self._reply, self._body = loop.create_future(), []
        timer = loop.call_later(_TIMEOUT_S, self.transport.abort)
        self.transport.write(request)
        try:
            return await self._reply
        finally:
            timer.cancel()

    @property
    def reusable(self) -> bool:
        """Whether another call may be made on it."""
        return self._kept and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._end(RolegateError("the connection broke"))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        status, self._kept = self._parser.get_status_code(), self._parser.should_keep_alive()
        self._end(None if status == 200 else RolegateError(f"HTTP {status}: {b''.join(self._body)!r}"))

    def _end(self, error: Exception | None) -> None:
        if self._reply and not self._reply.done():
            if error:
                self._reply.set_exception(error)
            else:
                self._reply.set_result(b"".join(self._body))


class PushCalls:
    """Keeps connections, and reads a stream's events once all are there."""

    def __init__(self, base_url: str) -> None:
        where = urlsplit(base_url)
        self._host, self._port = where.hostname or "", where.port or 80
        self._idle: list[_Connection] = []
        self._head = (
            f"POST {where.path}/chat/completions HTTP/1.1\r\nHost: {where.netloc}\r\nAccept: */*\r\n"
            f"Content-Type: application/json\r\n{REQUEST_ID}: "
        )

    async def __call__(self, body: dict[str, Any], name: str) -> Said:
        """Make a call. Raises `RolegateError` and `OSError`."""
        data = msgspec.json.encode(body | _STREAMED)
        connection = await self._connection()
        reply = await connection.send(f"{self._head}{name}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.transport.close()
        said = Said()
        for event in reply.split(b"\n\n"):
            said.take(event)
        return said

    async def _connection(self) -> _Connection:
        while self._idle:
            if (idle := self._idle.pop()).reusable:
                return idle
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(_Connection, self._host, self._port))[1]

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.transport.close()
