"""Scores, their errors and sums of roles; each figure is worked out by hand."""

import math

import pytest

from benchmarks.study.results import CellRows
from benchmarks.study.scores import compared, metrics_of, micro, pareto_front
from router.ledger.usage import dollars
from tests.benchmarks.study_rows import row, total


def test_mean_at_k_is_clustered_by_question() -> None:
    """Questions of 1, 1/2 and 0 have the mean 1/2; rollouts do not reduce the error."""
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


def test_an_unreadable_judgement_is_in_the_denominator() -> None:
    """Accepted, not accepted, unreadable: one third. Without a judge there is no such score."""
    rows = [row("a"), row("b", accepted=False), row("c", accepted=None)]
    assert micro(rows, "Judge").mean == pytest.approx(1 / 3)
    assert "Judge" not in metrics_of([row(judged=False, accepted=None)])


def test_pairs_are_compared_by_question() -> None:
    """Only questions that both have answered count; equal answers have the difference 0."""
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
        ([(1, 1), (2, 2), (3, 1.5), (4, 3)], [(1, 1), (2, 2), (4, 3)]),
        ([(1, 1), (1, 2)], [(1, 2)]),
        ([(1, 2), (2, 2)], [(1, 2)]),
        ([(1, 2), (1, 2)], [(1, 2)]),
    ],
)
def test_the_pareto_front_has_undominated_points(
    points: list[tuple[float, float]], front: list[tuple[float, float]]
) -> None:
    """A point is on the front if no other is better in one value and at least equal in the
    other.
    """
    assert pareto_front(points) == front


def test_unknown_values_are_left_out_of_sums() -> None:
    """The cost is then unknown, not lower."""
    known = total(tokens=100, cached_tokens=40)
    unknown = total(tokens=50, attempts_without_cost=1, nano_usd=None)
    cell = CellRows("a", "factorized", "b", "e", (row(spent=(known,)), row(spent=(unknown,))))
    (summed,) = cell.spent
    assert (cell.tokens("execution"), cell.tokens("answer")) == (75, 0)
    assert (summed.attempts, summed.prompt_tokens, summed.cached_tokens, summed.nano_usd) == (
        2,
        150,
        40,
        100_000,
    )
    assert dollars([known]) == pytest.approx(1e-4)
    assert dollars([summed]) is None
