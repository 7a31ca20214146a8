"""The fault proxies, between a real client and a real server."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from benchmarks.canned_upstream import CannedModels, canned_upstream
from benchmarks.chaos_proxy import ChaosProxy, FaultyRetriever, chaos_proxies
from benchmarks.fault_plan import Fault, FaultPlan
from router.errors import UpstreamError, UpstreamGarbled, UpstreamUnavailable
from router.models.model import Completion, Message, Prompt, Sampling, gather
from router.models.openai_client import OpenAIHTTP
from router.protocol.evidence import Passage
from router.search.retrieval import FixedRetriever

_PROMPT = Prompt((Message("system", "Report."), Message("user", "Who?")), Sampling(64), (), request_id="run-1-0")
_PASSAGE = Passage("p", "Heat", "Heat is a film.", 1.0)


@pytest.fixture
async def proxy() -> AsyncIterator[ChaosProxy]:
    """One before canned models."""
    async with canned_upstream(CannedModels()) as (base_url, _), chaos_proxies([base_url], 0) as (proxy,):
        yield proxy


@pytest.fixture
async def model(proxy: ChaosProxy) -> AsyncIterator[OpenAIHTTP]:
    """The answerer, through it."""
    async with aiohttp.ClientSession() as session:
        yield OpenAIHTTP(session, proxy.base_url, "answerer")


def _plan(proxy: ChaosProxy, fault: Fault, seed: int = 0) -> None:
    proxy.plan = FaultPlan(f"{seed}", 1.0, (fault,))


async def _asked(model: OpenAIHTTP) -> Completion:
    async with asyncio.timeout(5.0), model.stream(_PROMPT) as deltas:
        return await gather(deltas, lambda _delta: None)


async def test_what_goes_well_is_passed_on_and_noted(proxy: ChaosProxy, model: OpenAIHTTP) -> None:
    """Text and usage come as the upstream gives them, and the attempt is known by its name."""
    completion = await _asked(model)
    assert completion.text == "<answer>in 1943</answer>"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 2
    assert proxy.attempts == ["run-1-0"]
    assert proxy.plan.seen == {"none": 1}


async def test_a_reset_breaks_the_connection(proxy: ChaosProxy, model: OpenAIHTTP) -> None:
    """Before anything is said."""
    _plan(proxy, "reset")
    with pytest.raises(UpstreamUnavailable):
        await _asked(model)
    assert proxy.attempts == ["run-1-0"]


@pytest.mark.parametrize("storm", ["throttled", "overloaded"])
async def test_a_storm_turns_calls_away(proxy: ChaosProxy, model: OpenAIHTTP, storm: Fault) -> None:
    """With the statuses of servers that did not begin."""
    _plan(proxy, storm)
    with pytest.raises(UpstreamUnavailable) as failed:
        await _asked(model)
    assert failed.value.unspent
    assert failed.value.throttled == (storm == "throttled")


@pytest.mark.parametrize("silence", ["black_hole", "silent"])
async def test_a_black_hole_never_answers(proxy: ChaosProxy, model: OpenAIHTTP, silence: str) -> None:
    """Whoever waits has to give up; the call had come."""
    if silence == "silent":
        await proxy.become("silent")
    else:
        _plan(proxy, "black_hole")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await _asked(model)
    assert proxy.attempts == ["run-1-0"]


async def test_a_cut_stream_is_not_whole(proxy: ChaosProxy, model: OpenAIHTTP) -> None:
    """It breaks off somewhere; where that is after the end of the text, nobody minds."""
    ends = set[str]()
    for seed in range(12):
        _plan(proxy, "cut", seed)
        try:
            ends.add((await _asked(model)).text)
        except UpstreamUnavailable as error:
            ends.add(type(error).__name__)
    assert ends <= {"UpstreamUnavailable", "<answer>in 1943</answer>"}
    assert "UpstreamUnavailable" in ends


async def test_a_dripping_stream_arrives_in_the_end(proxy: ChaosProxy, model: OpenAIHTTP) -> None:
    """Piece by piece, and whole."""
    proxy.plan = FaultPlan("6", 1.0, ("drip",))
    completion = await _asked(model)
    assert completion.text == "<answer>in 1943</answer>"


async def test_spoiled_streams_are_told_from_good_ones(proxy: ChaosProxy, model: OpenAIHTTP) -> None:
    """Invalid UTF-8 is garbled; usage that is none costs nothing of the text; duplicated chunks write words twice."""
    seen: dict[Fault, set[str]] = {"invalid_utf8": set(), "lying_usage": set(), "duplicated": set()}
    for fault, ends in seen.items():
        for seed in range(12):
            _plan(proxy, fault, seed)
            try:
                ends.add((await _asked(model)).text)
            except UpstreamError as error:
                ends.add(type(error).__name__)
    assert UpstreamGarbled.__name__ in seen["invalid_utf8"]
    assert seen["lying_usage"] == {"<answer>in 1943</answer>"}
    assert any(text.count("1943") > 1 for text in seen["duplicated"])


async def test_a_replica_goes_and_comes_back(proxy: ChaosProxy, model: OpenAIHTTP) -> None:
    """While it is gone, nobody listens; then it is there again, at the same address."""
    there = proxy.base_url
    await proxy.become("gone")
    with pytest.raises(UpstreamUnavailable) as failed:
        await _asked(model)
    assert failed.value.unspent
    assert not proxy.attempts
    await proxy.become("well")
    assert proxy.base_url == there
    assert (await _asked(model)).text == "<answer>in 1943</answer>"


async def test_a_stuck_health_endpoint(proxy: ChaosProxy) -> None:
    """Whatever else is asked of an upstream hangs for half of the share, too."""
    url = f"{proxy.base_url.removesuffix('/v1')}/metrics"
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as response:
            assert (response.status, "vllm:prompt_tokens_total" in await response.text()) == (200, True)
        proxy.plan.share = 2.0
        with pytest.raises(TimeoutError):
            await session.get(url, timeout=aiohttp.ClientTimeout(total=0.3))
    assert proxy.plan.seen == {"stuck": 1}


async def test_searches_fail_as_planned() -> None:
    """They fail, hang, or take longer; without a plan they are passed on."""
    inner = FixedRetriever({"who": [_PASSAGE]})
    well = FaultyRetriever(inner, FaultPlan("s", 0.0))
    assert await well.search(["who"], 1) == [[_PASSAGE]]
    with pytest.raises(UpstreamUnavailable):
        await FaultyRetriever(inner, FaultPlan("s", 1.0, ("reset",))).search(["who"], 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await FaultyRetriever(inner, FaultPlan("s", 1.0, ("black_hole",))).search(["who"], 1)
    assert inner.queries == ["who"]
