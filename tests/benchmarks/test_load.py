"""Load generators."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from rolegate.client import AsyncClient, GatewayError

from benchmarks.load import LoadResult, ask_until, at_rate, in_flight, quantile


async def test_concurrency_is_limited() -> None:
    """No more than `concurrency` items are in flight; results have the order of the items."""
    now = 0
    peak = 0

    async def ask(number: int) -> int:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0.01 * (number % 3))
        now -= 1
        return number * number

    assert await in_flight(ask, range(20), 4) == [number * number for number in range(20)]
    assert peak == 4


async def test_the_rate_does_not_depend_on_answers() -> None:
    """Slow answers do not delay later questions; the same seed gives the same pace."""
    loop = asyncio.get_running_loop()

    async def ask(_number: int) -> float:
        begun = loop.time()
        await asyncio.sleep(0.2)
        return begun

    begun = loop.time()
    times = await at_rate(ask, range(40), 200.0)
    assert times == sorted(times)
    assert times[-1] - begun == pytest.approx(0.2, abs=0.15)


def test_quantiles_are_values_of_the_sample() -> None:
    """Without values they are 0."""
    assert [quantile(range(100), share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert quantile([], 0.5) == 0.0


class Gateway:
    """Client of a gateway that answers or fails."""

    def __init__(self, error: GatewayError | None = None) -> None:
        self.error = error

    async def ask(self, question: str, timeout_s: float, *, request_id: str) -> Any:
        if self.error:
            raise self.error
        usage = [SimpleNamespace(attempts=2, prompt_tokens=10, completion_tokens=5)] * 2
        return SimpleNamespace(run_id="run-1", usage=usage)


@pytest.mark.parametrize(
    ("reason", "code", "outcome", "typed"),
    [
        ("OUT_OF_TIME", grpc.StatusCode.DEADLINE_EXCEEDED, "OUT_OF_TIME", True),
        ("INTERNAL", grpc.StatusCode.INTERNAL, "INTERNAL", False),
        ("", grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED, by the client", True),
        ("", grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE, by the client", False),
    ],
)
async def test_failed_questions_have_the_type_of_their_error(
    reason: str, code: grpc.StatusCode, outcome: str, typed: bool
) -> None:
    """Errors of the gateway and the client's own deadline are typed; other errors are not."""
    ended = await ask_until(
        cast(AsyncClient, Gateway(GatewayError("no", code, reason))), "Who?", 5.0
    )
    assert (ended.outcome, ended.typed, ended.run_id) == (outcome, typed, "")
    assert ended.late_s < 0


async def test_answered_questions_have_attempts_and_tokens() -> None:
    ended = await ask_until(cast(AsyncClient, Gateway()), "Who?", 5.0)
    assert (ended.outcome, ended.run_id, ended.attempts, ended.tokens) == (
        "answered",
        "run-1",
        4,
        30,
    )
    assert LoadResult("OUT_OF_TIME", True, 5.2, 5.0).late_s == pytest.approx(0.2)
