"""Scores of a cell: means over questions of means over rollouts (mean@k), with standard errors."""

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, stdev
from typing import NamedTuple

from benchmarks.study.results import QuestionResult
from executor_sft.evaluate import Difference, by_question, paired_difference

METRICS: Mapping[str, Callable[[QuestionResult], float]] = {
    "EM": lambda row: row.exact_match,
    "F1": lambda row: row.f1,
    "Judge": lambda row: row.accepted is True,
}
"""Metrics of the paper. EM and F1 are computed as by the official SQuAD and HotpotQA scripts;
unreadable replies of the judge count as wrong.
"""


class Score(NamedTuple):
    """Mean and standard error, as shares of 1."""

    mean: float
    error: float | None
    """Standard error clustered by question, as rollouts of one question are not independent. None
    for a single question.
    """


def metrics_of(rows: Iterable[QuestionResult]) -> list[str]:
    """Return the metrics of rows; `Judge` only if a judge was asked."""
    judged = any(row.judged for row in rows)
    return [name for name in METRICS if judged or name != "Judge"]


def micro(rows: Iterable[QuestionResult], metric: str) -> Score:
    """Return the mean over all questions, equally weighted as in the paper."""
    means = list(_by_question(rows, metric).values())
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return Score(fmean(means), error)


def compared(
    new: Iterable[QuestionResult], old: Iterable[QuestionResult], metric: str
) -> Difference | None:
    """Compare two cells over the questions that both have answered; None without any."""
    new_scores = _by_question(new, metric)
    old_scores = _by_question(old, metric)
    both = [question for question in new_scores if question in old_scores]
    if not both:
        return None
    return paired_difference(
        [new_scores[question] for question in both], [old_scores[question] for question in both]
    )


def pareto_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto-optimal `(cost, score)` points, each once, in the order of cost."""
    front: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def _by_question(rows: Iterable[QuestionResult], metric: str) -> dict[str, float]:
    return by_question((row.question_id, float(METRICS[metric](row))) for row in rows)
