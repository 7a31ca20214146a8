"""A small HTTP server with OpenAI's API and scripted answers: immediate, paced, or faulty.

`plays(says("hello"))` answers requests with a list of behaviours, one after the other.
`plays(writes(script))` calls a function for the text and pace of each answer.
Tokens are words; `GET /metrics` counts them, as vLLM does.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from router.models.openai_wire import REQUEST_ID

MODEL = "tiny"
"""The only model; any other name gets a 404, as from vLLM."""

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}

_SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
_TOKENS = web.RequestKey("tokens", dict[str, int])
"""Tokens of the reply to a request."""
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Handler of one request."""


class OpenAIServer:
    """Server that plays behaviours in order, one per request, and then repeats the last one."""

    def __init__(self, base_url: str = "", *, recording: bool = True) -> None:
        """`recording`: record requests, and serve `MODEL` only; otherwise any model is served."""
        self.base_url = base_url
        self.recording = recording
        self.tokens = Counter[str]()
        """`prompt` and `generation` tokens that `writes` has read and written."""
        self.bodies: list[dict[str, Any]] = []
        """JSON bodies of all requests."""
        self.headers: list[dict[str, str]] = []
        self.request_ids: list[str | None] = []
        """`X-Request-Id` of all requests."""
        self.connections: set[object] = set()
        """All connections that brought a request."""
        self.received = asyncio.Event()
        """Set once a request has arrived."""
        self.context = 32_768
        """Context length in the list of models, in tokens."""
        self.salt = ""
        """A part of each embedded text; another salt gives the embeddings of another model."""
        self.tokenizes = False
        """Whether it counts tokens, as vLLM does; they are words."""
        self.counted: list[dict[str, Any]] = []
        """JSON bodies of all requests to count tokens."""
        self._started_at = time.time()
        self._disconnected = asyncio.Event()
        self._behaviours: list[Behaviour] = [says("hello")]

    def plays(self, *behaviours: Behaviour) -> None:
        """Answer further requests with these behaviours."""
        self._behaviours = list(behaviours)

    async def sees_disconnect(self) -> None:
        """Wait until a client leaves before its answer is complete; fail after 10 seconds."""
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
        """Return the list of models."""
        return web.json_response(
            {"object": "list", "data": [{"id": MODEL, "max_model_len": self.context}]}
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        """Return the number of words in a text or a conversation."""
        self.counted.append(body := await request.json())
        if not self.tokenizes:
            raise web.HTTPNotFound
        messages = body.get("messages", ())
        texts = [body.get("prompt", ""), *(message["content"] for message in messages)]
        return web.json_response({"count": sum(len(text.split()) for text in texts)})

    async def embeddings(self, request: web.Request) -> web.Response:
        """Return a vector of eight dimensions for each text, from its digest."""
        texts = (await request.json())["input"]
        digests = [hashlib.shake_256(f"{self.salt}{text}".encode()).digest(8) for text in texts]
        data = [
            {"index": at, "embedding": [byte - 127.5 for byte in digest]}
            for at, digest in enumerate(digests)
        ]
        return web.json_response({"object": "list", "data": data})

    async def metrics(self, _request: web.Request) -> web.Response:
        """Return the tokens of all answers so far and the start time, under vLLM's names."""
        samples: dict[str, float] = {"process_start_time_seconds": self._started_at}
        samples |= {
            f"vllm:{kind}_tokens_total": self.tokens[kind] for kind in ("prompt", "generation")
        }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in samples.items()))


@asynccontextmanager
async def served(*routes: web.RouteDef) -> AsyncIterator[str]:
    """Serve these routes on a free port of the loopback, and yield the base URL."""
    app = web.Application(client_max_size=64 << 20)
    app.add_routes(routes)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(*, recording: bool = True) -> AsyncIterator[OpenAIServer]:
    """Run a server on a free port of the loopback."""
    server = OpenAIServer(recording=recording)
    routes = (
        web.post("/v1/chat/completions", server.answer),
        web.post("/v1/messages", server.answer),  # Anthropic's
        web.get("/v1/models", server.models),
        web.post("/tokenize", server.tokenize),
        web.post("/v1/embeddings", server.embeddings),
        web.get("/metrics", server.metrics),
    )
    async with served(*routes) as server.base_url:
        yield server


