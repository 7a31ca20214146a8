"""The retries that a role may make."""

from router.calls.limits import RetryBudget
from tests.router.clock import Clock, with_clock


def test_retries_are_a_fifth_of_the_calls_plus_ten() -> None:
    """Holds for failures together and in turn."""

    async def main(clock: Clock) -> None:
        budget = RetryBudget()
        retries = 0
        for _ in range(400):
            budget.called()
            retries += budget.spend() + budget.spend()
        assert retries == 90

    with_clock(main)


def test_the_reserve_grows_by_one_a_second() -> None:
    """Ten is the maximum."""

    async def main(clock: Clock) -> None:
        budget = RetryBudget()
        assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]
        await clock.advance(3.0)
        assert [budget.spend() for _ in range(4)] == [True] * 3 + [False]
        await clock.advance(1000.0)
        assert [budget.spend() for _ in range(11)] == [True] * 10 + [False]

    with_clock(main)
