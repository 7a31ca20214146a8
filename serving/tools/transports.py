"""Transports to MCP servers for the official SDK, with bounds for what comes: a child's
streams, and HTTP.
"""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from router.background import background_tasks
from serving.engines.process import DYING_WITH_PARENT
from serving.tools.pool import reason

_Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]
_INHERITED = ("PATH", "HOME", "LANG")
_ENDS_WITHIN_S = 2.0
_EDGE = 300
_LAST_WORDS = 4096
"""Bytes that are kept: of both ends of a line that is too long, and of what a server says
beside the protocol.
"""
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*[,}]')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
"""The request that a line answers, where that stands first or last in it, which no text within
can look like.
"""


@asynccontextmanager
async def child_process(
    command: Sequence[str], variables: Mapping[str, str], most_bytes: int, *, ended: asyncio.Event
) -> AsyncIterator[_Streams]:
    """Run a program that speaks over its standard streams, with nothing of the environment but what
    every program needs and `variables`; it ends with the context, with all that it started, or with
    this process. `ended` is set when its output ends. Lines of more than `most_bytes` are passed
    over. Raises `OSError`.
    """
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | {
        **variables
    }
    if (program := shutil.which(command[0], path=environment.get("PATH"))) is None:
        raise FileNotFoundError(f"there is no program {command[0]}")
    process = await asyncio.create_subprocess_exec(
        *DYING_WITH_PARENT,
        program,
        *command[1:],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        limit=most_bytes,
        start_new_session=True,
    )
    stdin = process.stdin
    stdout = process.stdout
    stderr = process.stderr
    assert stdin and stdout and stderr
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    # A server that reads nothing holds nobody
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](inf)
    last = b""

    async def read() -> None:
        with received, suppress(asyncio.IncompleteReadError):
            while True:
                line, whole = await _line(stdout)
                if message := _message(line, whole=whole):
                    # To its end, heard or not
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await received.send(message)
        ended.set()

    async def write() -> None:
        with suppress(OSError, RuntimeError):  # uvloop says so of a pipe that is closed
            async for message in sent:
                stdin.write(
                    message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
                    + b"\n"
                )
                await stdin.drain()

    async def listen() -> None:
        nonlocal last
        while said := await stderr.read(1 << 12):
            last = (last + said)[-_LAST_WORDS:]

    try:
        async with background_tasks(read(), listen()):
            try:
                async with background_tasks(write()):
                    yield incoming, outgoing
            finally:
                for stream in (incoming, outgoing, sent, stdin):
                    stream.close()
                try:
                    await _end(process)
                    if process.returncode is None:  # its supervisor ends it, and waits until it has
                        process.terminate()
                        await _end(process)
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await _end(process)
    except Exception as error:
        line = last.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ConnectionError(f"{reason(error)}; its last words: {line or 'none'}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of a process, but no longer than `_ENDS_WITHIN_S` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await process.wait()


async def _line(stream: asyncio.StreamReader) -> tuple[bytes, bool]:
    """The next line, and that it is whole; or, where it is longer than the limit of the stream,
    its ends.
    """
    ends = b""
    while True:
        try:
            return ends + await stream.readuntil(), not ends
        except asyncio.LimitOverrunError as overrun:
            ends += await stream.readexactly(overrun.consumed)
            ends = ends[:_EDGE] + ends[-_EDGE:]


def _message(line: bytes, *, whole: bool) -> SessionMessage | None:
    """The message of a line; the failure of the request that it answers, where it is broken or was
    too long; None where it answers none that can be told, like what programs print that should not.
    """
    if whole:
        with suppress(ValueError):
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    if (answered := _ID_FIRST.match(line) or _ID_LAST.search(line[-_EDGE:])) is None:
        return None
    said = "sent an answer that is no message of the protocol" if whole else _TOO_MUCH
    error = ErrorData(code=PARSE_ERROR, message=said)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(answered[1]), error=error))


_TOO_MUCH = "answered too much"
_READ_S = {"GET": None, "DELETE": _ENDS_WITHIN_S}
"""Limits other than a call's: for what is told unasked, and for the end of a session."""


def http_client(
    headers: Mapping[str, str], timeout_s: float, most_bytes: int
) -> httpx2.AsyncClient:
    """A client for an MCP server, whose replies have `most_bytes` at most and whose failures
    are replies.
    """
    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=timeout_s,
        trust_env=False,
        transport=_BoundedHTTP(most_bytes),
    )


class _BoundedHTTP(httpx2.AsyncHTTPTransport):
    """A failure of one request that it raised would end the SDK's whole connection, so it is a
    reply with an error.
    """

    def __init__(self, most_bytes: int) -> None:
        super().__init__(trust_env=False, limits=httpx2.Limits(max_connections=None))
        self._most_bytes = most_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The reply, read whole; but for a stream of events, whose length the SDK bounds, one
        by one.
        """
        request.extensions["timeout"]["read"] = _READ_S.get(
            request.method, request.extensions["timeout"]["read"]
        )
        try:
            response = await super().handle_async_request(request)
            # Which may be of any length, inflated
            encoded = "content-encoding" in response.headers
            body = bytearray()
            if (
                response.headers.get("content-type", "").lower().startswith("text/event-stream")
                and not encoded
            ):
                return response
            async for part in response.aiter_raw():
                body += part
                if encoded or len(body) > self._most_bytes:
                    await response.aclose()
                    raise httpx2.ReadError(_TOO_MUCH)
        except httpx2.TransportError as error:
            failure = JSONRPCError(
                jsonrpc="2.0", id=None, error=ErrorData(code=INTERNAL_ERROR, message=reason(error))
            )
            return httpx2.Response(502, json=failure.model_dump(mode="json"))
        return httpx2.Response(response.status_code, headers=response.headers, content=bytes(body))
