"""The allowance: calls in any order keep within a request's own budget."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.amount import NOTHING, Amount
from router.errors import BudgetExhausted
from router.ledger import Budget
from router.ledger.budget import Allowance
from router.trace import RoleName

ROLES: Sequence[RoleName] = ("delegation", "execution", "answer")


def test_any_limit_makes_an_allowance_limited() -> None:
    assert not Allowance().limited
    for budget in (
        Budget(max_total_tokens=0),
        Budget(max_nano_usd=0),
        Budget(role_tokens={"answer": 0}),
    ):
        assert Allowance(budget).limited


@pytest.mark.parametrize(
    ("budget", "amount", "why"),
    [
        (Budget(max_total_tokens=10), Amount(11), "budget.max_total_tokens: 10 tokens"),
        (Budget(max_nano_usd=10), Amount(1, 11), "budget.max_cost_nano_usd: 0.000000010 dollars"),
        (Budget(max_nano_usd=10), Amount(1, None), "budget.max_cost_nano_usd"),
        (
            Budget(role_tokens={"execution": 10}),
            Amount(11),
            "budget.role_budgets: 10 tokens for execution",
        ),
    ],
)
def test_a_refusal_takes_nothing(budget: Budget, amount: Amount, why: str) -> None:
    """It names the limit, and the rest stays available."""
    allowance = Allowance(budget)
    with pytest.raises(BudgetExhausted, match=why):
        allowance.reserve("execution", amount)
    allowance.reserve("execution", Amount(10, 10))


def test_a_cap_binds_its_own_role_only() -> None:
    allowance = Allowance(Budget(role_tokens={"execution": 10}))
    allowance.reserve("answer", Amount(1000))
    allowance.reserve("execution", Amount(10))
    with pytest.raises(BudgetExhausted):
        allowance.reserve("execution", Amount(1))


def test_only_the_answerer_uses_the_hold() -> None:
    """Each of its attempts may use it."""
    allowance = Allowance(Budget(max_total_tokens=100))
    allowance.reserve_for_answer(Amount(40))
    with pytest.raises(BudgetExhausted):
        allowance.reserve("execution", Amount(61))
    allowance.reserve("execution", Amount(60))
    allowance.reserve("answer", Amount(40))
    allowance.settle("answer", Amount(40), NOTHING)
    allowance.reserve("answer", Amount(40))


def test_a_hold_replaces_the_one_before() -> None:
    """A refused hold changes nothing. The answerer's own cap counts."""
    allowance = Allowance(Budget(max_total_tokens=100, role_tokens={"answer": 70}))
    allowance.reserve_for_answer(Amount(70))
    with pytest.raises(BudgetExhausted, match="role_budgets"):
        allowance.reserve_for_answer(Amount(71))
    with pytest.raises(BudgetExhausted):
        allowance.reserve("execution", Amount(31))
    allowance.reserve_for_answer(Amount(10))
    allowance.reserve("execution", Amount(90))


AMOUNTS = st.builds(Amount, st.integers(0, 40), st.integers(0, 40))
LIMITS = st.none() | st.integers(0, 100)
BUDGETS = st.builds(
    Budget, LIMITS, LIMITS, st.dictionaries(st.sampled_from(ROLES), st.integers(0, 60), max_size=3)
)


@given(
    BUDGETS,
    st.lists(st.tuples(st.sampled_from(ROLES), AMOUNTS, st.floats(0, 1), AMOUNTS), max_size=30),
)
def test_no_limit_is_ever_exceeded(
    budget: Budget, calls: list[tuple[RoleName, Amount, float, Amount]]
) -> None:
    """Calls reserve, hold and settle random amounts in any order."""
    allowance = Allowance(budget)
    spent = NOTHING
    by_role = Counter[RoleName]()
    under_way = []
    for role, worst, share, held in calls:
        try:
            allowance.reserve_for_answer(held)
            allowance.reserve(role, worst)
        except BudgetExhausted:
            continue
        under_way.append(
            (role, worst, Amount(int(worst.tokens * share), int((worst.nano_usd or 0) * share)))
        )
        if share < 0.5:
            first, reserved, real = under_way.pop(0)
            allowance.settle(first, reserved, real)
            spent += real
            by_role[first] += real.tokens
        reserved = sum((amount for _, amount, _ in under_way), NOTHING)
        assert (
            budget.max_total_tokens is None or (spent + reserved).tokens <= budget.max_total_tokens
        )
        assert (
            budget.max_nano_usd is None or ((spent + reserved).nano_usd or 0) <= budget.max_nano_usd
        )
        for name, cap in budget.role_tokens.items():
            assert (
                by_role[name]
                + sum(
                    amount.tokens
                    for reserving_role, amount, _ in under_way
                    if reserving_role == name
                )
                <= cap
            )
