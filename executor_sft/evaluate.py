"""`rolegate sft evaluate`: compare executors, or delegators, on the same held-out questions.

Each question is answered several times with every executor, each time with another seed. Figures
are means over all answers (mean@k). Differences between executors have a 95 % confidence interval
from a bootstrap over questions. Questions with the same `group`, such as those about one world, are
not independent; the bootstrap draws whole groups of them. Completed model calls are kept in the
step's folder, so that an interrupted evaluation resumes.

Questions with columns and right rows ask for tables. Filled tables are scored by cells (item F1),
by rows (row F1) and as a whole (success).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
from msgspec import Meta

from executor_sft.asking import in_flight
from executor_sft.command import Count, StepOptions, show
from executor_sft.questions import Question, read_questions
from executor_sft.rollout import CALLS, check_failures, fill, mean, teacher_config
from executor_sft.runtime import BASE, TEACHER, Runtime, adapter_files, named_adapters, open_runtime
from executor_sft.step import Step, config_settings, write_json
from router.errors import BadConfig
from router.frozen import Frozen
from router.protocol import exact_match
from router.protocol.scoring import token_f1
from router.search import Executor, RunContext
from router.table import Table, table_of
from router.table.scores import table_score
from router.trace import Execution, Trajectory
from serving.config.config import Config, SearchConfig
from serving.config.file import load_config
from serving.terminal import complain, progress_bar

RESULT = "evaluation.json"
_RESAMPLES = 10_000
_BLOCK = 1_000_000
"""`_RESAMPLES`: number of bootstrap samples for one interval. `_BLOCK`: max random numbers to draw
at a time, to limit the use of memory.
"""
_FIGURES = ("exact_match", "f1", "executor_tokens", "tokens")
"""Figures by which executors are compared; each is a field of `Answered` and of `Comparison`."""
_Figure = TypeVar("_Figure")


class Options(StepOptions):
    """Options of the step."""

    config: Path
    questions: Path
    """file of held-out questions with right answers, or of requests for tables with right rows.
    Each line is JSON, such as {"question": "When …?", "answer": "1864"}
    """
    executors: tuple[str, ...] = (BASE,)
    """executors to compare: base (the config's executor), teacher (the model of
    distillation.teacher in the config), or folders of LoRA adapters. All others are compared with
    the first
    """
    delegators: tuple[str, ...] = (BASE,)
    """delegators to compare: base (the config's delegator), or folders of LoRA adapters. Every
    delegator is combined with every executor
    """
    rollouts: Count = 4
    """number of answers to each question with each executor; each answer has a different seed"""
    temperature: Annotated[float, Meta(ge=0)] | None = None
    """sampling temperature of all roles except the judge (default: each role's temperature in the
    config)
    """
    limit: Count | None = None
    """number of questions to use, from the beginning of the file (default: all)"""
    concurrency: Count = 8
    """number of questions to answer at the same time"""


class Difference(Frozen):
    """A mean difference, and the bounds of its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def paired_difference(
    new: Sequence[float],
    old: Sequence[float],
    *,
    groups: Sequence[str] = (),
) -> Difference:
    """Return the mean of `new` minus the mean of `old`, with a 95 % confidence interval from a
    percentile bootstrap over questions.

    `new`, `old`: one score per question, with the questions in the same order. `groups`: the group
    of each question; the bootstrap then draws whole groups, because questions of a group are not
    independent. Raises `ValueError` if the scores differ in number or are empty.
    """
    if not new or len(new) != len(old):
        raise ValueError(
            f"got {len(new)} new and {len(old)} old scores; a paired difference needs the same "
            "number of each, and at least one"
        )
    differences = np.asarray(new, np.float64) - np.asarray(old, np.float64)
    rng = np.random.default_rng(0)
    numbers = np.unique(groups or np.arange(len(differences)), return_inverse=True)[1]
    sums_and_counts = np.stack([np.bincount(numbers, differences), np.bincount(numbers)], axis=1)
    count = len(sums_and_counts)
    # Draw in blocks: one sample at a time is slow, and all together may not fit into memory
    block = max(1, _BLOCK // count)
    sizes = [min(block, _RESAMPLES - start) for start in range(0, _RESAMPLES, block)]
    samples = (sums_and_counts[rng.integers(0, count, (size, count))] for size in sizes)
    totals = np.concatenate([sample.sum(axis=1) for sample in samples])
    means = totals[:, 0] / totals[:, 1]
    low, high = np.quantile(means, (0.025, 0.975))
    return Difference(float(differences.mean()), float(low), float(high))


def by_question(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean value of each question; keys are question ids. `values`: pairs of question id
    and value, any number per question.
    """
    groups = dict[str, list[float]]()
    for question, value in values:
        groups.setdefault(question, []).append(value)
    return {question: fmean(group) for question, group in groups.items()}


class Answered(Frozen):
    """One answer to one question, with scores and the number of tokens used."""

    question_id: str
    answer: str
    exact_match: bool
    f1: float
    accepted: bool | None
    """The judge's verdict; None without a judge, or if its reply could not be parsed."""
    executor_tokens: int
    """Number of prompt and completion tokens of the executor's calls."""
    executions: tuple[Execution, ...]
    tokens: int
    """Number of prompt and completion tokens of all roles but the judge."""
    group: str = ""
    """Name of the question's group; questions of a group are not independent."""


class TableFigures(Frozen, Generic[_Figure]):
    """Figures by which executors are compared on tables. The values are those of one table, means
    over tables, or differences between means.
    """

    item_f1: _Figure
    """F1 of the table's cells against the right cells."""
    row_f1: _Figure
    """F1 of the table's rows against the right rows. A row is right if all its cells are right."""
    success: _Figure
    """1 if the table has exactly the right rows, else 0."""
    sub_agents: _Figure
    """Number of sub-queries for the table; an executor worked on each."""
    tokens: _Figure
    """Prompt and completion tokens of all roles."""


class Filled(TableFigures[float], kw_only=True):
    """Figures of one table that an executor filled."""

    question_id: str
    group: str
    """Name of the question's group; questions of a group are not independent."""


class ExecutorScores(Frozen):
    """Figures of one executor: means over all its answers to all questions (mean@k)."""

    executor: str
    """Name of the executor, followed by the delegator's name if the delegator is an adapter."""
    exact_match: float
    """Share of answers that match a right answer exactly."""
    f1: float
    """Mean token F1 with the right answers."""
    judge: float | None
    """Share of answers that the judge accepts. If the judge's reply could not be parsed, the answer
    counts as refused. None without a judge.
    """
    searches: float
    """Mean number of searches per sub-query."""
    multi_search: float
    """Share of sub-queries with at least two searches."""
    failed: float
    """Share of sub-queries that ended without a report."""
    executor_tokens: float
    """Mean number of tokens of the executor's calls per answer."""
    tokens_per_right_answer: float | None
    """Number of tokens of all calls of the executor, divided by the number of answers that are
    exact matches. None if no answer is an exact match.
    """
    tokens: float
    """Mean number of tokens per answer, of all roles but the judge."""


class Comparison(Frozen):
    """Differences between an executor and the baseline: the executor's mean minus the baseline's
    mean, paired by question.
    """

    executor: str
    baseline: str
    exact_match: Difference
    f1: Difference
    executor_tokens: Difference
    tokens: Difference


class TableEvaluation(Frozen):
    """Content of `evaluation.json`, if executors filled tables."""

    tables: int
    groups: int
    """Number of groups that the bootstrap draws from. A table without a `group` counts as one
    group.
    """
    rollouts: int
    temperature: float | None
    rows: dict[str, TableFigures[float]]
    """Mean figures of each executor, by the executor's name; the baseline comes first."""
    comparisons: dict[str, TableFigures[Difference]]
    """Differences for each executor but the baseline, by the executor's name: the executor's mean
    minus the baseline's mean, paired by table.
    """


class Evaluation(Frozen):
    """Content of `evaluation.json`, if executors answered questions."""

    questions: int
    rollouts: int
    """Number of answers to each question with each executor."""
    max_turns: int
    max_searches: int
    temperature: float | None
    """Sampling temperature of all roles but the judge; None if the config's temperatures were used.
    """
    rows: tuple[ExecutorScores, ...]
    """Figures of each executor; the baseline comes first."""
    comparisons: tuple[Comparison, ...]
    """Comparisons with the baseline, one for each other executor."""


def evaluation_of(
    answered: Mapping[str, Sequence[Answered]],
    search: SearchConfig,
    rollouts: int,
    temperature: float | None,
) -> Evaluation:
    """Return the figures of all executors, in the given order.

    `answered`: all answers with each executor; keys are executors' names, the first is the
    baseline. All executors must have answered the same questions, but the number of answers may
    differ. `search`, `rollouts`, `temperature`: recorded in the result.
    """
    (baseline, old), *others = answered.items()
    return Evaluation(
        len({answer.question_id for answer in old}),
        rollouts,
        search.max_turns,
        search.max_searches,
        temperature,
        tuple(_scores(name, answers) for name, answers in answered.items()),
        tuple(
            Comparison(name, baseline, *(_difference(new, old, figure) for figure in _FIGURES))
            for name, new in others
        ),
    )


def table_evaluation_of(
    filled: Mapping[str, Sequence[Filled]],
    rollouts: int,
    temperature: float | None,
) -> TableEvaluation:
    """Return the figures of all executors on tables. `filled`: the tables that each executor
    filled; keys are executors' names, the first is the baseline. `rollouts`, `temperature`:
    recorded in the result.
    """
    figures = TableFigures.__struct_fields__
    means = {
        name: TableFigures(
            *(mean(getattr(table, figure) for table in tables) for figure in figures)
        )
        for name, tables in filled.items()
    }
    (_, old), *others = filled.items()
    differences = {
        name: TableFigures(*(_difference(new, old, figure) for figure in figures))
        for name, new in others
    }
    return TableEvaluation(
        len({table.question_id for table in old}),
        len({table.group or table.question_id for table in old}),
        rollouts,
        temperature,
        means,
        differences,
    )


def _scores(executor: str, answered: Sequence[Answered]) -> ExecutorScores:
    runs = list(chain.from_iterable(answer.executions for answer in answered))
    judged = any(answer.accepted is not None for answer in answered)
    right = sum(answer.exact_match for answer in answered)
    tokens = sum(answer.executor_tokens for answer in answered)
    return ExecutorScores(
        executor,
        right / len(answered),
        mean(answer.f1 for answer in answered),
        mean(bool(answer.accepted) for answer in answered) if judged else None,
        mean(len(run.searches) for run in runs),
        mean(len(run.searches) >= 2 for run in runs),
        mean(run.failed for run in runs),
        tokens / len(answered),
        tokens / right if right else None,
        mean(answer.tokens for answer in answered),
    )


def _difference(
    new: Sequence[Answered] | Sequence[Filled],
    old: Sequence[Answered] | Sequence[Filled],
    figure: str,
) -> Difference:
    """Return the mean of a figure in `new` minus its mean in `old`, paired by question. The figure
    is first averaged over the answers to each question.
    """
    new_scores, old_scores = (
        by_question((answer.question_id, float(getattr(answer, figure))) for answer in answered)
        for answered in (new, old)
    )
    groups = {answer.question_id: answer.group or answer.question_id for answer in new}
    return paired_difference(
        list(new_scores.values()),
        [old_scores[question] for question in new_scores],
        groups=[groups[question] for question in new_scores],
    )


def run(options: Options) -> int:
    """Run the step and return the exit status."""
    config = load_config(options.config)
    questions, _ = read_questions(options.questions, tables=True, rows_needed=True)
    if len({question.table is None for question in questions}) > 1:
        raise BadConfig(f"{options.questions}: has questions and tables; write them to two files.")
    executors = named_adapters(options.executors, (BASE, TEACHER))
    delegators = named_adapters(options.delegators)
    inputs = {
        "questions": options.questions,
        **adapter_files(executors),
        **adapter_files(delegators),
    }
    teacher = teacher_config(config) if TEACHER in executors else None
    settings = {
        **options.settings("rollouts", "temperature", "limit"),
        "executors": list(executors),
        "delegators": list(delegators),
        **config_settings(config, {"judge": config.distillation.judge, "teacher": teacher}),
    }
    step = Step.begin(options.out, "evaluate", inputs, settings)
    if (manifest := step.finished) is None:
        evaluation = asyncio.run(
            _evaluated(config, options, questions[: options.limit], executors, delegators)
        )
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
    work: Callable[[Runtime, Executor, Question], Awaitable[Any]] | None = None,
) -> dict[str, list[Any]]:
    """Answer every question with every combination of executor and delegator, and return the
    answers of each combination; keys are names of combinations.

    `executors`: `base`, `teacher`, or the names of loaded adapters. `delegators`: `base`, or the
    names of loaded adapters. The name of a combination is the executor's name, followed by the
    delegator's name if the delegator is an adapter. `rollouts`: number of answers to each question,
    each with another seed. `concurrency`: max questions at the same time. `work`: returns the
    answer to a question, by default an `Answered`.

    Raises `BadConfig` if `executors` has `teacher` and the config has no teacher. Raises
    `UpstreamError` if an endpoint fails, and `OutOfTime` if a run's time is up: a failed run says
    nothing about the executor.
    """
    answered = dict[str, list[Any]]()
    total = len(executors) * len(delegators) * rollouts * len(questions)
    with progress_bar() as bar:
        task = bar.add_task("evaluating", total=total)
        for number in range(rollouts):
            for executor, delegator in product(executors, delegators):
                seeded = runtime.sampled(number, temperature).with_versions(executor, delegator)
                role = None
                if executor == TEACHER:
                    role = seeded.role("execution", teacher_config(seeded.config))
                ask = partial(work or _answered, seeded, seeded.executor(role))
                name = executor if delegator == BASE else f"{executor}, {delegator}"
                answered.setdefault(name, []).extend(
                    await in_flight(ask, questions, concurrency, lambda: bar.advance(task)),
                )
    return answered


async def _evaluated(
    config: Config,
    options: Options,
    questions: Sequence[Question],
    executors: Mapping[str, Path | None],
    delegators: Mapping[str, Path | None],
) -> Evaluation | TableEvaluation:
    async with open_runtime(
        config,
        complain,
        cache=options.out / CALLS,
        adapters=executors,
        delegators=delegators,
        teacher=TEACHER in executors,
    ) as runtime:
        answered = await answers(
            runtime,
            list(executors),
            questions,
            delegators=list(delegators),
            rollouts=options.rollouts,
            temperature=options.temperature,
            concurrency=options.concurrency,
            work=_filled if questions[0].table else None,
        )
    if questions[0].table:
        return table_evaluation_of(answered, options.rollouts, options.temperature)
    return evaluation_of(answered, config.search, options.rollouts, options.temperature)


async def _answered(runtime: Runtime, executor: Executor, question: Question) -> Answered:
    context = runtime.context()
    trajectory: Trajectory = await runtime.search(executor).run(question.text, context)
    check_failures(trajectory, 0, context)
    accepted = None
    if runtime.judge is not None:
        accepted = await runtime.judge.accepts(
            question.text,
            question.golds,
            trajectory.answer,
            runtime.context().ledger,
        )

    tokens = _tokens(context)
    return Answered(
        question.id,
        trajectory.answer,
        exact_match(trajectory.answer, question.golds),
        token_f1(trajectory.answer, question.golds),
        accepted,
        tokens["execution"],
        trajectory.executions,
        tokens.total(),
        question.group,
    )


async def _filled(runtime: Runtime, executor: Executor, question: Question) -> Filled:
    table, sub_agents, tokens = await filled_table(runtime, executor, question)
    rows = [[cell.value for cell in row.cells] for row in table.rows]
    score = table_score(table.schema, rows, question.rows)
    return Filled(
        score.item_f1,
        score.row_f1,
        score.success,
        sub_agents,
        tokens,
        question_id=question.id,
        group=question.group,
    )


async def filled_table(
    runtime: Runtime, executor: Executor, question: Question
) -> tuple[Table, int, int]:
    """Fill the table that `question` asks for. Return (table, number of sub-queries, tokens of all
    roles). Raises `UpstreamError` or `OutOfTime` if the table could not be filled.
    """
    assert question.table
    wide, _ = runtime.tables("factorized", executor)
    context = runtime.context(wide.limits.timeout_s)
    run = await fill(wide, question.table, context)
    return table_of(run), len(run.executions), _tokens(context).total()


def _tokens(context: RunContext) -> Counter[str]:
    """Return the number of tokens of each role in a run, prompts and completions together."""
    tokens: Counter[str] = Counter()
    for call in context.ledger.calls:
        if call.usage is not None:
            tokens[call.role] += call.usage.total_tokens
    return tokens
