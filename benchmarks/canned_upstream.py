"""Models and retrieval that answer a two-hop question at once, or as fast as a model would, in a process of their own,
so that what a gateway costs can be told from what its models cost: `python -m benchmarks.canned_upstream`.

A question takes 3 calls of the delegator, 2 executor runs of 2 turns with a search each, and 1 call of the answerer.
Every call reads and writes as many tokens as it has words, and streams them one by one, each with the usage so far, as
vLLM does. `GET /metrics` tells the tokens of all calls so far, as vLLM does, and `GET /busy` for how many seconds at
least one call of each run was being worked on.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from aiohttp import web

from router.edge.grpc.server import Server
from router.models.openai_wire import REQUEST_ID
from router.protocol.evidence import Passage
from serving.retrieval.services import RetrievalServicer

CALLS_A_QUESTION = 8
_PASSAGE = Passage("p1", "Heat", "Heat is a film by Michael Mann, who was born in Chicago in 1943.", 0.9)
_EVENTS = {"Content-Type": "text/event-stream"}
Complete = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Message(msgspec.Struct):
    content: str


class ChatRequest(msgspec.Struct):
    """A request for a completion, as far as models that are played read it."""

    model: str
    messages: list[_Message]
    stream: bool = False


@dataclass(slots=True)
class Busy:
    """How long at least one of some calls was being worked on."""

    seconds: float = 0.0
    _open: int = 0
    _since: float = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """A call, while this is open."""
        if not self._open:
            self._since = time.perf_counter()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.seconds += time.perf_counter() - self._since


@dataclass(slots=True)
class CannedModels:
    """Writes by the role that its model's name says, and counts."""

    first_token_s: float = 0.0
    tokens_a_second: float = 0.0
    """0 writes all at once."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    busy: dict[str, Busy] = field(default_factory=dict)
    """By run."""
    _started_at: float = field(default_factory=time.time)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """A completion, streamed or whole."""
        run_id = request.headers.get(REQUEST_ID, "").rpartition("-")[0]
        with self.busy.setdefault(run_id, Busy()).working():
            asked = msgspec.json.decode(await request.read(), type=ChatRequest)
            text = _written(asked.model, [message.content for message in asked.messages])
            read, wrote = sum(len(message.content.split()) for message in asked.messages), len(text.split())
            self.prompt_tokens += read
            self.completion_tokens += wrote
            if asked.stream:
                response = web.StreamResponse(headers=_EVENTS)
                with suppress(ConnectionResetError):  # who asked has left
                    response = await self._stream(request, list(_chunks(text, read)))
                return response
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            return web.json_response({"choices": [choice], "usage": _usage(read, wrote)})

    async def metrics(self, _request: web.Request) -> web.Response:
        """The tokens of all calls so far, and since when."""
        samples = {
            "process_start_time_seconds": self._started_at,
            "vllm:prompt_tokens_total": self.prompt_tokens,
            "vllm:generation_tokens_total": self.completion_tokens,
        }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in samples.items()))

    async def told_busy(self, _request: web.Request) -> web.Response:
        """Seconds by run, which are then forgotten."""
        told, self.busy = self.busy, {}
        return web.json_response({run_id: busy.seconds for run_id, busy in told.items()})

    async def _stream(self, request: web.Request, events: Sequence[bytes]) -> web.StreamResponse:
        if not self.tokens_a_second:
            return web.Response(body=b"".join(events), headers=_EVENTS)
        response = web.StreamResponse(headers=_EVENTS)
        await response.prepare(request)
        due = asyncio.get_running_loop().time() + self.first_token_s
        *tokens, last, usage, done = events
        for token in tokens:
            await _until(due)
            await response.write(token)
            due += 1 / self.tokens_a_second
        await response.write(last + usage + done)
        await response.write_eof()
        return response


async def _until(due: float) -> None:
    await asyncio.sleep(due - asyncio.get_running_loop().time())


def _chunks(text: str, read: int) -> Iterator[bytes]:
    """A token each, and then the reason for the end, the usage, and the end."""
    words = text.split(" ")
    for number, word in enumerate(words, 1):
        piece = word if number == len(words) else f"{word} "
        yield _event({"choices": [{"index": 0, "delta": {"content": piece}}], "usage": _usage(read, number)})
    wrote = _usage(read, len(text.split()))
    yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": wrote})
    yield _event({"choices": [], "usage": wrote})
    yield b"data: [DONE]\n\n"


def _event(chunk: object) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


def _usage(read: int, wrote: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def _written(model: str, messages: Sequence[str]) -> str:
    """Sub-queries and queries repeat the question, so that no two questions have any in common."""
    about = messages[1] if len(messages) > 1 else ""
    match model, len(messages):
        case "delegator", 2:
            return f"<search>{json.dumps([f'First: {about}'])}</search>"
        case "delegator", 4:
            return f"<search>{json.dumps([f'Then: {about}'])}</search>"
        case "delegator", _:
            return "<stop/>Enough evidence<stop>"
        case "executor", 2:
            return f"<search>{about}</search>"
        case "executor", _:
            return "<answer>Michael Mann</answer>\n<evidence>Heat is a film by Michael Mann</evidence>"
    return "<answer>in 1943</answer>"


class _OnePassage:
    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        return [[_PASSAGE][:top_k] for _ in queries]


@asynccontextmanager
async def canned_upstream(models: CannedModels, complete: Complete | None = None) -> AsyncIterator[tuple[str, str]]:
    """They listen on free ports while the context is open: the models' base URL, and the retrieval's address.

    `complete`: makes the completions instead.
    """
    app = web.Application()
    app.add_routes(
        [
            web.post("/v1/chat/completions", complete or models.complete),
            web.get("/metrics", models.metrics),
            web.get("/busy", models.told_busy),
        ]
    )
    runner, server = web.AppRunner(app), Server(None, RetrievalServicer(_OnePassage()))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    port = await server.start("127.0.0.1:0")
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", f"127.0.0.1:{port}"
    finally:
        await server.drain(0)
        await runner.cleanup()


async def serve(models: CannedModels, complete: Complete | None = None) -> None:
    """Print where they listen, and go on until the standard input ends."""
    async with canned_upstream(models, complete) as addresses:
        print(*addresses, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-token", type=float, default=0.0, metavar="SECONDS", help="to the first token")
    parser.add_argument("--tokens-a-second", type=float, default=0.0, metavar="N", help="after it; 0: all at once")
    given = parser.parse_args()
    asyncio.run(serve(CannedModels(given.first_token, given.tokens_a_second)))
