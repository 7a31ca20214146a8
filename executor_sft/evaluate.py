"""`rolegate sft evaluate`: executors, and delegators, on the same held-out questions, with all else
the same.

Each question is asked several times with each executor, with other seeds; figures are means over
all of it (mean@k), and differences come with a confidence interval from a bootstrap over questions.
Every model call is kept in the folder, so that an interrupted evaluation goes on where it was.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from executor_sft.asking import in_flight
from executor_sft.command import StepOptions, show
from executor_sft.questions import Question, read_questions
from executor_sft.rollout import CALLS, check_failures, teacher_config
from executor_sft.runtime import BASE, TEACHER, Runtime, adapter_files, named_adapters, open_runtime
from executor_sft.step import Step, config_settings, write_json
from router.protocol import exact_match
from router.protocol.scoring import token_f1
from router.search import Executor
from router.trace import Execution, Trajectory
from serving.config.config import Config, SearchConfig
from serving.config.file import load_config
from serving.terminal import complain, progress_bar

RESULT = "evaluation.json"
_RESAMPLES = 10_000
_DRAWN_AT_ONCE = 1_000_000


class Options(StepOptions, frozen=True, kw_only=True):
    """Options of the step."""

    config: Path
    questions: Annotated[Path, Meta(description="held-out questions, JSON lines")]
    executors: Annotated[
        tuple[str, ...],
        Meta(
            description=f"{BASE} (the config's model), {TEACHER}, or adapters' folders; others are "
            "compared with the "
            "first"
        ),
    ] = (BASE,)
    delegators: Annotated[
        tuple[str, ...], Meta(description=f"{BASE}, or adapters' folders; each with each executor")
    ] = (BASE,)
    rollouts: Annotated[int, Meta(ge=1, description="of each question")] = 4
    temperature: (
        Annotated[float, Meta(ge=0, description="of all roles; without it, the config's")] | None
    ) = None
    limit: Annotated[int, Meta(ge=1, description="the first questions only")] | None = None
    concurrency: Annotated[int, Meta(ge=1, description="questions in flight")] = 8


class Difference(msgspec.Struct, frozen=True):
    """A mean difference with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def paired_difference(new: Sequence[float], old: Sequence[float], seed: int = 0) -> Difference:
    """Of the means of `new` and `old`, both by question in the same order, by the percentile
    bootstrap over questions. Raises `ValueError` where they differ in length or are empty.
    """
    if not new or len(new) != len(old):
        raise ValueError(f"{len(new)} and {len(old)} scores cannot be paired")
    differences = np.asarray(new, np.float64) - np.asarray(old, np.float64)
    rng = np.random.default_rng(seed)
    count = len(differences)
    block = max(1, _DRAWN_AT_ONCE // count)
    means = [
        differences[rng.integers(0, count, (min(block, _RESAMPLES - done), count))].mean(axis=1)
        for done in range(0, _RESAMPLES, block)
    ]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Difference(float(differences.mean()), float(low), float(high))


def by_question(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Each question's mean, of values with its id."""
    found: dict[str, list[float]] = {}
    for question, value in values:
        found.setdefault(question, []).append(value)
    return {question: fmean(its) for question, its in found.items()}


class Answered(msgspec.Struct, frozen=True):
    """One rollout of a question."""

    question_id: str
    answer: str
    exact_match: bool
    f1: float
    accepted: bool | None
    """The judge's verdict; None where there is none, or its reply could not be read."""
    executor_tokens: int
    """Prompt and completion tokens of its executor calls."""
    executions: tuple[Execution, ...]
    tokens: int


class Scores(msgspec.Struct, frozen=True):
    """An executor's figures, means over all rollouts of all questions (mean@k)."""

    executor: str
    exact_match: float
    f1: float
    judge: float | None
    """Share that the judge accepts, unreadable replies in the denominator; None without a judge."""
    searches: float
    """For each executor run."""
    multi_search: float
    """Share of executor runs with two searches or more."""
    failed: float
    """Share of executor runs without a report."""
    executor_tokens: float
    """For each question."""
    tokens_per_right_answer: float | None
    """None where no answer was right."""
    tokens: float
    """Of all roles, for each question."""


class Comparison(msgspec.Struct, frozen=True):
    """An executor less the first one, paired by question."""

    executor: str
    baseline: str
    exact_match: Difference
    f1: Difference
    executor_tokens: Difference
    tokens: Difference


class Evaluation(msgspec.Struct, frozen=True):
    """`evaluation.json`."""

    questions: int
    rollouts: int
    """For each question and executor."""
    max_turns: int
    max_searches: int
    temperature: float | None
    """Of all roles; None for the config's own."""
    rows: tuple[Scores, ...]
    comparisons: tuple[Comparison, ...]
    """Every other executor with the first."""


def evaluation_of(
    answered: Mapping[str, Sequence[Answered]],
    search: SearchConfig,
    rollouts: int,
    temperature: float | None,
) -> Evaluation:
    """The figures of all executors, in the order given; all have answered the same questions,
    any number of times.
    """
    (baseline, old), *others = answered.items()
    return Evaluation(
        len({one.question_id for one in old}),
        rollouts,
        search.max_turns,
        search.max_searches,
        temperature,
        tuple(_scores(name, found) for name, found in answered.items()),
        tuple(
            Comparison(
                name,
                baseline,
                *(
                    _difference(found, old, figure)
                    for figure in ("exact_match", "f1", "executor_tokens", "tokens")
                ),
            )
            for name, found in others
        ),
    )


def _scores(executor: str, answered: Sequence[Answered]) -> Scores:
    runs = [run for one in answered for run in one.executions]
    judged = any(one.accepted is not None for one in answered)
    right = sum(one.exact_match for one in answered)
    tokens = sum(one.executor_tokens for one in answered)
    return Scores(
        executor,
        fmean(one.exact_match for one in answered),
        fmean(one.f1 for one in answered),
        fmean(bool(one.accepted) for one in answered) if judged else None,
        fmean([len(run.searches) for run in runs] or [0]),
        fmean([len(run.searches) >= 2 for run in runs] or [0]),
        fmean([run.failed for run in runs] or [0]),
        tokens / len(answered),
        tokens / right if right else None,
        fmean(one.tokens for one in answered),
    )


def _difference(new: Sequence[Answered], old: Sequence[Answered], figure: str) -> Difference:
    """Of a figure's means over the rollouts of each question."""
    first, second = (
        by_question((one.question_id, float(getattr(one, figure))) for one in answered)
        for answered in (new, old)
    )
    return paired_difference(list(first.values()), [second[question] for question in first])


def run(options: Options) -> int:
    """Run the step; the exit status."""
    config = load_config(options.config)
    executors = named_adapters(options.executors, (BASE, TEACHER))
    delegators = named_adapters(options.delegators)
    inputs = {
        "questions": options.questions,
        **adapter_files(executors),
        **adapter_files(delegators),
    }
    teacher = teacher_config(config) if TEACHER in executors else None
    settings = {
        **{key: getattr(options, key) for key in ("rollouts", "temperature", "limit")},
        "executors": list(executors),
        "delegators": list(delegators),
        **config_settings(config, {"judge": config.distillation.judge, "teacher": teacher}),
    }
    step = Step.begin(options.out, "evaluate", inputs, settings)
    if (manifest := step.finished) is None:
        evaluation = asyncio.run(_evaluated(config, options, executors, delegators))
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
    delegators: Sequence[str] = (BASE,),
    temperature: float | None = None,
    concurrency: int = 8,
) -> dict[str, list[Answered]]:
    """The answers of all executors with all delegators to all questions, by executor, and delegator
    where that is an adapter: `base`, `teacher`, or adapters by the name under which they are
    loaded. Raises `UpstreamError` and `OutOfTime` where an endpoint does not do its part, which
    says nothing of an executor, and `BadConfig` where there is no teacher.
    """
    pairs = {
        name if led == BASE else f"{name}, {led}": (name, led)
        for name in executors
        for led in delegators
    }
    answered = {pair: list[Answered]() for pair in pairs}
    with progress_bar() as bar:
        task = bar.add_task("evaluating", total=len(pairs) * rollouts * len(questions))
        for number in range(rollouts):
            for pair, (name, led) in pairs.items():
                seeded = runtime.sampled(number, temperature).with_versions(name, led)
                taught = (
                    seeded.role("execution", teacher_config(seeded.config))
                    if name == TEACHER
                    else None
                )
                ask = partial(_answered, seeded, seeded.executor(taught))
                answered[pair] += await in_flight(
                    ask, questions, concurrency, lambda: bar.advance(task)
                )
    return answered


async def _evaluated(
    config: Config,
    options: Options,
    executors: Mapping[str, Path | None],
    delegators: Mapping[str, Path | None],
) -> Evaluation:
    questions = read_questions(options.questions)[0][: options.limit]
    opened = partial(
        open_runtime, config, complain, cache=options.out / CALLS, teacher=TEACHER in executors
    )
    async with opened(adapters=executors, delegators=delegators) as runtime:
        answered = await answers(
            runtime,
            list(executors),
            questions,
            delegators=list(delegators),
            rollouts=options.rollouts,
            temperature=options.temperature,
            concurrency=options.concurrency,
        )
    return evaluation_of(answered, config.search, options.rollouts, options.temperature)


async def _answered(runtime: Runtime, executor: Executor, question: Question) -> Answered:
    context = runtime.context()
    found: Trajectory = await runtime.search(executor).run(question.text, context)
    check_failures(found, 0, context)
    accepted = None
    if runtime.judge is not None:
        accepted = await runtime.judge.accepts(
            question.text, question.golds, found.answer, runtime.context().ledger
        )
    usages = [
        (call.role, call.usage.total_tokens)
        for call in context.ledger.calls
        if call.usage is not None
    ]
    return Answered(
        question.id,
        found.answer,
        exact_match(found.answer, question.golds),
        token_f1(found.answer, question.golds),
        accepted,
        sum(tokens for role, tokens in usages if role == "execution"),
        found.executions,
        sum(tokens for _, tokens in usages),
    )
