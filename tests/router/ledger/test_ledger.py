"""The ledger: one row for every attempt, and sums that leave nothing out."""

import asyncio
import time
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.amount import NOTHING, Amount
from router.errors import (
    BudgetExhausted,
    QuotaExhausted,
    StoreFailed,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.ledger import Budget, Ledger
from router.ledger.budget import Allowance
from router.ledger.journal import NoJournal
from router.ledger.ledger import Caller
from router.models import Delta, Usage
from router.trace import Call, Price
from router.trace.call import OpenedCall, Outcome, RoleTotal, sum_known, totals
from tests.router.store.stored import call

CALLER = Caller("execution", "small", "http://e", 3, 64)


async def ends(
    ledger: Ledger, *deltas: Delta, error: BaseException | None = None, count: Usage | None = None
) -> None:
    """Run an attempt that takes `deltas` and ends, with an error if given.

    A tokenizer counts its tokens as `count`.
    """

    async def counted(_text: str) -> Usage | None:
        return count

    with pytest.raises(type(error)) if error else nullcontext():
        async with ledger.attempt(CALLER, "first", 1) as attempt:
            attempt.count = counted
            for delta in deltas:
                attempt.take(delta)
            if error:
                raise error


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UpstreamUnavailable("down", endpoint="e"), "unavailable"),
        (UpstreamRefused("no", endpoint="e"), "refused"),
        (UpstreamProtocolError("?", endpoint="e"), "protocol_error"),
        (ValueError("a bug"), "failed"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
    ],
)
async def test_every_attempt_leaves_one_row_and_its_error_is_raised(
    error: BaseException, outcome: Outcome
) -> None:
    ledger = Ledger("run-1", "acme")
    with pytest.raises(type(error)):
        async with ledger.attempt(CALLER, "retry", 2) as attempt:
            raise error
    (call,) = ledger.calls
    assert (call.outcome, call.purpose, call.attempt, call.usage) == (outcome, "retry", 2, None)
    assert (call.role, call.model, call.deployment, call.sub_query_index) == (
        "execution",
        "small",
        "http://e",
        3,
    )
    assert (call.tenant, call.request_id, attempt.request_id) == ("acme", "run-1-0", "run-1-0")


CUT = asyncio.CancelledError()


@pytest.mark.parametrize(
    ("deltas", "error", "usage", "wasted"),
    [
        ([Delta(usage=Usage(7, 5))], None, Usage(7, 5), 0),
        ([], None, None, 0),
        (
            [Delta(usage=Usage(7, 0)), Delta("a", usage=Usage(7, 2)), Delta("b")],
            CUT,
            Usage(7, 2, lower_bound=True),
            9,
        ),
        ([Delta("a", usage=Usage(7, 2, lower_bound=True))], None, Usage(7, 2, lower_bound=True), 0),
    ],
)
async def test_the_usage_of_an_attempt_is_exact_a_lower_bound_or_unknown(
    deltas: list[Delta], error: BaseException | None, usage: Usage | None, wasted: int
) -> None:
    """It is exact if the engine reported it at the end, and a lower bound and wasted if the
    attempt was cut. A stream that was left because the engine ignores stop strings is not
    wasted. Without a report the usage is unknown.
    """
    ledger = Ledger()
    await ends(ledger, *deltas, error=error)
    (call,) = ledger.calls
    assert (call.outcome, call.usage, call.wasted_tokens) == (
        "cancelled" if error else "completed",
        usage,
        wasted,
    )


async def test_the_time_of_the_first_token_is_that_of_text_or_thought() -> None:
    """A usage does not count."""
    ledger = Ledger()
    await ends(ledger, Delta(usage=Usage(7, 0)))
    async with ledger.attempt(CALLER, "first", 1) as attempt:
        attempt.take(Delta(reasoning="hm"))
        first = attempt.first_token_s
        attempt.take(Delta("a"))
    assert [call.first_token_s for call in ledger.calls] == [None, first]
    assert first is not None


async def test_a_cut_attempt_without_a_usage_is_counted_from_its_text() -> None:
    """It is settled once the text is counted. Without text there is nothing to count."""
    texts: list[str] = []

    async def count(text: str) -> Usage | None:
        texts.append(text)
        return Usage(7, 2)

    ledger = Ledger()
    for deltas in ([Delta(reasoning="hm "), Delta("a")], []):
        with pytest.raises(asyncio.CancelledError):
            async with ledger.attempt(CALLER, "first", 1) as attempt:
                attempt.count = count
                for delta in deltas:
                    attempt.take(delta)
                raise asyncio.CancelledError
    assert [call.number for call in ledger.calls] == [1]
    await ledger.close(10)
    assert [(call.number, call.usage) for call in ledger.calls] == [
        (1, None),
        (0, Usage(7, 2, estimated=True)),
    ]
    assert texts == ["hm a"]


