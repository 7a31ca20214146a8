"""Three clients for model calls: a usual client with aiohttp, a client that collects bytes in an
asyncio protocol, and a client with LiteLLM's SDK.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import httptools
import msgspec

from benchmarks.pipelines.question import Call, PipelineCompletion
from router.errors import RolegateError
from router.models.litellm_client import load_litellm
from router.models.openai_wire import REQUEST_ID

_TIMEOUT_S = 120.0
_STREAMED = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
_DATA = b"data: "
_DONE = b"data: [DONE]"


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_chunk = msgspec.json.Decoder(_Chunk).decode


def _chunks(events: Iterable[bytes]) -> list[_Chunk]:
    return [
        _chunk(event[len(_DATA) :])
        for event in events
        if event.startswith(_DATA) and event != _DONE
    ]


def _completion(chunks: Iterable[_Chunk]) -> PipelineCompletion:
    texts = list[str]()
    usage = _Usage()
    finish_reason = None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts.append(choice.delta.content or "")
            finish_reason = choice.finish_reason or finish_reason
    return PipelineCompletion(
        "".join(texts), finish_reason, usage.prompt_tokens, usage.completion_tokens
    )


def aiohttp_calls(session: aiohttp.ClientSession, base_url: str) -> Call:
    """Return a client that reads streamed replies with aiohttp. The caller's task wakes for each
    piece of the stream.
    """
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)

    async def call(body: dict[str, Any], name: str) -> PipelineCompletion:
        chunks = list[_Chunk]()
        rest = b""
        async with session.post(
            f"{base_url}/chat/completions",
            data=msgspec.json.encode(body | _STREAMED),
            headers={"Content-Type": "application/json", REQUEST_ID: name},
            timeout=timeout,
            raise_for_status=True,
        ) as response:
            async for received in response.content.iter_any():
                *events, rest = (rest + received).split(b"\n\n")
                chunks += _chunks(events)
        return _completion(chunks)

    return call


class _Connection(asyncio.Protocol):
    """An HTTP connection with one call at a time. The caller's task wakes only once, when the reply
    is complete.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = list[bytes]()
        self._reply: asyncio.Future[bytes] | None = None

    async def send(self, request: bytes) -> bytes:
        """Send a request and return the body of the reply. Raises `RolegateError` if the connection
        breaks, or if the status is not 200.
        """
        loop = asyncio.get_running_loop()
        self._reply = loop.create_future()
        self._body = []
        timer = loop.call_later(_TIMEOUT_S, self.transport.abort)
        self.transport.write(request)
        try:
            return await self._reply
        finally:
            timer.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._reply and not self._reply.done():
            self._reply.set_exception(
                RolegateError("the model's connection broke before the reply ended; run this again")
            )

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        status = self._parser.get_status_code()
        if self._reply and not self._reply.done():
            if status == 200:
                self._reply.set_result(body)
            else:
                self._reply.set_exception(
                    RolegateError(
                        f"a model replied with status {status}: {body!r}; check the base URL"
                    )
                )


class PushCalls:
    """A client that collects the bytes of a streamed reply, and parses the events when the reply is
    complete. Connections are reused.
    """

    def __init__(self, base_url: str) -> None:
        url = urlsplit(base_url)
        self._address = (url.hostname or "", url.port or 80)
        self._idle = list[_Connection]()
        self._head = (
            f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\n"
            "Accept: */*\r\n"
            f"Content-Type: application/json\r\n{REQUEST_ID}: "
        )

    async def __call__(self, body: dict[str, Any], name: str) -> PipelineCompletion:
        """Make a model call. `body`: body of the request. `name`: id of the request. Raises
        `OSError` if the connection cannot be opened, and the errors of `_Connection.send`.
        """
        data = msgspec.json.encode(body | _STREAMED)
        while self._idle and self._idle[-1].transport.is_closing():
            self._idle.pop()
        if self._idle:
            connection = self._idle.pop()
        else:
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, *self._address
            )
        reply = await connection.send(
            f"{self._head}{name}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        self._idle.append(connection)
        return _completion(_chunks(reply.split(b"\n\n")))

    def close(self) -> None:
        """Close all idle connections."""
        for connection in self._idle:
            connection.transport.close()


def litellm_calls(base_url: str) -> Call:
    """Return a client that makes calls with LiteLLM's SDK, without streaming."""
    litellm = load_litellm()

    async def call(body: dict[str, Any], _name: str) -> PipelineCompletion:
        model = f"openai/{body['model']}"
        reply = await litellm.acompletion(
            **body | {"model": model},
            api_base=base_url,
            api_key="none",
            num_retries=0,
        )
        choice = reply.choices[0]
        return PipelineCompletion(
            choice.message.content,
            choice.finish_reason,
            reply.usage.prompt_tokens,
            reply.usage.completion_tokens,
        )

    return call
