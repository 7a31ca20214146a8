"""Scores, their errors, sums of roles and estimates; each figure worked out by hand."""

import math

import pytest

from benchmarks.study.scores import compared, metrics_of, micro, pareto_front
from benchmarks.study.spending import merged
from benchmarks.study.sweep import estimates
from router.ledger.usage import dollars
from tests.benchmarks.study_rows import row, total


def test_mean_at_k_is_clustered_by_question() -> None:
    """Questions of 1, 1/2 and 0: the mean is 1/2, and the rollouts do not make the error any
    smaller.
    """
    rights = [
        (number, right, rollout) for number, right in enumerate((4, 2, 0)) for rollout in range(4)
    ]
    rows = [
        row(f"q{number}", rollout=rollout, exact_match=rollout < right)
        for number, right, rollout in rights
    ]
    score = micro(rows, "EM")
    assert score.mean == 0.5
    assert score.error == pytest.approx(0.5 / math.sqrt(3))
    assert micro(rows[:1], "EM").error is None


def test_a_reply_that_cannot_be_read_is_in_the_denominator() -> None:
    """Accepted, not accepted, unreadable: one third. Without a judge there is no such score."""
    rows = [row("a"), row("b", accepted=False), row("c", accepted=None)]
    assert micro(rows, "Judge").mean == pytest.approx(1 / 3)
    assert "Judge" not in metrics_of([row(judged=False, accepted=None)])


def test_compared_by_question() -> None:
    """Only questions that both have answered; the same answers differ by nothing at all."""
    rows = [row(f"q{number}", exact_match=number % 2 == 0) for number in range(20)]
    same = compared(rows, [*rows, row("other")], "EM")
    assert same is not None
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    better = compared([row(f"q{number}") for number in range(20)], rows, "EM")
    assert better is not None
    assert 0 < better.low < better.mean == 0.5 < better.high < 1
    assert compared(rows, [row("other")], "EM") is None


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([(1, 1), (2, 2), (3, 1.5), (4, 3)], [0, 1, 3]),
        ([(1, 1), (1, 2)], [1]),
        ([(1, 2), (2, 2)], [0]),
        ([(1, 2), (1, 2)], [0, 1]),
    ],
)
def test_the_pareto_front(points: list[tuple[float, float]], front: list[int]) -> None:
    """A point is on the front if no other is better in one value and at least equal in the
    other.
    """
    assert pareto_front(points) == front


def test_sums_of_roles() -> None:
    """Unknown values are left out of sums; the cost is then unknown, not lower."""
    one = total(tokens=100, cached_tokens=40)
    other = total(tokens=50, attempts_without_cost=1, nano_usd=None)
    (both,) = merged([one, other])
    assert (both.attempts, both.prompt_tokens, both.cached_tokens, both.nano_usd) == (
        2,
        150,
        40,
        100_000,
    )
    assert dollars([one]) == pytest.approx(1e-4)
    assert dollars([both]) is None


def test_an_estimate_goes_by_the_pilot() -> None:
    """Two rollouts took 100 tokens each, and three are left. Of a pair without any row nobody knows
    what it takes, nor of a role whose endpoint does not count; then the sum is not known either.
    """
    done = {"one": [row("a"), row("b")]}
    known, everything = estimates(done, {"one": 3, "done": 0})
    for one in (known, everything):
        assert (one.prompt_tokens, one.completion_tokens) == (300, 0)
        assert one.dollars == pytest.approx(3e-4)
    first, *others = estimates(done, {"one": 3, "other": 4})
    assert first == known
    assert [(one.prompt_tokens, one.dollars) for one in others] == [(None, None)] * 2
    uncounted = row(
        spent=(total(tokens=0, attempts_without_usage=1, attempts_without_cost=1, nano_usd=None),)
    )
    for unknown in estimates({"one": [uncounted]}, {"one": 3}):
        assert (unknown.prompt_tokens, unknown.completion_tokens, unknown.dollars) == (
            None,
            None,
            None,
        )