async def test_a_tokenizer_that_hangs_leaves_only_its_own_usage_unknown() -> None:
    ledger = Ledger()

    async def hang(_text: str) -> Usage | None:
        await asyncio.Event().wait()
        return None

    for count in (hang, None):
        with pytest.raises(asyncio.CancelledError):
            async with ledger.attempt(CALLER, "first", 1) as attempt:
                attempt.count = count
                attempt.take(Delta("a"))
                raise asyncio.CancelledError
    await ends(ledger, Delta("a"), error=asyncio.CancelledError(), count=Usage(1, 1))
    await ledger.close(0.01)
    assert {call.number: call.usage for call in ledger.calls} == {
        0: None,
        1: None,
        2: Usage(1, 1, estimated=True),
    }
    await ledger.close(0.01)
    assert len(ledger.calls) == 3


async def test_the_cost_follows_the_price_of_the_caller() -> None:
    """Without a price or a usage there is no cost."""
    price = Price(prompt=1.0, completion=10.0, cached=0.5)
    ledger = Ledger()
    for caller, usage in (
        (Caller("answer", "m", "e", price=price), Usage(100, 7, cached_tokens=40)),
        (Caller("answer", "m", "e", price=price), None),
        (Caller("answer", "m", "e"), Usage(100, 7)),
    ):
        async with ledger.attempt(caller, "first", 1) as attempt:
            attempt.usage = usage
    assert [call.nano_usd for call in ledger.calls] == [60_000 + 20_000 + 70_000, None, None]


