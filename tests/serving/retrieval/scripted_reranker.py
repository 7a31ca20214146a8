"""A server in the form of Jina, Cohere and vLLM, or of vLLM's `/score`, whose reply is scripted."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from serving.config.config import RerankerConfig

Reply = Callable[[dict[str, Any]], Awaitable[web.Response]]
MODEL = "cross"


class RerankServer:
    """The requests that the server got, and the reply to the next ones."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.base_url = ""

    async def rerank(self, request: web.Request) -> web.Response:
        """Answer `POST /v1/rerank` and `POST /v1/score`."""
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        return await self.reply(self.bodies[-1])

    def config(self, **keys: Any) -> RerankerConfig:
        """Return the section `[reranker]` for this server."""
        return RerankerConfig(base_url=self.base_url, model=MODEL, **keys)


def shortest_first(*, usage: Any = None) -> Reply:
    """Return a reply that prefers short texts, in the form of vLLM: best first, with the texts."""

    async def reply(body: dict[str, Any]) -> web.Response:
        scores: list[dict[str, Any]] = [
            {"index": number, "relevance_score": 1 / len(text), "document": {"text": text}}
            for number, text in enumerate(body["documents"])
        ]
        scores.sort(key=lambda score: -score["relevance_score"])
        whole: dict[str, Any] = {"id": "rerank-1", "model": body["model"], "results": scores}
        return web.json_response(whole | ({"usage": usage} if usage else {}))

    return reply


def scores_shortest_first(*, usage: Any = None) -> Reply:
    """Return the scores of `shortest_first` in the form of `/score`, in order of the texts."""

    async def reply(body: dict[str, Any]) -> web.Response:
        scores: list[dict[str, Any]] = [
            {"index": number, "object": "score", "score": 1 / len(text)}
            for number, text in enumerate(body["text_2"])
        ]
        whole: dict[str, Any] = {"id": "score-1", "object": "list", "data": scores, "usage": usage}
        return web.json_response(whole)

    return reply


def says(text: str, status: int = 200) -> Reply:
    """Return a reply with this body."""

    async def reply(_body: dict[str, Any]) -> web.Response:
        return web.Response(text=text, status=status, content_type="application/json")

    return reply


@asynccontextmanager
async def reranking(reply: Reply) -> AsyncIterator[RerankServer]:
    """Serve `reply` on a free port."""
    server = RerankServer(reply)
    app = web.Application()
    app.router.add_post("/v1/rerank", server.rerank)
    app.router.add_post("/v1/score", server.rerank)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/"
    try:
        yield server
    finally:
        await runner.cleanup()
