"""A small HTTP server with OpenAI's API, for tests. Its answers are scripted, and may be immediate,
paced, or faulty.

A behaviour is a handler of one request. `server.plays(says("hello"), fails(503, "busy"))` sets the
behaviours of the next requests, one per request. `server.plays(writes(script))` calls the function
`script` for the text and pace of each answer. Each word counts as one token, and `GET /metrics`
reports the tokens under vLLM's names.
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
"""Name of the only model. A request for any other model gets status 404, as from vLLM."""

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}

_SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
_TOKENS = web.RequestKey("tokens", dict[str, int])
"""Key under which a request keeps the token counts of its reply."""
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Handler of one request."""


class OpenAIServer:
    """State of the server: its behaviours, and the requests that it has recorded. Behaviours are
    used in order, one per request, and the last one is repeated.
    """

    def __init__(self, base_url: str = "", *, recording: bool = True) -> None:
        """`recording`: whether to record requests, and to refuse models other than `MODEL`."""
        self.base_url = base_url
        self.recording = recording
        self.tokens = Counter[str]()
        """Sums of the tokens of prompts (`prompt`) and answers (`generation`) of `writes`."""
        self.bodies: list[dict[str, Any]] = []
        """JSON bodies of all requests."""
        self.headers: list[dict[str, str]] = []
        """Headers of all requests."""
        self.connections: set[object] = set()
        """All connections over which a request arrived."""
        self.received = asyncio.Event()
        """Set once a request has arrived."""
        self.context = 32_768
        """Context length that the list of models reports, in tokens."""
        self.salt = ""
        """A string that is added to each embedded text. Another salt gives other embeddings, as
        another model would.
        """
        self.tokenizes = False
        """Whether `POST /tokenize` counts tokens, as vLLM does; otherwise the route is missing."""
        self.counted: list[dict[str, Any]] = []
        """JSON bodies of all requests to `POST /tokenize`."""
        self._started_at = time.time()
        self.disconnected = asyncio.Event()
        """Set once a client has disconnected before its answer was complete."""
        self._behaviours: list[Behaviour] = [says("hello")]

    def plays(self, *behaviours: Behaviour) -> None:
        """Answer further requests with these behaviours, one per request. The last is repeated."""
        self._behaviours = list(behaviours)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Record a request if `recording` is true, and answer it with the next behaviour."""
        if self.recording:
            self.bodies.append(await request.json())
            self.headers.append(dict(request.headers))
            self.connections.add(request.transport)
            self.received.set()
            if (model := self.bodies[-1]["model"]) != MODEL:
                return await fails(404, f"The model `{model}` does not exist.")(request)
        play = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
        try:
            return await play(request)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnected.set()
            raise
        finally:
            self.tokens.update(request.get(_TOKENS, {}))

    async def models(self, _request: web.Request) -> web.Response:
        """Answer `GET /v1/models`: return the list of models."""
        return web.json_response(
            {"object": "list", "data": [{"id": MODEL, "max_model_len": self.context}]}
        )

    async def tokenize(self, request: web.Request) -> web.Response:
        """Answer `POST /tokenize`: return the number of words in a text or a conversation."""
        self.counted.append(body := await request.json())
        if not self.tokenizes:
            raise web.HTTPNotFound
        messages = body.get("messages", ())
        texts = [body.get("prompt", ""), *(message["content"] for message in messages)]
        return web.json_response({"count": sum(len(text.split()) for text in texts)})

    async def embeddings(self, request: web.Request) -> web.Response:
        """Answer `POST /v1/embeddings`: return a vector of eight dimensions for each text, which is
        computed from the text's digest.
        """
        texts = (await request.json())["input"]
        digests = [hashlib.shake_256(f"{self.salt}{text}".encode()).digest(8) for text in texts]
        data = [
            {"index": at, "embedding": [byte - 127.5 for byte in digest]}
            for at, digest in enumerate(digests)
        ]
        return web.json_response({"object": "list", "data": data})

    async def metrics(self, _request: web.Request) -> web.Response:
        """Answer `GET /metrics`: return the tokens so far and the start time, under vLLM's
        names.
        """
        samples: dict[str, float] = {"process_start_time_seconds": self._started_at}
        samples |= {
            f"vllm:{kind}_tokens_total": self.tokens[kind] for kind in ("prompt", "generation")
        }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in samples.items()))


@asynccontextmanager
async def served(*routes: web.RouteDef) -> AsyncIterator[str]:
    """Serve `routes` on a free port of the loopback interface, and yield the base URL."""
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
    """Run an `OpenAIServer` on a free port of the loopback interface."""
    server = OpenAIServer(recording=recording)
    routes = (
        web.post("/v1/chat/completions", server.answer),
        web.post("/v1/messages", server.answer),  # Anthropic's API
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
    """Return a behaviour that answers with `texts`. In a stream, each text is a chunk, as from
    vLLM; otherwise the texts are joined.

    `reasoning`: the reasoning as a field of the message, such as `{"reasoning_content": "hm"}`.
    """
    end = {"finish_reason": finish_reason, "stop_reason": stop_reason}
    deltas: list[Mapping[str, str | None]] = [{"role": "assistant"}]
    if reasoning:
        deltas.append(reasoning)
    deltas += [{"content": text} for text in texts]
    chunks = [*(chunk_of({"delta": delta}) for delta in deltas), chunk_of({"delta": {}, **end})]
    if usage:
        chunks.append({"choices": [], "usage": usage})

    async def play(request: web.Request) -> web.StreamResponse:
        if (await request.json()).get("stream"):
            return await streams(*map(event, chunks), DONE)(request)
        content = None if None in texts else "".join(text for text in texts if text)
        message = {"role": "assistant", "content": content, **(reasoning or {})}
        return web.json_response(
            {**chunk_of({"message": message, **end}), **({"usage": usage} if usage else {})}
        )

    return play


class ChatRequest(msgspec.Struct, frozen=True):
    """The fields of a completion request that a script for `writes` may read."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool = False
    request_id: str = ""
    """The header `X-Request-Id`: the id of the run and the number of the call."""

    @property
    def texts(self) -> list[str]:
        """The contents of the messages."""
        return [str(message["content"]) for message in self.messages]

    @property
    def run_id(self) -> str:
        """Id of the run that makes the call."""
        return self.request_id.rpartition("-")[0]


