"""A small real HTTP server in OpenAI's shape that answers as it is scripted: at once, at a pace, or
wrongly.

`plays(says("hello"))` answers each request with the next of some behaviours.
`plays(writes(script))` asks a function what each request is answered with, and at which pace.
Tokens are words; `GET /metrics` counts them, as vLLM does.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from router.models.openai_wire import REQUEST_ID

MODEL = "tiny"
"""The one model that tests ask for; any other name gets a 404, as vLLM gives it."""

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}

_SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
_TOKENS = web.RequestKey("tokens", dict[str, int])
"""Of the reply to a request."""
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""One answer to one request."""


class OpenAIServer:
    """Plays its behaviours in order, one a request, and the last one for ever; records what it
    sees.
    """

    def __init__(self, base_url: str = "", *, recording: bool = True) -> None:
        """`recording`: keep what was asked, and serve `MODEL` only; without it any model is
        there.
        """
        self.base_url = base_url
        self.recording = recording
        self.tokens = Counter[str]()
        """`prompt` and `generation` tokens of what was answered by `writes`, as far as it was
        written.
        """
        self.bodies: list[dict[str, Any]] = []
        """The JSON of every request."""
        self.headers: list[dict[str, str]] = []
        self.request_ids: list[str | None] = []
        """The `X-Request-Id` of every request."""
        self.connections: set[object] = set()
        """Every connection that brought a request."""
        self.received = asyncio.Event()
        """Set once a request is there."""
        self.context = 32_768
        """Tokens, as the list of models tells it."""
        self.salt = ""
        """Another one makes the embeddings those of another model."""
        self.tokenizes = False
        """True where it counts tokens, as vLLM does; they are words."""
        self.counted: list[dict[str, Any]] = []
        """The JSON of every request to count."""
        self._started_at = time.time()
        self._disconnected = asyncio.Event()
        self._behaviours: list[Behaviour] = [says("hello")]

    def plays(self, *behaviours: Behaviour) -> None:
        """From now on, answer with these."""
        self._behaviours = list(behaviours)

    async def sees_disconnect(self) -> None:
        """Wait until a client has left before its answer was complete; fails where none does."""
        async with asyncio.timeout(10):
            await self._disconnected.wait()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if self.recording:
            self.bodies.append(await request.json())
            self.headers.append(dict(request.headers))
            self.request_ids.append(request.headers.get(REQUEST_ID))
            self.connections.add(request.transport)
            self.received.set()
            if (model := self.bodies[-1]["model"]) != MODEL:
                return await fails(404, f"The model `{model}` does not exist.")(request)
        play = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
        try:
            return await play(request)
        except (asyncio.CancelledError, ConnectionError):
            self._disconnected.set()
            raise
        finally:
            self.tokens.update(request.get(_TOKENS, {}))

    async def models(self, _request: web.Request) -> web.Response:
        """The list of models."""
        return web.json_response(
            {"object": "list", "data": [{"id": MODEL, "max_model_len": self.context}]}
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        """The number of words of a text or a conversation."""
        self.counted.append(body := await request.json())
        if not self.tokenizes:
            raise web.HTTPNotFound
        texts = (
            [message["content"] for message in body["messages"]]
            if "messages" in body
            else [body["prompt"]]
        )
        return web.json_response({"count": sum(len(text.split()) for text in texts)})

    async def embeddings(self, request: web.Request) -> web.Response:
        """A vector of each text's own, of eight dimensions, from its digest."""
        texts = (await request.json())["input"]
        digests = [hashlib.shake_256(f"{self.salt}{text}".encode()).digest(8) for text in texts]
        data = [
            {"index": at, "embedding": [byte - 127.5 for byte in one]}
            for at, one in enumerate(digests)
        ]
        return web.json_response({"object": "list", "data": data})

    async def metrics(self, _request: web.Request) -> web.Response:
        """The tokens of all answers so far, and since when, as vLLM names them."""
        samples: dict[str, float] = {"process_start_time_seconds": self._started_at}
        samples |= {
            f"vllm:{kind}_tokens_total": self.tokens[kind] for kind in ("prompt", "generation")
        }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in samples.items()))


