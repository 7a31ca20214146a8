"""Compute the scores of a cell, which is one combination of models and topology, with standard
errors. A score is first averaged over the answers to each question, then over the questions
(mean@k).
"""

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
"""Metrics of the TBSS paper, by name. EM and F1 are computed as in the official scripts of SQuAD
and HotpotQA. An answer counts as wrong if the judge's reply could not be parsed.
"""


class Score(NamedTuple):
    """A mean score with its standard error, on a scale from 0 to 1."""

    mean: float
    error: float | None
    """Standard error, clustered by question, because answers to the same question are not
    independent. None if there is only one question.
    """


def metrics_of(rows: Iterable[QuestionResult]) -> list[str]:
    """Return the names of the metrics of the results: all of `METRICS`, but `Judge` only if a judge
    was asked.
    """
    judged = any(row.judged for row in rows)
    return [name for name in METRICS if judged or name != "Judge"]


def micro(rows: Iterable[QuestionResult], metric: str) -> Score:
    """Return the mean of a metric over all questions. As in the paper, the questions of all data
    sets have the same weight.
    """
    means = list(_by_question(rows, metric).values())
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return Score(fmean(means), error)


def compared(
    new: Iterable[QuestionResult], old: Iterable[QuestionResult], metric: str
) -> Difference | None:
    """Return the mean of a metric in the results `new` minus its mean in the results `old`, over
    the questions that both have. Return None if they have no question in common.
    """
    new_scores = _by_question(new, metric)
    old_scores = _by_question(old, metric)
    both = [question for question in new_scores if question in old_scores]
    if not both:
        return None
    return paired_difference(
        [new_scores[question] for question in both], [old_scores[question] for question in both]
    )


def pareto_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points `(cost, score)` that are Pareto-optimal: no cheaper point has an equal or
    higher score. They are ordered by cost, and each occurs once.
    """
    front = list[tuple[float, float]]()
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def _by_question(rows: Iterable[QuestionResult], metric: str) -> dict[str, float]:
    """Return the mean of a metric over the answers to each question, by question id."""
    return by_question((row.question_id, float(METRICS[metric](row))) for row in rows)
