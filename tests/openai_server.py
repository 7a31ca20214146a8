"""The server with OpenAI's API of `router/testing`, with what only tests need: it records its
requests, counts tokens, embeds texts, and plays streams piece by piece.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from router.testing import openai_server
from router.testing.openai_server import (
    DONE,
    MODEL,
    Behaviour,
    ChatRequest,
    Reply,
    complete_reply,
    event,
    events,
    fails,
    hang,
    reset,
    served,
    writes,
)

__all__ = [
    "DONE",
    "MODEL",
    "USAGE",
    "Behaviour",
    "ChatRequest",
    "OpenAIServer",
    "Reply",
    "chunk_of",
    "complete_reply",
    "event",
    "events",
    "fails",
    "hang",
    "reset",
    "says",
    "served",
    "serving",
    "streams",
    "writes",
]

USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}

_SSE = {"Content-Type": "text/event-stream; charset=utf-8"}


class OpenAIServer(openai_server.OpenAIServer):
    """A server that records its requests. A request for another model than `MODEL` gets status 404,
    as from vLLM.
    """

    def __init__(self, base_url: str = "", *, recording: bool = True) -> None:
        """`recording`: whether to record requests, and to refuse models other than `MODEL`."""
        super().__init__(base_url)
        self.recording = recording
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
        self.disconnected = asyncio.Event()
        """Set once a client has disconnected before its answer was complete."""
        self.plays(says("hello"))

    @property
    def routes(self) -> tuple[web.RouteDef, ...]:
        """The routes that the server serves."""
        return (
            *super().routes,
            web.post("/v1/messages", self.answer),  # Anthropic's API
            web.post("/tokenize", self.tokenize),
            web.post("/v1/embeddings", self.embeddings),
        )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Record a request if `recording` is true, and answer it with the next behaviour."""
        if self.recording:
            self.bodies.append(await request.json())
            self.headers.append(dict(request.headers))
            self.connections.add(request.transport)
            self.received.set()
            if (model := self.bodies[-1]["model"]) != MODEL:
                return await fails(404, f"The model `{model}` does not exist.")(request)
        try:
            return await super().answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnected.set()
            raise

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


@asynccontextmanager
async def serving(*, recording: bool = True) -> AsyncIterator[OpenAIServer]:
    """Run an `OpenAIServer` on a free port of the loopback interface."""
    server = OpenAIServer(recording=recording)
    async with served(*server.routes) as server.base_url:
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