def says(
    *texts: str | None,
    finish_reason: str = "stop",
    stop_reason: str | int | None = None,
    reasoning: dict[str, str] | None = None,
    usage: dict[str, Any] | None = USAGE,
) -> Behaviour:
    """Answer with `texts`: joined, or one per chunk of a stream, as vLLM does.

    `reasoning`: under the engine's name for it, such as `{"reasoning_content": "hm"}`.
    """
    end = {"finish_reason": finish_reason, "stop_reason": stop_reason}
    deltas: list[Mapping[str, str | None]] = [{"role": "assistant"}]
    if reasoning:
        deltas.append(reasoning)
    deltas += [{"content": text} for text in texts]
    chunks = [*(_chunk({"delta": delta}) for delta in deltas), _chunk({"delta": {}, **end})]
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
    """Fields of a completion request that scripts read."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool = False
    request_id: str = ""
    """`X-Request-Id`: the run's id and the call's number."""

    @property
    def texts(self) -> list[str]:
        """Contents of the messages."""
        return [str(message["content"]) for message in self.messages]

    @property
    def run_id(self) -> str:
        """Id of the call's run."""
        return self.request_id.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Reply:
    """Text to write, in tokens."""

    tokens: Sequence[str]
    first_token_s: float = 0.0
    token_s: Callable[[], float] | None = None
    """Called for the seconds before each further token; None writes all immediately, in a few
    pieces.
    """

    @classmethod
    def of(cls, text: str) -> "Reply":
        """Return a text to write immediately, one token per word."""
        return cls([f" {word}" if at else word for at, word in enumerate(text.split(" "))])


def writes(script: Callable[[ChatRequest], Reply]) -> Behaviour:
    """Answer with `script`, called for each request; streams report the usage so far."""

    async def play(request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=ChatRequest)
        reply = script(
            msgspec.structs.replace(asked, request_id=request.headers.get(REQUEST_ID, ""))
        )
        read = sum(len(text.split()) for text in asked.texts)
        wrote = len(reply.tokens)
        request[_TOKENS] = counts = {"prompt": read, "generation": wrote}
        if not asked.stream:
            return web.Response(body=complete_reply(reply, read), content_type="application/json")
        *deltas, end = events(reply, read)
        if reply.token_s is None:
            deltas = [piece for piece in (b"".join(deltas[:1]), b"".join(deltas[1:])) if piece]
        else:
            counts["generation"] = min(wrote, 1)  # what is cut is not written
        response = web.StreamResponse(headers=_SSE)
        clock = asyncio.get_running_loop().time
        with suppress(ConnectionResetError):  # the client has left
            await response.prepare(request)
            due = clock() + reply.first_token_s
            for number, delta in enumerate(deltas, 1):
                if reply.token_s:
                    await asyncio.sleep(due - clock())
                    counts["generation"] = number
                    due += reply.token_s()
                await response.write(delta)
            await response.write(end)
        return response

    return play


def complete_reply(reply: Reply, read: int) -> bytes:
    """Return the body of a whole reply. `read`: tokens of the prompt."""
    message = {"role": "assistant", "content": "".join(reply.tokens)}
    choice = {"message": message, "finish_reason": "stop"}
    return msgspec.json.encode({"choices": [choice], "usage": _usage(read, len(reply.tokens))})


def events(reply: Reply, read: int) -> list[bytes]:
    """Return the events of a stream: one for each token, and the end. `read`: tokens of the
    prompt.
    """
    deltas = [
        event(
            {
                "choices": [{"index": 0, "delta": {"content": token}}],
                "usage": _usage(read, wrote),
            }
        )
        for wrote, token in enumerate(reply.tokens, 1)
    ]
    usage = _usage(read, len(reply.tokens))
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    return [*deltas, event(end) + event({"choices": [], "usage": usage}) + DONE]


def _usage(read: int, wrote: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def streams(
    *pieces: bytes, then: Callable[[web.Request], Awaitable[object]] | None = None
) -> Behaviour:
    """Send these pieces of an event stream, await `then` if it is given, and end the stream."""

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
        return web.Response(
            body=body,
            content_type=content_type,
            status=status,
            headers=headers,
        )

    return play


def fails(
    status: int,
    message: str,
    retry_after: str | None = None,
) -> Behaviour:
    """Refuse with an HTTP status and an error in OpenAI's shape."""
    headers = {"Retry-After": retry_after} if retry_after else {}

    async def play(_request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"error": {"message": message, "code": status}}, status=status, headers=headers
        )

    return play


async def hang(_request: web.Request) -> web.StreamResponse:
    """Never answer, until the client leaves. In `streams(…, then=hang)`: stay silent."""
    await asyncio.Event().wait()
    raise AssertionError("only cancelling ends this")


async def reset(request: web.Request) -> web.StreamResponse:
    """Reset the connection instead of answering. In `streams(…, then=reset)`: reset it in the
    middle of the body.
    """
    if request.transport is not None:  # None once the client has left
        request.transport.abort()
    return web.Response()


DONE = b"data: [DONE]\n\n"


def event(chunk: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


def text_event(text: str, usage: dict[str, Any] | None = None) -> bytes:
    """Return the event of a piece of text, with the usage so far if it is given."""
    chunk = _chunk({"delta": {"content": text}})
    return event({**chunk, "usage": usage} if usage else chunk)


def end_event(finish_reason: str = "stop", stop_reason: str | int | None = None) -> bytes:
    """Return the event of the finish reason."""
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
