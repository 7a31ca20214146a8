"""The fake OpenAI server with a function that writes its replies."""

import json
import time

import aiohttp

from router.models import Message, Prompt, Sampling, Usage
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from tests.openai_behaviours import disconnects
from tests.openai_server import ChatRequest, Reply, serving, writes

PROMPT = Prompt(
    (Message("system", "Be short."), Message("user", "Who wrote it?")),
    Sampling(64),
    request_id="run-1-7",
)


async def test_a_function_writes_each_reply_from_its_request() -> None:
    """Tokens are counted in the reply and over all of them."""
    seen: list[ChatRequest] = []

    def script(asked: ChatRequest) -> Reply:
        seen.append(asked)
        return Reply.of(f"as {asked.model} said")

    async with (
        serving(recording=False) as server,
        ConnectionPool() as pool,
        aiohttp.ClientSession() as session,
    ):
        server.plays(writes(script))
        model = OpenAIHTTP(pool, server.base_url, "any")
        whole = await model.complete(PROMPT)
        streamed = await model.stream(PROMPT, lambda _delta: None)
        metrics = await (await session.get(f"{server.base_url.removesuffix('/v1')}/metrics")).text()
    assert whole.text == streamed.text == "as any said"
    assert whole.usage == streamed.usage == Usage(5, 3)
    assert [(request.texts[1], request.run_id, request.stream) for request in seen] == [
        ("Who wrote it?", "run-1", False),
        ("Who wrote it?", "run-1", True),
    ]
    assert "vllm:prompt_tokens_total 10\n" in metrics
    assert "vllm:generation_tokens_total 6\n" in metrics


async def test_tokens_come_singly_after_a_wait_for_the_first() -> None:
    times: list[float] = []
    async with serving(recording=False) as server, ConnectionPool() as pool:
        server.plays(writes(lambda _asked: Reply(["a", "b", "c"], 0.15, lambda: 0.05)))
        begun = time.perf_counter()
        reply = await OpenAIHTTP(pool, server.base_url, "any").stream(
            PROMPT, lambda delta: times.append(time.perf_counter() - begun) if delta.text else None
        )
    assert reply.text == "abc"
    assert server.tokens == {"prompt": 5, "generation": 3}
    assert times[0] >= 0.15 and times[-1] >= 0.25


async def test_a_cut_reply_counts_the_tokens_written_so_far() -> None:
    async with serving(recording=False) as server, aiohttp.ClientSession() as session:
        server.plays(writes(lambda _asked: Reply("abcdefgh" * 100, 0.0, lambda: 0.01)))
        asked = {"model": "any", "messages": [], "stream": True}
        async with session.post(f"{server.base_url}/chat/completions", json=asked) as reply:
            await reply.content.readany()
        await disconnects(server)
    assert 0 < server.tokens["generation"] < 800


async def test_each_token_has_its_event_with_the_count_so_far() -> None:
    async with serving(recording=False) as server, aiohttp.ClientSession() as session:
        server.plays(writes(lambda _asked: Reply("abc")))
        asked = {"model": "any", "messages": [], "stream": True}
        body = await (await session.post(f"{server.base_url}/chat/completions", json=asked)).text()
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas == [{"content": "a"}, {"content": "b"}, {"content": "c"}, {}]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 3, 3]