@dataclass(frozen=True, slots=True)
class Reply:
    """Text of an answer, in tokens, and the pace at which a stream writes it."""

    tokens: Sequence[str]
    first_token_s: float = 0.0
    """Seconds before the first token."""
    token_s: Callable[[], float] | None = None
    """Called before each further token; returns the seconds to wait. None to write all tokens
    immediately, in a few pieces.
    """

    @classmethod
    def of(cls, text: str) -> "Reply":
        """Return a reply that writes `text` immediately, with one token per word."""
        return cls([f" {word}" if at else word for at, word in enumerate(text.split(" "))])


def writes(script: Callable[[ChatRequest], Reply]) -> Behaviour:
    """Return a behaviour that calls `script` for each request, and writes the reply that it
    returns. In a stream, each chunk reports the usage so far.
    """

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
            counts["generation"] = min(wrote, 1)  # grows with each token that is really sent
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
    """Return the body of a reply that is not streamed. `read`: number of tokens of the prompt."""
    message = {"role": "assistant", "content": "".join(reply.tokens)}
    choice = {"message": message, "finish_reason": "stop"}
    return msgspec.json.encode({"choices": [choice], "usage": _usage(read, len(reply.tokens))})


def events(reply: Reply, read: int) -> list[bytes]:
    """Return the events of a stream: one for each token, and the end. `read`: number of tokens of
    the prompt.
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
    """Return a behaviour that sends `pieces` of an event stream, awaits `then` if it is given, and
    ends the stream.
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


def fails(
    status: int,
    message: str,
    retry_after: str | None = None,
) -> Behaviour:
    """Return a behaviour that answers with an HTTP status and an error in OpenAI's format."""
    headers = {"Retry-After": retry_after} if retry_after else {}

    async def play(_request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"error": {"message": message, "code": status}}, status=status, headers=headers
        )

    return play


async def hang(_request: web.Request) -> web.StreamResponse:
    """Behaviour that never answers, until the client disconnects. In `streams(…, then=hang)`, the
    stream sends nothing more and does not end.
    """
    await asyncio.Event().wait()
    raise AssertionError("hang can only end by a cancellation")


async def reset(request: web.Request) -> web.StreamResponse:
    """Behaviour that resets the connection instead of answering. In `streams(…, then=reset)`, the
    connection is reset in the middle of the body.
    """
    if request.transport is not None:  # None once the client has disconnected
        request.transport.abort()
    return web.Response()


DONE = b"data: [DONE]\n\n"


def event(chunk: dict[str, Any]) -> bytes:
    """Return a server-sent event with `chunk` as JSON."""
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


def chunk_of(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a chunk of a stream, or a whole reply, that has this choice."""
    kind = "chat.completion.chunk" if "delta" in choice else "chat.completion"
    return {
        "id": "c",
        "object": kind,
        "created": 1,
        "model": MODEL,
        "choices": [{"index": 0, **choice}],
    }
