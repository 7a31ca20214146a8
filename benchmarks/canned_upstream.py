"""Models and retrieval that answer a two-hop question at once, in a process of their own, so that what a gateway costs
can be told from what its models cost: `python -m benchmarks.canned_upstream`.

A question takes 3 calls of the delegator, 2 executor runs of 2 turns with a search each, and 1 call of the answerer.
Every call reads and writes as many tokens as it has words. `GET /metrics` tells the tokens of all calls so far, as vLLM
does.
"""

import asyncio
import sys
import time
from collections.abc import Sequence

import msgspec
from aiohttp import web

from router.edge.server import Server
from router.passage import Passage
from serving.retrieval.grpc_service import RetrievalServicer

CALLS_A_QUESTION = 8
_PASSAGE = Passage("p1", "Heat", "Heat is a film by Michael Mann, who was born in Chicago in 1943.", 0.9)
_STOP = "<stop/>Enough evidence<stop>"
_EVENTS = {"Content-Type": "text/event-stream"}


class _Message(msgspec.Struct):
    content: str


class _Request(msgspec.Struct):
    model: str
    messages: list[_Message]


class CannedModels:
    """Writes by the role that its model's name says, and counts."""

    def __init__(self) -> None:
        self.prompt_tokens = self.completion_tokens = 0
        self._started_at = time.time()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """A streamed completion in three chunks, the last of which has the usage."""
        asked = msgspec.json.decode(await request.read(), type=_Request)
        text = _written(asked.model, len(asked.messages))
        read, wrote = sum(len(message.content.split()) for message in asked.messages), len(text.split())
        self.prompt_tokens += read
        self.completion_tokens += wrote
        chunks: list[object] = [
            {"choices": [{"index": 0, "delta": {"content": text}}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": read, "completion_tokens": wrote}},
        ]
        body = b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks)
        return web.Response(body=body + b"data: [DONE]\n\n", headers=_EVENTS)

    async def metrics(self, _request: web.Request) -> web.Response:
        """The tokens of all calls so far, and since when."""
        samples = {
            "process_start_time_seconds": self._started_at,
            "vllm:prompt_tokens_total": self.prompt_tokens,
            "vllm:generation_tokens_total": self.completion_tokens,
        }
        return web.Response(text="".join(f"{name} {value}\n" for name, value in samples.items()))


def _written(model: str, messages: int) -> str:
    if model == "delegator":
        return {2: '<search>["Who directed Heat?"]</search>', 4: '<search>["When was he born?"]</search>'}.get(
            messages, _STOP
        )
    if model == "executor":
        return (
            "<search>the film Heat</search>"
            if messages == 2
            else "<answer>Michael Mann</answer>\n<evidence>Heat is a film by Michael Mann</evidence>"
        )
    return "<answer>in 1943</answer>"


class _OnePassage:
    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        return [[_PASSAGE][:top_k] for _ in queries]


async def serve() -> None:
    """Listen on free ports, print the models' base URL and the retrieval's address, and go on until stdin ends."""
    models = CannedModels()
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", models.complete), web.get("/metrics", models.metrics)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = Server(None, RetrievalServicer(_OnePassage()))
    port = await server.start("127.0.0.1:0")
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1 127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.drain(0)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve())