@asynccontextmanager
async def serving(*, recording: bool = True) -> AsyncIterator[OpenAIServer]:
    """A server on a free port of the loopback."""
    app = web.Application(client_max_size=64 << 20)
    server = OpenAIServer(recording=recording)
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_post("/v1/messages", server.answer)  # Anthropic's
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/tokenize", server.tokenize)
    app.router.add_post("/v1/embeddings", server.embeddings)
    app.router.add_get("/metrics", server.metrics)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()


def says(
    *texts: str | None,
    finish_reason: str = "stop",
    stop_reason: str | int | None = None,
    reasoning: dict[str, str] | None = None,
    usage: dict[str, Any] | None = USAGE,
) -> Behaviour:
    """Say `texts`: joined, or one a chunk where a stream is asked for, as vLLM does it.

    `reasoning`: such as `{"reasoning_content": "hm"}`, under the name that the engine gives it.
    """
    end = {"finish_reason": finish_reason, "stop_reason": stop_reason}
    thought = [_chunk({"delta": {**reasoning}})] if reasoning else []
    pieces = [_chunk({"delta": {"content": text}}) for text in texts]
    chunks = [
        _chunk({"delta": {"role": "assistant"}}),
        *thought,
        *pieces,
        _chunk({"delta": {}, **end}),
    ]
    if usage:
        chunks.append({"choices": [], "usage": usage})

    async def play(request: web.Request) -> web.StreamResponse:
        if (await request.json()).get("stream"):
            return await streams(*map(event, chunks), DONE)(request)
        content = None if None in texts else "".join(text for text in texts if text)
        message = {"role": "assistant", "content": content, **(reasoning or {})}
        return web.json_response(
            {**_chunk({"message": message, **end}), **({"usage": usage} if usage else {})}
        )

    return play


class ChatRequest(msgspec.Struct, frozen=True):
    """A request for a completion, as far as a script reads it."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool = False
    request_id: str = ""
    """Of the header: the run's and the call's number."""

    @property
    def texts(self) -> list[str]:
        """The contents of the messages."""
        return [str(message["content"]) for message in self.messages]

    @property
    def run_id(self) -> str:
        """The run that the call is of."""
        return self.request_id.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Reply:
    """Text to write, in tokens."""

    tokens: Sequence[str]
    reasoning: Sequence[str] = ()
    """Tokens before them."""
    first_token_s: float = 0.0
    token_s: Callable[[], float] | None = None
    """Seconds from one token to the next, asked for at each; None writes all at once, in a few
    pieces.
    """
    per_event: int = 1
    """Tokens that are sent together, but for the first one, as with vLLM's `stream_interval`."""

    @classmethod
    def of(cls, text: str) -> "Reply":
        """A text at once, a token a word."""
        return cls([f" {word}" if at else word for at, word in enumerate(text.split(" "))])


def writes(script: Callable[[ChatRequest], Reply]) -> Behaviour:
    """Write what `script` says to each request, streamed with the usage so far where that is
    asked for.
    """

    async def play(request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=ChatRequest)
        reply = script(
            msgspec.structs.replace(asked, request_id=request.headers.get(REQUEST_ID, ""))
        )
        read = sum(len(text.split()) for text in asked.texts)
        wrote = len(reply.reasoning) + len(reply.tokens)
        request[_TOKENS] = counts = {"prompt": read, "generation": wrote}
        if not asked.stream:
            return web.Response(body=whole(reply, read), content_type="application/json")
        *deltas, (_, end) = events(reply, read)
        response = web.StreamResponse(headers=_SSE)
        clock = asyncio.get_running_loop().time
        with suppress(ConnectionResetError):  # who asked has left
            await response.prepare(request)
            due = clock() + reply.first_token_s
            if reply.token_s:
                counts["generation"] = min(wrote, 1)  # what is cut is not written
            else:
                first, *others = [delta for _, delta in deltas] or [b""]
                deltas = [(0, piece) for piece in (first, b"".join(others)) if piece]
            for more, delta in deltas:
                if reply.token_s:
                    due += sum(reply.token_s() for _ in range(more))
                    await asyncio.sleep(due - clock())
                    counts["generation"] += more
                await response.write(delta)
            await response.write(end)
        return response

    return play


