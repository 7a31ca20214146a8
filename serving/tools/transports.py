"""Transports to MCP servers for the official SDK: the standard input and output of a child process,
and HTTP. Both limit the size of messages.
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

from router.background import at_most, background_tasks
from serving.engines.process import DYING_WITH_PARENT
from serving.tools.failures import reason

_Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception],
    MemoryObjectSendStream[SessionMessage],
]
_INHERITED = ("PATH", "HOME", "LANG")
_ENDS_WITHIN_S = 2.0
_EDGE_BYTES = 300
"""If a line is too long, this number of bytes is kept from its beginning, and from its end."""
_STDERR_BYTES = 4096
"""This number of bytes is kept from the end of a program's standard error."""
_TOO_LARGE = "the answer is compressed (turn that off), or longer than `max_chars` (ask for less)"
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*[,}]')
_ID_LAST = re.compile(rb',\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
"""Patterns for the field `id` in a line of JSON, if `id` is the first or the last field. The id
identifies the request that the line answers. Text inside a JSON string cannot match.
"""


@asynccontextmanager
async def child_process(
    command: Sequence[str],
    variables: Mapping[str, str],
    max_bytes: int,
    *,
    ended: asyncio.Event,
) -> AsyncIterator[_Streams]:
    """Run a program that speaks MCP over its standard input and output, while the context is open.
    Yield two streams for the SDK: one of received messages, and one of messages to send.

    The program gets the environment variables `variables`, and those in `_INHERITED`. The program
    and its child processes end when the context is left, or when this process ends. `max_bytes`:
    max length of a line of output. A longer line is skipped, and the request that the line answers
    fails. `ended`: set when the program's output ends. Raises `OSError` if the program cannot be
    started or fails.
    """
    process = await _spawn(command, variables, max_bytes)
    stdin = process.stdin
    stdout = process.stdout
    stderr = process.stderr
    assert stdin and stdout and stderr
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    # Unbounded, so that a server that does not read its input does not block callers
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](inf)
    stderr_end = b""

    async def read() -> None:
        with received, suppress(asyncio.IncompleteReadError):
            while True:
                line, complete = await _line(stdout)
                if message := _message(line, complete=complete):
                    # Read the output to its end even if the client has stopped reading
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await received.send(message)
        ended.set()

    async def write() -> None:
        with suppress(OSError, RuntimeError):  # uvloop's RuntimeError means a closed pipe
            async for message in sent:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(line.encode() + b"\n")
                await stdin.drain()

    async def read_stderr() -> None:
        nonlocal stderr_end
        while chunk := await stderr.read(1 << 12):
            stderr_end = (stderr_end + chunk)[-_STDERR_BYTES:]

    try:
        async with background_tasks(read(), read_stderr()):
            try:
                async with background_tasks(write()):
                    yield incoming, outgoing
            finally:
                for stream in (incoming, outgoing, sent, stdin):
                    stream.close()
                await _stop(process)
    except Exception as error:
        last_line = stderr_end.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ConnectionError(
            f"{reason(error)}; the server's last line of standard error: {last_line or 'none'}"
        ) from error


async def _spawn(
    command: Sequence[str], variables: Mapping[str, str], max_line_bytes: int
) -> asyncio.subprocess.Process:
    """Start a command in a new process session (`setsid`). The program is looked up in the PATH
    that the program itself gets. Raises `OSError`, such as `FileNotFoundError` if there is no such
    program.
    """
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    environment = {**inherited, **variables}
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise FileNotFoundError(f"there is no program {command[0]} in the PATH; correct `command`")

    return await asyncio.create_subprocess_exec(
        *DYING_WITH_PARENT,
        program,
        *command[1:],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        limit=max_line_bytes,
        start_new_session=True,
    )


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a process whose standard input has been closed. Give it two seconds to end by itself.
    Then terminate it, and after two more seconds kill its process group.
    """
    try:
        await _wait(process)
        if process.returncode is None:  # the supervisor passes SIGTERM on to its children
            process.terminate()
            await _wait(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await _wait(process)


async def _wait(process: asyncio.subprocess.Process) -> None:
    """Wait at most `_ENDS_WITHIN_S` seconds until a process has ended."""
    async with at_most(_ENDS_WITHIN_S):
        await process.wait()


async def _line(stream: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return the next line and True. If the line is longer than the stream's limit, return only the
    line's beginning and end, joined, and False.
    """
    ends = b""
    while True:
        try:
            return ends + await stream.readuntil(), not ends
        except asyncio.LimitOverrunError as overrun:
            ends += await stream.readexactly(overrun.consumed)
            ends = ends[:_EDGE_BYTES] + ends[-_EDGE_BYTES:]


def _message(line: bytes, *, complete: bool) -> SessionMessage | None:
    """Return the message in a line of output. If the line is not a valid message or not `complete`,
    return an error that answers the same request. Return None if the line does not identify a
    request, for example because the output is not MCP at all.
    """
    if complete:
        with suppress(ValueError):
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    if (answered := _ID_FIRST.match(line) or _ID_LAST.search(line[-_EDGE_BYTES:])) is None:
        return None

    message = "the answer is no valid MCP message; update the server" if complete else _TOO_LARGE
    return SessionMessage(
        JSONRPCError(
            jsonrpc="2.0",
            id=int(answered[1]),
            error=ErrorData(code=PARSE_ERROR, message=message),
        )
    )


_READ_S = {"GET": None, "DELETE": _ENDS_WITHIN_S}
"""Read timeouts in seconds by HTTP method; other methods have the timeout of a tool call. A GET has
no timeout, because it waits for events that the server sends at any time. A DELETE ends the
session.
"""


def http_client(headers: Mapping[str, str], timeout_s: float, max_bytes: int) -> httpx2.AsyncClient:
    """Return an HTTP client for the SDK. It refuses responses of more than `max_bytes` bytes. If a
    request fails, the client raises no exception, but returns a response with the error.
    `timeout_s`: timeout of each request, in seconds.
    """
    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        timeout=timeout_s,
        trust_env=False,
        transport=_BoundedHTTP(max_bytes),
    )


class _BoundedHTTP(httpx2.AsyncHTTPTransport):
    """An HTTP transport that limits the size of responses. If a request fails, the transport
    returns a response with a JSON-RPC error, because the SDK would end the connection after an
    exception.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(trust_env=False, limits=httpx2.Limits(max_connections=None))
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return its response. The response is read to the end, unless it is an
        event stream: the SDK itself limits the size of events.

        A compressed response is refused, because it may expand to any size.
        """
        timeout = request.extensions["timeout"]
        timeout["read"] = _READ_S.get(request.method, timeout["read"])
        try:
            response = await super().handle_async_request(request)
            encoded = "content-encoding" in response.headers
            content_type = response.headers.get("content-type", "").lower()
            if content_type.startswith("text/event-stream") and not encoded:
                return response

            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if encoded or len(body) > self._max_bytes:
                    await response.aclose()
                    raise httpx2.ReadError(_TOO_LARGE)
        except httpx2.TransportError as error:
            failure = JSONRPCError(
                jsonrpc="2.0",
                id=None,
                error=ErrorData(code=INTERNAL_ERROR, message=reason(error)),
            )
            return httpx2.Response(502, json=failure.model_dump(mode="json"))
        return httpx2.Response(response.status_code, headers=response.headers, content=bytes(body))
