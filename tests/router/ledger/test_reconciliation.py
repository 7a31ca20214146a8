"""Reconciliation: ledger and engine are compared by doubles, and metrics are read."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
from aiohttp import web

from router.errors import UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.ledger import Reconciler
from router.ledger.reconciliation import (
    EngineCount,
    LedgerSum,
    ReconciledTokens,
    Reconciliation,
    ReconciliationVerdict,
    Tokens,
    VLLMCounts,
)
from router.models.session import fetch_text

URL = "http://e/v1"


class FixedCounts:
    """Counts by base URL; an error among them is raised."""

    def __init__(self, counts: Mapping[str, EngineCount | UpstreamError]) -> None:
        self._counts = counts

    async def read(self, base_url: str) -> EngineCount:
        count = self._counts[base_url]
        if isinstance(count, UpstreamError):
            raise count
        return count


class FixedSums:
    """Sums returned in turn; the last one repeats."""

    def __init__(self, *sums: LedgerSum) -> None:
        self._sums = list(sums)
        self.asked = list[tuple[str, float]]()

    async def since(self, deployment: str, start: float) -> LedgerSum:
        self.asked.append((deployment, start))
        return self._sums.pop(0) if len(self._sums) > 1 else self._sums[0]


async def compared(engine: Tokens, *sums: LedgerSum) -> Reconciliation:
    """Compare one deployment."""
    (reconciliation,) = await Reconciler(
        {"e": URL}, FixedCounts({URL: EngineCount(5.0, engine)}), FixedSums(*sums)
    ).reconcile()
    return reconciliation


@pytest.mark.parametrize(
    ("engine", "verdict"),
    [
        (Tokens(10, 5), "equal"),
        (Tokens(12, 5), "within_bounds"),
        (Tokens(10, 9), "within_bounds"),
        (Tokens(9, 5), "different"),
        (Tokens(10, 4), "different"),
        (Tokens(13, 5), "different"),
        (Tokens(12, 10), "different"),
        (Tokens(9, 9), "different"),
    ],
)
async def test_the_verdict_is_the_worse_one_of_prompts_and_completions(
    engine: Tokens, verdict: ReconciliationVerdict
) -> None:
    assert await compared(
        engine, LedgerSum(3, ("run-1-0",), Tokens(10, 5), Tokens(12, 9))
    ) == Reconciliation(
        deployment="e",
        verdict=verdict,
        start=5.0,
        completed_calls=3,
        uncertain_calls=("run-1-0",),
        prompt_tokens=ReconciledTokens(engine.prompt, 10, 12),
        completion_tokens=ReconciledTokens(engine.completion, 5, 9),
    )


async def test_calls_in_progress_widen_the_bounds() -> None:
    """The lower bound is certain before the engine is read, the upper one possible afterwards."""
    before = LedgerSum(1, (), Tokens(10, 5), Tokens(10, 5))
    after = LedgerSum(3, (), Tokens(30, 15), Tokens(30, 15))
    reconciliation = await compared(Tokens(20, 10), before, after)
    assert (reconciliation.verdict, reconciliation.completed_calls) == ("within_bounds", 3)


async def test_only_calls_since_the_start_of_the_engine_count() -> None:
    """Calls of a previous engine do not belong to its successor."""
    sums = FixedSums(LedgerSum(0, (), Tokens(0, 0), Tokens(0, 0)))
    engines = FixedCounts(
        {URL: EngineCount(5.0, Tokens(0, 0)), "f": EngineCount(6.0, Tokens(0, 0))}
    )
    await Reconciler({"e": URL, "other": "f"}, engines, sums).reconcile()
    assert sums.asked == [("e", 5.0), ("e", 5.0), ("other", 6.0), ("other", 6.0)]


async def test_an_unknown_verdict_has_a_reason() -> None:
    """This covers a provider, a missing engine, and deleted calls."""
    gone = UpstreamUnavailable("http://e/metrics cannot be read", endpoint="http://e")
    sums = FixedSums(LedgerSum(0, (), Tokens(0, 0), Tokens(0, 0), complete=False))
    engines = FixedCounts({"down": gone, URL: EngineCount(5.0, Tokens(0, 0))})
    reconciliations = await Reconciler(
        {"hosted": None, "down": "down", "e": URL}, engines, sums
    ).reconcile()
    assert {reconciliation.verdict for reconciliation in reconciliations} == {"unknown"}
    assert [
        (reconciliation.deployment, reconciliation.prompt_tokens)
        for reconciliation in reconciliations
    ] == [
        ("hosted", None),
        ("down", None),
        ("e", None),
    ]
    provider, down, deleted = (reconciliation.reason for reconciliation in reconciliations)
    assert ("no counters" in provider, down, "deleted" in deleted) == (True, gone.args[0], True)


class Restarted:
    """An engine that has just been restarted whenever it is read."""

    def __init__(self) -> None:
        self._start = 0.0

    async def read(self, _base_url: str) -> EngineCount:
        self._start += 1
        return EngineCount(self._start, Tokens(0, 0))


async def test_an_engine_restarted_meanwhile_is_not_compared() -> None:
    """Its counters no longer cover the calls."""
    sums = FixedSums(LedgerSum(0, (), Tokens(0, 0), Tokens(0, 0)))
    (reconciliation,) = await Reconciler({"e": URL}, Restarted(), sums).reconcile()
    assert (reconciliation.verdict, "restarted" in reconciliation.reason) == ("unknown", True)


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


def counts(text: str) -> VLLMCounts:
    """Return counters read from these metrics, without a request."""

    async def fetch(url: str) -> str:
        assert url == "http://e/metrics"
        return text

    return VLLMCounts(fetch)


@asynccontextmanager
async def metrics(text: str) -> AsyncIterator[str]:
    """Serve these metrics next to an engine's base URL, and return it."""

    async def tell(_request: web.Request) -> web.Response:
        return web.Response(text=text, status=404)

    app = web.Application()
    app.router.add_get("/metrics", tell)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(("created", "start"), [(True, 1763733600.0), (False, 1763733000.0)])
async def test_labels_are_summed_and_the_earliest_start_counts(created: bool, start: float) -> None:
    """All models and engines behind the address are covered.

    Without their own start, that of the process counts.
    """
    text = "".join(
        line + "\n" for line in METRICS.splitlines() if created or "_created" not in line
    )
    assert await counts(text).read(URL) == EngineCount(start, Tokens(1240, 17))


@pytest.mark.parametrize("text", ["", "nothing here", "vllm:prompt_tokens_total 1"])
async def test_a_page_without_the_counters_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(
        UpstreamProtocolError,
        match=r"^retrieval at http://e/metrics: .* has no metric 'vllm:.*only engines with vLLM",
    ):
        await counts(text).read(URL)


async def test_metrics_are_read_next_to_the_base_url_with_any_status(
    session: aiohttp.ClientSession,
) -> None:
    async with metrics(METRICS) as url:
        count = await VLLMCounts(partial(fetch_text, session)).read(url)
    assert count.tokens == Tokens(1240, 17)


async def test_an_unreachable_address_is_unavailable_and_its_password_hidden(
    session: aiohttp.ClientSession,
) -> None:
    async with metrics("") as url:
        gone = url
    with pytest.raises(UpstreamUnavailable, match="cannot be read") as caught:
        await VLLMCounts(partial(fetch_text, session)).read(gone.replace("//", "//user:secret@"))
    assert "secret" not in str(caught.value)
