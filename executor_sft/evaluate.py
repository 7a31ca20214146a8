"""`rolegate sft evaluate`: compare executors on the same held-out questions.

Every executor answers each question several times, with other seeds. Figures are means over all
answers (mean@k); differences have a confidence interval from a bootstrap over questions. Model
calls are kept in the folder, so that an interrupted evaluation resumes.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from executor_sft.asking import in_flight
from executor_sft.command import Count, StepOptions, show
from executor_sft.questions import Question, read_questions
from executor_sft.rollout import CALLS, check_failures, mean
from executor_sft.runtime import (
    BASE,
    TEACHER,
    Runtime,
    adapter_files,
    named_adapters,
    open_runtime,
    teacher_config,
)
from executor_sft.step import Step, config_settings, write_json
from router.protocol import exact_match
from router.protocol.scoring import token_f1
from router.search import Executor
from router.trace import Execution, Trajectory
from serving.config.config import Config
from serving.config.file import load_config
from serving.terminal import complain, progress_bar

RESULT = "evaluation.json"
_RESAMPLES = 10_000
_FIGURES = ("exact_match", "f1", "executor_tokens", "tokens")
"""Figures that are compared: fields of `Answered` and of `Comparison`."""


class Options(StepOptions, frozen=True, kw_only=True):
    """Options of the step."""

    config: Path
    questions: Path
    """held-out questions, JSON lines"""
    executors: tuple[str, ...] = (BASE,)
    """base (the config's model), teacher, or adapters' folders; the first is the baseline"""
    rollouts: Count = 4
    """answers to each question"""
    temperature: Annotated[float, Meta(ge=0)] | None = None
    """temperature of all roles (default: the config's)"""
    concurrency: Count = 8
    """questions in flight"""


class Difference(msgspec.Struct, frozen=True):
    """A mean difference with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def paired_difference(new: Sequence[float], old: Sequence[float], seed: int = 0) -> Difference:
    """Return the difference of two means, with an interval by the percentile bootstrap.

    `new`, `old`: scores by question, in the same order. Raises `ValueError` if they differ in
    length or are empty.
    """
    if not new or len(new) != len(old):
        raise ValueError(f"{len(new)} and {len(old)} scores cannot be paired")
    differences = np.asarray(new, np.float64) - np.asarray(old, np.float64)
    rng = np.random.default_rng(seed)
    count = len(differences)
    means = [differences[rng.integers(0, count, count)].mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return Difference(float(differences.mean()), float(low), float(high))


def by_question(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean value of each question. `values`: pairs of question id and value."""
    groups: dict[str, list[float]] = {}
    for question, value in values:
        groups.setdefault(question, []).append(value)
    return {question: fmean(group) for question, group in groups.items()}


class Answered(msgspec.Struct, frozen=True):
    """One rollout of a question."""

    question_id: str
    answer: str
    exact_match: bool
    f1: float
    accepted: bool | None
    """The judge's verdict; None without a judge, or if its reply could not be parsed."""
    executor_tokens: int
    """Prompt and completion tokens of the executor's calls."""
    executions: tuple[Execution, ...]
    tokens: int


class ExecutorScores(msgspec.Struct, frozen=True):
    """Figures of an executor: means over all rollouts of all questions (mean@k)."""

    executor: str
    exact_match: float
    f1: float
    judge: float | None
    """Share of answers that the judge accepts; unparsed replies count as refusals. None without a
    judge.
    """
    searches: float
    """Searches per executor run."""
    multi_search: float
    """Share of executor runs with at least two searches."""
    failed: float
    """Share of executor runs without a report."""
    executor_tokens: float
    """Tokens of the executor's calls per question."""
    tokens_per_right_answer: float | None
    """None if no answer was right."""
    tokens: float
    """Tokens of all roles per question."""


class Comparison(msgspec.Struct, frozen=True):
    """Differences of an executor from the first one, paired by question."""

    executor: str
    baseline: str
    exact_match: Difference
    f1: Difference
    executor_tokens: Difference
    tokens: Difference


class Evaluation(msgspec.Struct, frozen=True):
    """Content of `evaluation.json`."""

    questions: int
    rollouts: int
    """Answers to each question by each executor."""
    rows: tuple[ExecutorScores, ...]
    comparisons: tuple[Comparison, ...]
    """Comparison of every other executor with the first."""


def evaluation_of(
    answered: Mapping[str, Sequence[Answered]],
    rollouts: int,
) -> Evaluation:
    """Return the figures of all executors, in the given order. All must have answered the same
    questions; the number of answers may differ.
    """
    (baseline, old), *others = answered.items()
    return Evaluation(
        len({answer.question_id for answer in old}),
        rollouts,
        tuple(_scores(name, answers) for name, answers in answered.items()),
        tuple(
            Comparison(name, baseline, *(_difference(new, old, figure) for figure in _FIGURES))
            for name, new in others
        ),
    )


def _scores(executor: str, answered: Sequence[Answered]) -> ExecutorScores:
    runs = list(chain.from_iterable(answer.executions for answer in answered))
    judged = any(answer.accepted is not None for answer in answered)
    means = {name: mean(getattr(answer, name) for answer in answered) for name in _FIGURES}
    right = means["exact_match"]
    return ExecutorScores(
        executor=executor,
        judge=mean(bool(answer.accepted) for answer in answered) if judged else None,
        searches=mean(len(run.searches) for run in runs),
        multi_search=mean(len(run.searches) >= 2 for run in runs),
        failed=mean(run.failed for run in runs),
        tokens_per_right_answer=means["executor_tokens"] / right if right else None,
        **means,
    )


def _difference(new: Sequence[Answered], old: Sequence[Answered], figure: str) -> Difference:
    """Return the difference of a figure's means over the rollouts of each question."""
    new_scores, old_scores = (
        by_question((answer.question_id, float(getattr(answer, figure))) for answer in answered)
        for answered in (new, old)
    )
    return paired_difference(
        list(new_scores.values()), [old_scores[question] for question in new_scores]
    )


def run(options: Options) -> int:
    """Run the step and return the exit status."""
    config = load_config(options.config)
    executors = named_adapters(options.executors, (BASE, TEACHER))
    inputs = {"questions": options.questions, **adapter_files(executors)}
    teacher = teacher_config(config) if TEACHER in executors else None
    settings = {
        **options.settings("rollouts", "temperature"),
        "executors": list(executors),
        **config_settings(config, {"judge": config.distillation.judge, "teacher": teacher}),
    }
    step = Step.begin(options.out, "evaluate", inputs, settings)
    if (manifest := step.finished) is None:
        evaluation = asyncio.run(_evaluated(config, options, executors))
        write_json(options.out / RESULT, evaluation)
        manifest = step.finish(evaluation, [RESULT])
    show(manifest.figures, as_json=options.json)
    return 0


async def answers(
    runtime: Runtime,
    executors: Sequence[str],
    questions: Sequence[Question],
    *,
    rollouts: int,
    temperature: float | None = None,
    concurrency: int = 8,
) -> dict[str, list[Answered]]:
    """Return the answers of each executor to all questions.

    `executors`: `base`, `teacher`, or the names of loaded adapters. Raises `BadConfig` without a
    teacher, and `UpstreamError` or `OutOfTime` if an endpoint fails, which says nothing about the
    executor.
    """
    answered: dict[str, list[Answered]] = {name: [] for name in executors}
    with progress_bar() as bar:
        task = bar.add_task("evaluating", total=len(executors) * rollouts * len(questions))
        for number in range(rollouts):
            for name in executors:
                seeded = runtime.sampled(number, temperature)
                executor = seeded.named_executor(name)
                ask = partial(_answered, seeded, executor)
                answered[name] += await in_flight(
                    ask, questions, concurrency, lambda: bar.advance(task)
                )
    return answered


async def _evaluated(
    config: Config,
    options: Options,
    executors: Mapping[str, Path | None],
) -> Evaluation:
    questions, _ = read_questions(options.questions)
    async with open_runtime(
        config,
        complain,
        cache=options.out / CALLS,
        adapters=executors,
        teacher=TEACHER in executors,
    ) as runtime:
        answered = await answers(
            runtime,
            list(executors),
            questions,
            **options.settings("rollouts", "temperature", "concurrency"),
        )
    return evaluation_of(answered, options.rollouts)


async def _answered(runtime: Runtime, executor: Executor, question: Question) -> Answered:
    context = runtime.context()
    trajectory: Trajectory = await runtime.search(executor).run(question.text, context)
    check_failures(trajectory, 0, context)
    accepted = None
    if runtime.judge is not None:
        ledger = runtime.context().ledger
        answer = trajectory.answer
        accepted = await runtime.judge.accepts(question.text, question.golds, answer, ledger)

    tokens: Counter[str] = Counter()
    for call in context.ledger.calls:
        if call.usage is not None:
            tokens[call.role] += call.usage.total_tokens
    return Answered(
        question.id,
        trajectory.answer,
        exact_match(trajectory.answer, question.golds),
        token_f1(trajectory.answer, question.golds),
        accepted,
        tokens["execution"],
        trajectory.executions,
        tokens.total(),
    )
