"""Scores of a cell: means over questions of means over rollouts (mean@k), each with its standard error."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from benchmarks.study.result_row import Scored
from executor_sft.evaluate import Difference, paired_difference

Of = Callable[[Scored], float]
METRICS: Mapping[str, Of] = {
    "EM": lambda row: row.exact_match,
    "F1": lambda row: row.f1,
    "EM, folded": lambda row: row.folded_exact_match,
    "F1, folded": lambda row: row.folded_f1,
    "Judge": lambda row: row.accepted is True,
}
"""EM and F1 as the official SQuAD and HotpotQA scripts compute them; folded: punctuation of all scripts and accents
apart; the judge's with its unreadable replies in the denominator.
"""
HEADLINE = ("EM", "F1", "Judge")
"""Those that the paper gives."""


@dataclass(frozen=True, slots=True)
class Score:
    """A mean with its standard error."""

    mean: float
    error: float | None
    """Clustered by question: rollouts of one question are no independent samples. None for a single question."""
    questions: int


def metrics_of(rows: Sequence[Scored]) -> dict[str, Of]:
    """Those that the rows have: without a judge there is no such score."""
    return {name: of for name, of in METRICS.items() if name != "Judge" or any(row.judged for row in rows)}


def headline(rows: Sequence[Scored]) -> list[str]:
    """Those of `HEADLINE` that the rows have."""
    found = metrics_of(rows)
    return [name for name in HEADLINE if name in found]


def by_question(rows: Iterable[Scored], of: Of) -> dict[str, float]:
    """The mean over the rollouts of each question."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row.question_id, []).append(float(of(row)))
    return {question: fmean(found) for question, found in values.items()}


def by_dataset(rows: Iterable[Scored]) -> dict[str, list[Scored]]:
    """The rows of each data set, in the order of their first appearance."""
    found: dict[str, list[Scored]] = {}
    for row in rows:
        found.setdefault(row.dataset, []).append(row)
    return found


def micro(rows: Iterable[Scored], of: Of) -> Score:
    """Over all questions alike, as the paper's "average" is."""
    means = list(by_question(rows, of).values())
    if not means:
        return Score(math.nan, None, 0)
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return Score(fmean(means), error, len(means))


def macro(rows: Iterable[Scored], of: Of) -> Score:
    """The mean of the data sets' means."""
    scores = [micro(found, of) for found in by_dataset(rows).values()]
    errors = [score.error for score in scores if score.error is not None]
    error = math.hypot(*errors) / len(scores) if scores and len(errors) == len(scores) else None
    questions = sum(score.questions for score in scores)
    return Score(fmean(score.mean for score in scores) if scores else math.nan, error, questions)


def compared(new: Iterable[Scored], old: Iterable[Scored], of: Of) -> Difference | None:
    """The difference of two cells over the questions that both have answered; None where there are none."""
    one, other = by_question(new, of), by_question(old, of)
    both = [question for question in one if question in other]
    if not both:
        return None
    return paired_difference([one[question] for question in both], [other[question] for question in both])
