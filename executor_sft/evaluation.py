"""How executors did on the same questions, under the same backbone and answerer (TBSS 4.1)."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from executor_sft.bootstrap import Difference, paired_difference
from serving.config.config import SearchConfig


class Executed(msgspec.Struct, frozen=True):
    """One executor run."""

    sub_query: str
    searches: int
    failed: bool


class Answered(msgspec.Struct, frozen=True):
    """One rollout of a question."""

    question_id: str
    answer: str
    exact_match: bool
    f1: float
    accepted: bool | None
    """What the judge says; None where there is none, or its reply could not be read."""
    executor_tokens: int
    """Prompt and completion tokens of its executor calls."""
    executed: tuple[Executed, ...]


class Row(msgspec.Struct, frozen=True):
    """An executor's figures, means over all rollouts of all questions (mean@k)."""

    executor: str
    exact_match: float
    f1: float
    judge: float | None
    """The share that the judge accepts, unreadable replies in the denominator; None without a judge."""
    searches: float
    """For each executor run."""
    multi_search: float
    """The share of executor runs with two searches or more."""
    failed: float
    """The share of executor runs without a report."""
    executor_tokens: float
    """For each question."""
    tokens_per_right_answer: float | None
    """None where no answer was right."""


class Comparison(msgspec.Struct, frozen=True):
    """An executor beside the first one, paired by question."""

    executor: str
    beside: str
    exact_match: Difference
    f1: Difference
    executor_tokens: Difference


class Evaluation(msgspec.Struct, frozen=True):
    """`evaluation.json`."""

    questions: int
    rollouts: int
    """For each question and executor."""
    max_turns: int
    max_searches: int
    temperature: float | None
    """Of all roles; None for the config's own."""
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    """Every other executor beside the first."""


def row(executor: str, answered: Sequence[Answered]) -> Row:
    """Count everything."""
    runs = [run for one in answered for run in one.executed]
    judged = [bool(one.accepted) for one in answered] if any(one.accepted is not None for one in answered) else None
    right, tokens = sum(one.exact_match for one in answered), sum(one.executor_tokens for one in answered)
    return Row(
        executor,
        fmean(one.exact_match for one in answered),
        fmean(one.f1 for one in answered),
        fmean(judged) if judged else None,
        fmean(run.searches for run in runs) if runs else 0.0,
        fmean(run.searches >= 2 for run in runs) if runs else 0.0,
        fmean(run.failed for run in runs) if runs else 0.0,
        tokens / len(answered),
        tokens / right if right else None,
    )


def compare(new: tuple[str, Sequence[Answered]], old: tuple[str, Sequence[Answered]]) -> Comparison:
    """Both have answered the same questions, any number of times."""

    def difference(of: str) -> Difference:
        one, other = _by_question(new[1], of), _by_question(old[1], of)
        return paired_difference([one[name] for name in one], [other[name] for name in one])

    return Comparison(new[0], old[0], difference("exact_match"), difference("f1"), difference("executor_tokens"))


def evaluation_of(
    answered: Mapping[str, Sequence[Answered]], search: SearchConfig, rollouts: int, temperature: float | None
) -> Evaluation:
    """The figures of all executors, in the order given; all have answered the same questions."""
    rows = tuple(row(name, found) for name, found in answered.items())
    first, *others = answered.items()
    return Evaluation(
        len({one.question_id for one in first[1]}),
        rollouts,
        search.max_turns,
        search.max_searches,
        temperature,
        rows,
        tuple(compare(other, first) for other in others),
    )


def _by_question(answered: Sequence[Answered], of: str) -> dict[str, float]:
    """The mean of a figure over the rollouts of each question."""
    values: dict[str, list[float]] = {}
    for one in answered:
        values.setdefault(one.question_id, []).append(float(getattr(one, of)))
    return {question: fmean(figures) for question, figures in values.items()}
