"""Engines' own counters, as their metrics tell them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from router.errors import UpstreamProtocolError, UpstreamUnavailable
from router.ledger.reconciliation import EngineCount, Tokens, VLLMCounts

METRICS = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a b} 7"} 1.234e+03
vllm:prompt_tokens_total{engine="1",model_name="m"} 6.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="a b} 7"} 1.7637336e+09
vllm:prompt_tokens_created{engine="1",model_name="m"} 1.7637337e+09
vllm:prompt_tokens_by_source_total{source="local_compute"} 99.0
vllm:generation_tokens_total{engine="0",model_name="m"} 17.0
process_start_time_seconds 1.763733e+09
"""


@asynccontextmanager
async def metrics(text: str, status: int = 200) -> AsyncIterator[str]:
    """The base URL of an engine with these metrics."""

    async def tell(_request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    app = web.Application()
    app.router.add_get("/metrics", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def test_sums_over_labels(session: aiohttp.ClientSession) -> None:
    """All models and all engines behind one address; since the first of them began to count."""
    async with metrics(METRICS) as url:
        assert await VLLMCounts(session).read(url) == EngineCount(1763733600.0, Tokens(1240, 17))


async def test_since_the_process_began(session: aiohttp.ClientSession) -> None:
    """Where counters do not say when they began."""
    text = "".join(line + "\n" for line in METRICS.splitlines() if "_created" not in line)
    async with metrics(text) as url:
        assert (await VLLMCounts(session).read(url)).start == 1763733000.0


@pytest.mark.parametrize(("text", "status"), [("", 200), ("nothing here", 404), ("vllm:prompt_tokens_total 1", 200)])
async def test_no_engine(session: aiohttp.ClientSession, text: str, status: int) -> None:
    """What has no such counters says so, and where."""
    async with metrics(text, status) as url:
        with pytest.raises(
            UpstreamProtocolError, match=r"^retrieval at http://127.*/metrics has no 'vllm:.*no vLLM engine"
        ):
            await VLLMCounts(session).read(url)


async def test_nobody_there(session: aiohttp.ClientSession) -> None:
    """An address that cannot be read is unavailable, and its password is not shown."""
    async with metrics("") as url:
        gone = url
    with pytest.raises(UpstreamUnavailable, match="cannot be read") as caught:
        await VLLMCounts(session).read(gone.replace("//", "//user:secret@"))
    assert "secret" not in str(caught.value)
