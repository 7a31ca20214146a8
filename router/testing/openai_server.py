"""A small HTTP server with OpenAI's API, for tests and benchmarks. A test scripts its answers:
immediate, slow, or faulty ones.

A behaviour is a handler of one request. `server.plays(writes(script), fails(503, "busy"))` sets the
behaviours of the next two requests. For `writes(script)`, the function `script` returns the text of
the answer and its pace. Each word counts as one token, and `GET /metrics` reports the tokens under
vLLM's names.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from aiohttp import web

from router.frozen import Frozen
from router.models.openai_wire import REQUEST_ID

MODEL = "tiny"
"""Name of the only model."""

_SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
_TOKENS = web.RequestKey("tokens", dict[str, int])
"""Key under which the token counts of the reply are attached to a request."""
Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""Handler of one request."""


class OpenAIServer:
    """State of the server: the behaviours of the next requests, and the number of tokens so far.
    Each request uses the next behaviour. The last behaviour is used for all further requests.
    """

    def __init__(self, base_url: str = "") -> None:
        self.base_url = base_url
        self.tokens = Counter[str]()
        """Numbers of tokens in prompts (`prompt`) and answers (`generation`), over all requests
        that `writes` has answered.
        """
        self._started_at = time.time()
        self._behaviours = list[Behaviour]()

    @property
    def routes(self) -> tuple[web.RouteDef, ...]:
        """The routes that the server serves."""
        return (
            web.post("/v1/chat/completions", self.answer),
            web.get("/v1/models", self.models),
            web.get("/metrics", self.metrics),
        )

    def plays(self, *behaviours: Behaviour) -> None:
        """Answer the next requests with these behaviours, one per request. The last behaviour
        answers all further requests.
        """
        self._behaviours = list(behaviours)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request with the next behaviour."""
        play = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
        try:
            return await play(request)
        finally:
            self.tokens.update(request.get(_TOKENS, {}))

    async def models(self, _request: web.Request) -> web.Response:
        """Answer `GET /v1/models`: return the list of models."""
        return web.json_response({"object": "list", "data": [{"id": MODEL}]})

    async def metrics(self, _request: web.Request) -> web.Response:
        """Answer `GET /metrics`: return the number of tokens so far and the start time, under
        vLLM's names.
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
async def serving() -> AsyncIterator[OpenAIServer]:
    """Run an `OpenAIServer` on a free port of the loopback interface."""
    server = OpenAIServer()
    async with served(*server.routes) as server.base_url:
        yield server


class ChatRequest(Frozen):
    """A completion request, the argument of a script (see `writes`)."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool = False
    request_id: str = ""
    """Value of the header `X-Request-Id`: the id of the run, a hyphen, and the number of the call.
    """

    @property
    def texts(self) -> list[str]:
        """The contents of the messages."""
        return [str(message["content"]) for message in self.messages]

    @property
    def run_id(self) -> str:
        """Id of the run that makes the call."""
        return self.request_id.rpartition("-")[0]


class Reply(Frozen):
    """Text of an answer, as tokens, and the pace at which they are streamed."""

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
    """Return a behaviour that calls `script` for each request, and answers with the returned
    `Reply`. In a stream, each chunk reports the usage so far.
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
    """Return the server-sent events of a streamed reply: one for each token, and the end. `read`:
    number of tokens of the prompt.
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
    """Behaviour that never answers. It ends when the client disconnects."""
    await asyncio.Event().wait()
    raise AssertionError("hang can only end by a cancellation")


async def reset(request: web.Request) -> web.StreamResponse:
    """Behaviour that resets the connection instead of answering."""
    if request.transport is not None:  # None once the client has disconnected
        request.transport.abort()
    return web.Response()


DONE = b"data: [DONE]\n\n"


def event(chunk: dict[str, Any]) -> bytes:
    """Return a server-sent event with `chunk` as JSON."""
    return b"data: %b\n\n" % msgspec.json.encode(chunk)