def whole(reply: Reply, read: int) -> bytes:
    """The body of a reply that is no stream. `read`: the tokens of the prompt."""
    choice = {
        "message": {"role": "assistant", "content": "".join(reply.tokens)},
        "finish_reason": "stop",
    }
    return msgspec.json.encode(
        {"choices": [choice], "usage": _usage(read, len(reply.reasoning) + len(reply.tokens))}
    )


def events(reply: Reply, read: int) -> Iterator[tuple[int, bytes]]:
    """The events of a stream: the first token, the others a few at a time, and then the end in one;
    each with the tokens to wait for. `read`: the tokens of the prompt.
    """
    wrote = 0
    for name, tokens in (("reasoning", reply.reasoning), ("content", reply.tokens)):
        at = 0
        while at < len(tokens):
            some = tokens[at : at + (reply.per_event if wrote else 1)]
            waits = len(some) if wrote else 0
            at = at + len(some)
            wrote += len(some)
            delta = {name: "".join(some)}
            yield (
                waits,
                event({"choices": [{"index": 0, "delta": delta}], "usage": _usage(read, wrote)}),
            )
    usage = _usage(read, wrote)
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    yield 0, event(end) + event({"choices": [], "usage": usage}) + DONE


def _usage(read: int, wrote: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def streams(
    *pieces: bytes, then: Callable[[web.Request], Awaitable[None]] | None = None
) -> Behaviour:
    """Send an event stream in these pieces, whatever is in them; then end it, or do `then`
    first.
    """

    async def play(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_SSE)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if then is not None:
            await then(request)
        return response

    return play


def replies(
    body: bytes,
    content_type: str = "application/json",
    status: int = 200,
    headers: Mapping[str, str] = {},
) -> Behaviour:
    """Send these bytes."""

    async def play(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type=content_type, status=status, headers=headers)

    return play


def fails(status: int, message: str, retry_after: str | None = None) -> Behaviour:
    """Refuse with an HTTP status and an error in OpenAI's shape."""
    headers = {"Retry-After": retry_after} if retry_after else {}

    async def play(_request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"error": {"message": message, "code": status}}, status=status, headers=headers
        )

    return play


async def hang(request: web.Request) -> web.StreamResponse:
    """Never answer: a black hole, until the client leaves."""
    await asyncio.Event().wait()
    raise AssertionError("only cancelling ends this")


async def hang_on(request: web.Request) -> None:
    """For `streams(…, then=hang_on)`: stay silent until the client leaves."""
    await hang(request)


async def break_off(request: web.Request) -> None:
    """For `streams(…, then=break_off)`: reset the connection in the middle of the body."""
    assert request.transport is not None
    request.transport.abort()


async def reset(request: web.Request) -> web.StreamResponse:
    """Reset the connection instead of answering."""
    await break_off(request)
    return web.Response()


DONE = b"data: [DONE]\n\n"


def event(chunk: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


def text_event(text: str, usage: dict[str, Any] | None = None) -> bytes:
    """One piece of text, with the count so far as vLLM gives it on request."""
    return event({**_chunk({"delta": {"content": text}}), **({"usage": usage} if usage else {})})


def end_event(finish_reason: str = "stop", stop_reason: str | int | None = None) -> bytes:
    """The finish reason."""
    return event(_chunk({"delta": {}, "finish_reason": finish_reason, "stop_reason": stop_reason}))


def _chunk(choice: dict[str, Any]) -> dict[str, Any]:
    kind = "chat.completion.chunk" if "delta" in choice else "chat.completion"
    return {
        "id": "c",
        "object": kind,
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, **choice}],
    }