class Told(NoJournal):
    """A journal that notes its calls and fails where it should."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.told = list[Any]()

    async def open(self, call: OpenedCall) -> None:
        self.told.append(("open", call.number))
        if self.error:
            raise self.error

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        self.told.append(("hold", run_id, amount))
        if self.error:
            raise self.error

    def settle(self, call: Call) -> None:
        self.told.append(("settle", call.number, call.outcome))


async def test_a_call_is_opened_before_it_is_made_and_settled_after_it() -> None:
    """The first of two overlapping attempts to end has the first row."""
    journal = Told()
    ledger = Ledger(journal=journal)
    async with ledger.attempt(CALLER, "first", 1), ledger.attempt(CALLER, "first", 1):
        assert journal.told == [("open", 0), ("open", 1)]
    assert journal.told[2:] == [("settle", 1, "completed"), ("settle", 0, "completed")]
    assert [call.number for call in ledger.calls] == [1, 0]


@pytest.mark.parametrize(
    "error",
    [
        StoreFailed("no disk"),
        QuotaExhausted("no more", retry_after_s=1.0),
        asyncio.CancelledError(),
    ],
)
async def test_a_call_that_cannot_be_opened_is_not_made(error: BaseException) -> None:
    """It leaves no row, and its reservation is returned."""
    journal = Told(error)
    allowance = Allowance(Budget(max_total_tokens=100))
    ledger = Ledger(journal=journal, allowance=allowance)
    with pytest.raises(type(error)):
        async with ledger.attempt(CALLER, "first", 1, Amount(100)):
            raise AssertionError("it is never made")
    assert (ledger.calls, journal.told) == ((), [("open", 0)])
    allowance.reserve("execution", Amount(100))
    assert ledger.refusal is (error if isinstance(error, BudgetExhausted) else None)


async def test_a_hold_reaches_the_quota_of_a_limited_tenant_only() -> None:
    for limited, notes in ((False, []), (True, [("hold", "run", Amount(5))])):
        journal = Told()
        await Ledger(journal=journal, limited=limited).reserve_for_answer(Amount(5))
        assert journal.told == notes


async def test_a_hold_that_the_quota_refuses_leaves_the_one_before() -> None:
    journal = Told()
    allowance = Allowance(Budget(max_total_tokens=100))
    ledger = Ledger(journal=journal, allowance=allowance, limited=True)
    await ledger.reserve_for_answer(Amount(10))
    journal.error = QuotaExhausted("no more", retry_after_s=1.0)
    with pytest.raises(QuotaExhausted):
        await ledger.reserve_for_answer(Amount(90))
    allowance.reserve("execution", Amount(90))


async def test_the_usage_of_an_attempt_replaces_its_reservation() -> None:
    """If it is unknown, the worst case stays charged."""
    allowance = Allowance(Budget(max_total_tokens=300))
    ledger = Ledger(allowance=allowance)
    async with ledger.attempt(CALLER, "first", 1, Amount(100)) as attempt:
        attempt.usage = Usage(7, 5)
    async with ledger.attempt(CALLER, "first", 1, Amount(100)):
        pass
    with pytest.raises(UpstreamRefused):
        async with ledger.attempt(CALLER, "first", 1, Amount(100)):
            raise UpstreamRefused("no", endpoint="e")
    assert [call.charged for call in ledger.calls] == [Amount(12, None), Amount(100), NOTHING]
    allowance.reserve("execution", Amount(300 - 112))
    with pytest.raises(BudgetExhausted):
        allowance.reserve("execution", Amount(1))


COUNTS = st.integers(0, 10**6)
USAGES = st.none() | st.builds(Usage, COUNTS, COUNTS, st.none() | COUNTS, st.none() | COUNTS)


@given(st.lists(st.tuples(st.sampled_from("ab"), USAGES)))
def test_totals_by_role_and_model_count_unknown_usages(
    rows: list[tuple[str, Usage | None]],
) -> None:
    """The order is that of their first calls. An unknown usage is not taken for zero."""
    calls = [call("run-1", model=model, usage=usage, nano_usd=usage and 7) for model, usage in rows]
    summed = totals(calls)
    assert [total.model for total in summed] == list(dict.fromkeys(model for model, _ in rows))
    for total in summed:
        usages = [usage for model, usage in rows if model == total.model]
        known = [usage for usage in usages if usage]
        assert total == RoleTotal(
            role="execution",
            model=total.model,
            attempts=len(usages),
            attempts_without_usage=usages.count(None),
            attempts_without_cost=usages.count(None),
            prompt_tokens=sum(usage.prompt_tokens for usage in known),
            completion_tokens=sum(usage.completion_tokens for usage in known),
            cached_tokens=sum_known([usage.cached_tokens for usage in known]),
            reasoning_tokens=sum_known([usage.reasoning_tokens for usage in known]),
            nano_usd=7 * len(known) or None,
        )


async def test_the_models_of_a_sub_query_are_those_that_completed_a_call() -> None:
    """They count before it is known whether the sub-query is dispatched."""
    ledger = Ledger()
    await ends(ledger)
    ledger.await_decision(3)
    stood_in = replace(CALLER, executor_version="small-2")
    async with ledger.attempt(stood_in, "fallback", 1):
        pass
    await ends(ledger, error=UpstreamRefused("no", endpoint="e"))
    assert ledger.worked_on(3) == {"", "small-2"}
    assert ledger.worked_on(2) == set()


ANY = st.integers(-5, 400) | st.integers(-(10**19), 10**19)
ANY_USAGES = st.builds(Usage, ANY, ANY, st.none() | ANY, st.none() | ANY)


@given(
    st.lists(ANY_USAGES, min_size=1, max_size=3),
    st.booleans(),
    st.integers(1, 300),
    st.sampled_from([0, 350]),
)
async def test_no_usage_costs_more_than_the_worst_case_or_less_than_nothing(
    usages: list[Usage], writes: bool, bound: int, reserved: int
) -> None:
    """An engine's count is corrected, and what remains holds its parts."""
    price = Price(prompt=2.0, completion=8.0, cached=0.1)
    worst = Amount(reserved, price.max_cost(bound, 64)) if reserved else NOTHING
    ledger = Ledger()
    async with ledger.attempt(
        replace(CALLER, prompt_bound=bound, price=price), "first", 1, worst
    ) as attempt:
        attempt.take(Delta("a" if writes else ""))
        for usage in usages:
            attempt.take(Delta(usage=usage))
    (call,) = ledger.calls
    assert call.impossible_usage == (call.usage is None)
    if call.usage is None:
        assert call.charged == worst
        return
    read = call.usage.prompt_tokens
    written = call.usage.completion_tokens
    assert (0 < read <= bound, (1 if writes else 0) <= written <= 64) == (True, True)
    assert 0 <= (call.usage.cached_tokens or 0) <= read
    assert 0 <= (call.usage.reasoning_tokens or 0) <= written
    assert 0 <= (call.nano_usd or 0) <= price.max_cost(bound, 64)
    assert not reserved or call.charged.tokens <= reserved


async def test_finding_the_calls_of_a_sub_query_takes_constant_time() -> None:
    """A run with twenty times as many calls costs no more."""

    async def cost(calls: int) -> float:
        ledger = Ledger()
        for number in range(calls):
            async with ledger.attempt(
                replace(CALLER, sub_query_index=number, executor_version="small"), "first", 1
            ):
                pass
        begun = time.thread_time()
        for number in range(200):
            assert ledger.worked_on(number) == {"small"}
            assert ledger.last_outcome(number) == "completed"
        return time.thread_time() - begun

    assert await cost(4000) < 5 * await cost(200)
