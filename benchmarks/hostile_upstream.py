"""Models and retrieval that say the worst that they may: `python -m benchmarks.hostile_upstream SEED`.

Most replies follow the protocol, so that what they hold comes as far as it can: into prompts, passages, citations and
answers. Others are no replies at all: floods, JSON that is nested too deeply, bodies that inflate, errors without an
end. `GET /harmless` and `GET /hostile` say which of both they are from now on; the sizes are the same.
"""

import asyncio
import gzip
import random
import sys
from collections.abc import Callable, Sequence

import msgspec
from aiohttp import web

from benchmarks.canned_upstream import ChatRequest
from router.edge.grpc.server import Server
from router.protocol.evidence import Passage
from router.testing.pathological import any_hostile, harmless
from serving.retrieval.services import RetrievalServicer

_NO_REPLY = 0.1
"""The share of replies that are none."""
_DEEP = 100_000
_BOMB, _LINES, _EVENTS = (
    gzip.compress(piece * ((64 << 20) // len(piece)), 9) for piece in (b"x", b"\n", b"data: {}\n\n")
)


class Hostile:
    """Writes, and finds, whatever is hardest to read."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self.hostile = False

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """A completion, or something that is none."""
        asked = msgspec.json.decode(await request.read(), type=ChatRequest)
        if self.hostile and self._chance.random() < _NO_REPLY:
            return self._no_reply()
        return _replied(self._written(asked.model, len(asked.messages)), asked.stream)

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        """Passages that are longer than what is shown of them."""
        return [[self._passage(number) for number in range(top_k)] for _ in queries]

    def _passage(self, number: int) -> Passage:
        return Passage(f"p{number}", self._text(400), self._text(20_000), 0.5, self._text(100))

    def _written(self, model: str, messages: int) -> str:
        if self.hostile and self._chance.random() < _NO_REPLY:
            return self._text(200_000)
        match model, messages:
            case "delegator", 2:
                return f"<search>{msgspec.json.encode([self._text(1500) for _ in range(4)]).decode()}</search>"
            case "delegator", _:
                return "<stop/>Enough evidence<stop>"
            case "executor", 2:
                return f"<search>{self._text(1500)}</search>"
            case "executor", _:
                points = "\n".join(f"- {self._text(2500)}" for _ in range(3))
                return f"<answer>{self._text(2500)}</answer>\n<evidence>{points}</evidence>"
        return f"<answer>{self._text(20_000)}</answer>"

    def _text(self, most: int) -> str:
        text = any_hostile(self._chance, most)
        return text if self.hostile else harmless(len(text))

    def _no_reply(self) -> web.Response:
        deep, inflates = b"[" * _DEEP, {"Content-Encoding": "gzip"}
        make: Callable[[], web.Response] = self._chance.choice(
            (
                lambda: web.Response(body=b'{"choices":' + deep, content_type="application/json"),
                lambda: web.Response(body=b"data: " + deep + b"\n\n", content_type="text/event-stream"),
                lambda: web.Response(status=500, body=deep, content_type="application/json"),
                lambda: web.Response(status=500, body=_BOMB, headers=inflates),
                lambda: web.Response(body=_BOMB, headers=inflates, content_type="application/json"),
                lambda: web.Response(body=_LINES, headers=inflates, content_type="text/event-stream"),
                lambda: web.Response(body=_EVENTS, headers=inflates, content_type="text/event-stream"),
                lambda: web.Response(status=400, text=self._text(1_000_000)),
                lambda: web.Response(body=b"x" * (1 << 21), content_type="text/event-stream"),
            )
        )
        return make()


def _replied(text: str, stream: bool) -> web.Response:
    said = {"index": 0, "delta" if stream else "message": {"content": text}, "finish_reason": "stop"}
    body = msgspec.json.encode({"choices": [said], "usage": {"prompt_tokens": 100, "completion_tokens": 60}})
    if stream:
        return web.Response(body=b"data: %b\n\ndata: [DONE]\n\n" % body, content_type="text/event-stream")
    return web.Response(body=body, content_type="application/json")


async def serve(seed: str) -> None:
    """Print the models' base URL and the retrieval's address, and go on until the standard input ends."""
    upstream, app = Hostile(seed), web.Application(client_max_size=64 << 20)

    async def turn(request: web.Request) -> web.Response:
        upstream.hostile = request.path == "/hostile"
        return web.Response()

    app.add_routes(
        [
            web.post("/v1/chat/completions", upstream.complete),
            web.get("/hostile", turn),
            web.get("/harmless", turn),
        ]
    )
    runner, server = web.AppRunner(app), Server(None, RetrievalServicer(upstream))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = await server.start("127.0.0.1:0")
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1 127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.drain(0)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
