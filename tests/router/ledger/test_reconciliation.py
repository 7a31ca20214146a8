"""Whether ledger and engine have counted the same, by doubles of both."""

import pytest

from router.errors import UpstreamUnavailable
from router.ledger.reconciliation import (
    EngineCount,
    FixedCounts,
    LedgerSum,
    ReconciledTokens,
    Reconciler,
    Reconciliation,
    Tokens,
    Verdict,
)

URL = "http://e/v1"


class FixedSums:
    """Tells its sums in turn, the last one for ever."""

    def __init__(self, *sums: LedgerSum) -> None:
        self._sums, self.asked = list(sums), list[tuple[str, float]]()

    async def since(self, deployment: str, start: float) -> LedgerSum:
        self.asked.append((deployment, start))
        return self._sums.pop(0) if len(self._sums) > 1 else self._sums[0]


async def compared(engine: Tokens, *sums: LedgerSum) -> Reconciliation:
    """One deployment."""
    (found,) = await Reconciler({"e": URL}, FixedCounts({URL: EngineCount(5.0, engine)}), FixedSums(*sums)).reconcile()
    return found


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
async def test_verdicts(engine: Tokens, verdict: Verdict) -> None:
    """The worse one of prompts and completions decides."""
    assert await compared(engine, LedgerSum(3, ("run-1-0",), Tokens(10, 5), Tokens(12, 9))) == Reconciliation(
        deployment="e",
        verdict=verdict,
        start=5.0,
        completed_calls=3,
        uncertain_calls=("run-1-0",),
        prompt_tokens=ReconciledTokens(engine.prompt, 10, 12),
        completion_tokens=ReconciledTokens(engine.completion, 5, 9),
    )


async def test_calls_that_go_on_meanwhile() -> None:
    """What was certain before the engine was read, and what is possible after it, are the bounds."""
    before = LedgerSum(1, (), Tokens(10, 5), Tokens(10, 5))
    after = LedgerSum(3, (), Tokens(30, 15), Tokens(30, 15))
    found = await compared(Tokens(20, 10), before, after)
    assert (found.verdict, found.completed_calls) == ("within_bounds", 3)


async def test_since_the_engine_s_start() -> None:
    """Calls of an engine that is gone are not its successor's."""
    sums = FixedSums(LedgerSum(0, (), Tokens(0, 0), Tokens(0, 0)))
    engines = FixedCounts({URL: EngineCount(5.0, Tokens(0, 0)), "f": EngineCount(6.0, Tokens(0, 0))})
    await Reconciler({"e": URL, "other": "f"}, engines, sums).reconcile()
    assert sums.asked == [("e", 5.0), ("e", 5.0), ("other", 6.0), ("other", 6.0)]


async def test_what_cannot_be_compared() -> None:
    """A provider, an engine that is not there, and calls that are not there any more: each says why."""
    gone = UpstreamUnavailable("http://e/metrics cannot be read", endpoint="http://e")
    sums = FixedSums(LedgerSum(0, (), Tokens(0, 0), Tokens(0, 0), complete=False))
    engines = FixedCounts({"down": gone, URL: EngineCount(5.0, Tokens(0, 0))})
    found = await Reconciler({"hosted": None, "down": "down", "e": URL}, engines, sums).reconcile()
    assert {one.verdict for one in found} == {"unknown"}
    assert [(one.deployment, one.prompt_tokens) for one in found] == [("hosted", None), ("down", None), ("e", None)]
    provider, down, deleted = (one.reason for one in found)
    assert ("no counters" in provider, down, "deleted" in deleted) == (True, gone.args[0], True)


class Restarted:
    """An engine that has just been started anew, at every look."""

    def __init__(self) -> None:
        self._start = 0.0

    async def read(self, _base_url: str) -> EngineCount:
        self._start += 1
        return EngineCount(self._start, Tokens(0, 0))


async def test_an_engine_that_is_restarted_meanwhile() -> None:
    """Its counters are no longer those of the calls."""
    sums = FixedSums(LedgerSum(0, (), Tokens(0, 0), Tokens(0, 0)))
    (found,) = await Reconciler({"e": URL}, Restarted(), sums).reconcile()
    assert (found.verdict, "restarted" in found.reason) == ("unknown", True)
