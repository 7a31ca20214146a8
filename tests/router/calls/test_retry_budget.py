"""The retries that a role may make."""

from router.calls.limits import RetryBudget
from tests.router.clock import Clock, with_clock


def test_a_fifth_of_the_calls_and_ten() -> None:
    """However many fail, at once or in turn."""

    async def main(clock: Clock) -> None:
        budget = RetryBudget()
        made = 0
        for _ in range(400):
            budget.called()
            made += budget.spend() + budget.spend()
        assert made == 90

    with_clock(main)


def test_the_reserve_comes_back() -> None:
    """One a second, and never more than ten."""

    async def main(clock: Clock) -> None:
        budget = RetryBudget()
        assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
        await clock.advance(3.0)
        assert [budget.spend() for _ in range(4)] == [True] * 3 + [False]
        await clock.advance(1000.0)
        assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]

    with_clock(main)
