"""Seeded faults, and the proxies that inject them between a real client and a real server."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.errors import UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.models import Completion, Message, Prompt, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol import Passage
from router.testing.fault_proxy import (
    FAULTS,
    Counted,
    Fault,
    FaultPlan,
    FaultProxy,
    FaultyRetriever,
    fault_proxies,
)
from tests.openai_server import Reply, serving, writes
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered

TEXT = "<answer>in 1943</answer>"
PROMPT = Prompt(
    (Message("system", "Report."), Message("user", "Who?")), Sampling(64), (), request_id="run-1-0"
)


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    """Open a proxy before played models."""
    async with serving(recording=False) as server, fault_proxies([server.base_url], 0) as (proxy,):
        server.plays(writes(lambda _asked: Reply.of(TEXT)))
        yield proxy


@pytest.fixture
async def model(proxy: FaultProxy) -> AsyncIterator[OpenAIHTTP]:
    """Return a model behind the proxy."""
    async with ConnectionPool() as pool:
        yield OpenAIHTTP(pool, proxy.base_url, "answerer")


async def asked(model: OpenAIHTTP, timeout_s: float = 5.0) -> Completion:
    async with asyncio.timeout(timeout_s):
        return await model.stream(PROMPT, lambda _delta: None)


async def ends(proxy: FaultProxy, model: OpenAIHTTP, fault: Fault) -> set[str]:
    """Return the texts and errors of some calls with a fault."""
    outcomes = set[str]()
    for seed in range(12):
        proxy.plan = FaultPlan(f"{seed}", 1.0, (fault,))
        try:
            outcomes.add((await asked(model)).text)
        except UpstreamError as error:
            outcomes.add(type(error).__name__)
    return outcomes


def test_equal_seeds_give_equal_faults() -> None:
    """Another seed gives other faults. Every kind occurs, about as often as configured."""
    now = [0.0]
    plans = [FaultPlan(seed, 0.5, clock=lambda: now[0]) for seed in ("a", "a", "b")]
    drawn = []
    for plan in plans:
        faults = []
        for tick in range(2000):
            now[0] = tick / 10
            faults.append(plan.next())
        drawn.append(faults)
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == {None, *FAULTS}
    assert 900 < drawn[0].count(None) < 1050
    assert plans[0].seen.total() == 2000


def test_a_storm_hits_every_call_until_it_is_over() -> None:
    """During the storm the shares of other faults make no difference."""
    now = [0.0]
    plan = FaultPlan("s", 1.0, ("throttled",), clock=lambda: now[0])
    assert plan.next() == "throttled"
    plan.share = 1e-9
    assert {plan.next() for _ in range(100)} == {"throttled"}
    now[0] = 10.0
    assert plan.next() is None


async def test_a_proxy_without_faults_changes_nothing(proxy: FaultProxy, model: OpenAIHTTP) -> None:
    """Text and usage are those of the upstream.

    The attempt and the upstream's own count are known.
    """
    completion = await asked(model)
    assert (completion.text, proxy.plan.seen) == (TEXT, {"none": 1})
    assert completion.usage is not None
    (attempt,) = proxy.attempts
    assert (attempt.deployment, attempt.request_id) == (proxy.base_url, "run-1-0")
    assert attempt.counted == Counted(
        completion.usage.prompt_tokens, completion.usage.completion_tokens
    )


@pytest.mark.parametrize("fault", ["reset", "throttled", "overloaded"])
async def test_resets_and_storms_fail_immediately(
    proxy: FaultProxy, model: OpenAIHTTP, fault: Fault
) -> None:
    """The errors are those of servers that did not begin."""
    proxy.plan = FaultPlan("0", 1.0, (fault,))
    with pytest.raises(UpstreamUnavailable) as failed:
        await asked(model)
    assert (failed.value.unspent, failed.value.throttled) == (
        fault != "reset",
        fault == "throttled",
    )
    assert [(attempt.request_id, attempt.counted) for attempt in proxy.attempts] == [
        ("run-1-0", None)
    ]


async def test_a_black_hole_never_answers(proxy: FaultProxy, model: OpenAIHTTP) -> None:
    """It does receive the call."""
    proxy.plan = FaultPlan("0", 1.0, ("black_hole",))
    with pytest.raises(TimeoutError):
        await asked(model, 0.3)
    assert [attempt.request_id for attempt in proxy.attempts] == ["run-1-0"]


async def test_streams_with_faults_are_cut_drip_or_misreport_usage(
    proxy: FaultProxy, model: OpenAIHTTP
) -> None:
    """A cut stream is incomplete, a dripping one is complete in the end, and a wrong usage costs
    no text.
    """
    assert await ends(proxy, model, "cut") == {"UpstreamUnavailable", TEXT}
    assert UpstreamProtocolError.__name__ in await ends(proxy, model, "invalid_utf8")
    assert await ends(proxy, model, "lying_usage") == {TEXT}
    assert any(text.count("1943") > 1 for text in await ends(proxy, model, "duplicated"))
    proxy.plan = FaultPlan("6", 1.0, ("drip",))
    assert (await asked(model)).text == TEXT


async def test_searches_fail_or_hang_as_planned() -> None:
    """Without a plan they are passed on."""
    passage = Passage("p", "Heat", "Heat is a film.", 1.0)
    inner = FixedRetriever({"who": [passage]})
    assert await FaultyRetriever(Unfiltered(inner), FaultPlan("s", 0.0)).search(["who"], 1) == [
        [passage]
    ]
    with pytest.raises(UpstreamUnavailable):
        await FaultyRetriever(Unfiltered(inner), FaultPlan("s", 1.0, ("reset",))).search(["who"], 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await FaultyRetriever(Unfiltered(inner), FaultPlan("s", 1.0, ("black_hole",))).search(
                ["who"], 1
            )
    assert inner.queries == ["who"]
