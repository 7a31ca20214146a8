"""Scores of a cell: means over questions of means over rollouts (mean@k), each with its
standard error.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from benchmarks.study.results import Row
from executor_sft.evaluate import Difference, by_question, paired_difference

METRICS: Mapping[str, Callable[[Row], float]] = {
    "EM": lambda row: row.exact_match,
    "F1": lambda row: row.f1,
    "Judge": lambda row: row.accepted is True,
}
"""Those that the paper gives: EM and F1 as the official SQuAD and HotpotQA scripts compute them;
the judge's with its unreadable replies in the denominator.
"""


class Score(NamedTuple):
    """A mean with its standard error, shares of 1."""

    mean: float
    error: float | None
    """Clustered by question: rollouts of one question are no independent samples. None for a
    single question.
    """


def metrics_of(rows: Iterable[Row]) -> list[str]:
    """Name those that the rows have: without a judge there is no such score."""
    judged = any(row.judged for row in rows)
    return [name for name in METRICS if judged or name != "Judge"]


def micro(rows: Iterable[Row], metric: str) -> Score:
    """Average over all questions alike, as the paper does."""
    means = list(_by_question(rows, metric).values())
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return Score(fmean(means), error)


def compared(new: Iterable[Row], old: Iterable[Row], metric: str) -> Difference | None:
    """Compare two cells over the questions that both have answered; None where there are none."""
    one = _by_question(new, metric)
    other = _by_question(old, metric)
    both = [question for question in one if question in other]
    if not both:
        return None
    return paired_difference(
        [one[question] for question in both], [other[question] for question in both]
    )


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Choose the `(cost, score)` that no other beats at the same cost or less with a higher score,
    or at the same score with less; in the order of their cost. Of equal ones, all.
    """
    front: list[int] = []
    for index in sorted(
        range(len(points)), key=lambda index: (points[index][0], -points[index][1])
    ):
        if (
            not front
            or points[index][1] > points[front[-1]][1]
            or points[index] == points[front[-1]]
        ):
            front.append(index)
    return front


def _by_question(rows: Iterable[Row], metric: str) -> dict[str, float]:
    return by_question((row.question_id, float(METRICS[metric](row))) for row in rows)
