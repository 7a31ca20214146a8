"""The ledger: one row for every attempt, and sums that hold back nothing."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import UpstreamGarbled, UpstreamRefused, UpstreamUnavailable
from router.ledger import Call, Caller, Ledger, Outcome, RoleTotal, totals
from router.model import Usage

CALLER = Caller("execution", "small", "http://e", 3)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UpstreamUnavailable("down", endpoint="e"), "unavailable"),
        (UpstreamRefused("no", endpoint="e"), "refused"),
        (UpstreamGarbled("?", endpoint="e"), "garbled"),
        (ValueError("a bug"), "failed"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
    ],
)
def test_a_failed_attempt_has_its_row(error: BaseException, outcome: Outcome) -> None:
    """However an attempt ends, it leaves one row, and the error goes on."""
    ledger = Ledger()
    with pytest.raises(type(error)), ledger.attempt(CALLER, "retry", 2):
        raise error
    (call,) = ledger.calls
    assert (call.outcome, call.purpose, call.attempt, call.usage) == (outcome, "retry", 2, None)
    assert (call.role, call.model, call.endpoint, call.sub_query) == ("execution", "small", "http://e", 3)


def test_a_completed_attempt() -> None:
    """Usage that the engine reported at the end is exact."""
    ledger = Ledger()
    with ledger.attempt(CALLER, "first", 1) as attempt:
        attempt.usage = Usage(7, 5)
    (call,) = ledger.calls
    assert (call.outcome, call.usage, call.lower_bound) == ("completed", Usage(7, 5), False)
    assert call.duration_s >= 0


def test_unknown_usage_is_no_lower_bound() -> None:
    """Where the engine did not say, nothing is known, not even a bound."""
    ledger = Ledger()
    with ledger.attempt(CALLER, "first", 1):
        pass
    assert (ledger.calls[0].usage, ledger.calls[0].lower_bound) == (None, False)


def test_the_usage_of_a_cut_attempt_is_a_lower_bound() -> None:
    """What was reported before a cut is kept and marked."""
    ledger = Ledger()
    with pytest.raises(asyncio.CancelledError), ledger.attempt(CALLER, "first", 1) as attempt:
        attempt.usage = Usage(7, 2)
        raise asyncio.CancelledError
    assert (ledger.calls[0].usage, ledger.calls[0].lower_bound) == (Usage(7, 2), True)


def test_the_usage_of_a_stream_that_the_client_left() -> None:
    """A stream that was left because the engine ignores stop strings completes, and is a lower bound all the same."""
    ledger = Ledger()
    with ledger.attempt(CALLER, "first", 1) as attempt:
        attempt.usage = Usage(7, 2, lower_bound=True)
    assert (ledger.calls[0].outcome, ledger.calls[0].lower_bound) == ("completed", True)


def test_rows_stand_in_the_order_in_which_attempts_end() -> None:
    """Of two attempts that overlap, the one that ends first has the first row."""
    ledger = Ledger()
    with ledger.attempt(CALLER, "first", 1), ledger.attempt(Caller("answer", "fixed", "e", None), "first", 1):
        pass
    assert [call.role for call in ledger.calls] == ["answer", "execution"]


def call(model: str, usage: Usage | None) -> Call:
    return Call("execution", model, "e", "first", 1, 0, "completed", usage, False, 0.0, 0.0)


def test_totals() -> None:
    """Sums stand by role and model; what is not known is counted, not taken for zero."""
    calls = (call("b", Usage(10, 1)), call("a", Usage(5, 2, 4, 1)), call("b", None), call("a", Usage(5, 2, None, 0)))
    assert totals(calls) == [
        RoleTotal("execution", "b", 2, 1, 10, 1, None, None),
        RoleTotal("execution", "a", 2, 0, 10, 4, 4, 1),
    ]
    assert totals(()) == []


COUNTS = st.integers(0, 10**6)
USAGES = st.none() | st.builds(Usage, COUNTS, COUNTS, st.none() | COUNTS, st.none() | COUNTS)


@given(st.lists(st.tuples(st.sampled_from("ab"), USAGES)))
def test_totals_lose_nothing(rows: list[tuple[str, Usage | None]]) -> None:
    """The sums over the totals are the sums over the rows."""
    calls = tuple(call(model, usage) for model, usage in rows)
    known = [usage for _, usage in rows if usage]
    summed = totals(calls)
    assert sum(total.attempts for total in summed) == len(rows)
    assert sum(total.attempts_without_usage for total in summed) == len(rows) - len(known)
    assert sum(total.prompt_tokens for total in summed) == sum(usage.prompt_tokens for usage in known)
    assert sum(total.completion_tokens for total in summed) == sum(usage.completion_tokens for usage in known)
    assert sum(total.cached_tokens or 0 for total in summed) == sum(usage.cached_tokens or 0 for usage in known)
