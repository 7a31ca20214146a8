"""`rolegate sft evaluate`: executors on the same held-out questions, under the same backbone, answerer and budgets.

Each question is asked several times with each executor, with other seeds; figures are means over all of it (mean@k),
and differences come with a confidence interval from a bootstrap over questions. Every model call is kept in the folder,
so that an interrupted evaluation goes on where it was.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from executor_sft.questions import read_questions
from executor_sft.rollout import check_counts
from executor_sft.rollouts import Question, check
from executor_sft.step import Step, config_settings, digest_of
from executor_sft.workbench import Workbench, workbench
from router.errors import BadConfig
from router.protocol.scoring import exact_match, token_f1
from router.search.executor import Executor
from router.trace.values import Trajectory
from serving.cli.options import add_config, chosen_config
from serving.config.config import Config, SearchConfig
from serving.engines.versions import MANIFEST
from serving.files import write_atomically
from serving.logs import errors_only

_RESAMPLES = 10_000
_DRAWN_AT_ONCE = 1_000_000


class Difference(msgspec.Struct, frozen=True):
    """A mean difference with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def paired_difference(new: Sequence[float], old: Sequence[float], seed: int = 0) -> Difference:
    """Of the means of `new` and `old`, both by question in the same order, by the percentile bootstrap over questions.
    Raises `ValueError` where they differ in length or are empty.
    """
    if not new or len(new) != len(old):
        raise ValueError(f"{len(new)} and {len(old)} scores cannot be paired")
    differences = np.asarray(new, np.float64) - np.asarray(old, np.float64)
    rng, count = np.random.default_rng(seed), len(differences)
    means = [
        differences[rng.integers(0, count, (min(block, _RESAMPLES - done), count))].mean(axis=1)
        for block in [max(1, _DRAWN_AT_ONCE // count)]
        for done in range(0, _RESAMPLES, block)
    ]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Difference(float(differences.mean()), float(low), float(high))


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


BASE, TEACHER = "base", "teacher"
RESULT = "evaluation.json"
_WEIGHTS = "adapter_model.safetensors"


def main(arguments: Sequence[str]) -> int:
    """Run the step; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE", help="held-out questions, JSON lines")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the result goes")
    add_config(parser)
    parser.add_argument(
        "--executors",
        nargs="+",
        default=[BASE],
        metavar="WHICH",
        help=f"{BASE} (the config's model), {TEACHER}, or the folder of an adapter; others are compared with the first",
    )
    parser.add_argument("--rollouts", type=int, default=4, metavar="K", help="of each question (default: 4)")
    parser.add_argument("--temperature", type=float, metavar="T", help="of all roles (default: the config's)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first questions only")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="questions in flight (default: 8)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(arguments)
    errors_only()
    check_counts(given, "rollouts", "limit", "concurrency")
    config = chosen_config(given)
    executors = [which if which in (BASE, TEACHER) else adapter_name(Path(which)) for which in given.executors]
    if len(set(executors)) < len(executors):
        raise BadConfig(f"--executors {' '.join(given.executors)}: names the same one twice.")
    folders = {
        name: Path(which) for name, which in zip(executors, given.executors, strict=True) if name not in (BASE, TEACHER)
    }
    inputs = {"questions": given.questions} | {name: folder / _WEIGHTS for name, folder in folders.items()}
    settings = {key: getattr(given, key) for key in ("rollouts", "temperature", "limit")}
    also = {"judge": config.distillation.judge}
    if TEACHER in executors:
        also["teacher"] = config.distillation.teacher
    settings |= {"executors": executors, **config_settings(config, also)}
    step = Step.begin(given.out, "evaluate", inputs, settings)
    if step.finished is None:
        questions = read_questions(given.questions)[: given.limit]
        evaluation = asyncio.run(_evaluated(config, questions, given, executors, folders))
        write_atomically(given.out / RESULT, msgspec.json.format(msgspec.json.encode(evaluation), indent=2) + b"\n")
        step.finish({"questions": len(questions)}, [RESULT])
    encoded = (given.out / RESULT).read_bytes()
    if given.json:
        print(encoded.decode(), end="")
    else:
        show(msgspec.json.decode(encoded, type=Evaluation), Console())
    return 0


def adapter_name(folder: Path) -> str:
    """Under what an adapter is loaded: its version's name, or that of its training with a part of its digest, as an
    engine that goes on running may still hold an older one. Raises `BadConfig` where there is none.
    """
    path = folder.resolve()
    return path.name if (path / MANIFEST).exists() else f"{path.parent.name}-{digest_of(path / _WEIGHTS)[:8]}"


async def answers(
    bench: Workbench,
    executors: Sequence[str],
    questions: Sequence[Question],
    *,
    rollouts: int,
    temperature: float | None = None,
    concurrency: int = 8,
    console: Console | None = None,
) -> dict[str, list[Answered]]:
    """What all executors answer to all questions, by executor: `base`, `teacher`, or adapters by the name under which
    they are loaded. Raises `UpstreamError` and `OutOfTime` where an endpoint does not do its part, which says nothing
    of an executor, and `BadConfig` where there is no teacher.
    """
    gate, answered = asyncio.Semaphore(concurrency), {name: list[Answered]() for name in executors}
    with Progress(console=console or Console(stderr=True)) as progress:
        bar = progress.add_task("evaluating", total=len(executors) * rollouts * len(questions))

        async def one(seeded: Workbench, executor: Executor, question: Question) -> Answered:
            async with gate:
                result = await _answered(seeded, executor, question)
                progress.advance(bar)
                return result

        for number in range(rollouts):
            seeded = bench.sampled(number, temperature)
            for name in executors:
                executor = _executor(seeded, name)
                try:
                    async with asyncio.TaskGroup() as group:
                        tasks = [group.create_task(one(seeded, executor, question)) for question in questions]
                except ExceptionGroup as failed:
                    raise failed.exceptions[0] from None
                answered[name] += [task.result() for task in tasks]
    return answered


def show(evaluation: Evaluation, console: Console) -> None:
    """Print the tables."""
    title = f"{evaluation.questions} questions, mean@{evaluation.rollouts}, K = {evaluation.max_turns} turns"
    table = Table("executor", title=f"{title}, {evaluation.max_searches} searches", title_justify="left")
    for column in ("EM", "F1", "judge", "searches", "two or more", "failed", "tokens", "per right answer"):
        table.add_column(column, justify="right")
    for one in evaluation.rows:
        table.add_row(*_cells(one))
    console.print(table)
    for comparison in evaluation.comparisons:
        console.print(_compared(comparison))


async def _evaluated(
    config: Config,
    questions: Sequence[Question],
    given: argparse.Namespace,
    executors: Sequence[str],
    folders: Mapping[str, Path],
) -> Evaluation:
    console = Console(stderr=True)
    remember = given.out / "calls.jsonl"
    async with workbench(
        config,
        lambda step: console.print(step, style="dim"),
        remember=remember,
        adapters=folders,
        teacher=TEACHER in executors,
    ) as bench:
        answered = await answers(
            bench,
            executors,
            questions,
            rollouts=given.rollouts,
            temperature=given.temperature,
            concurrency=given.concurrency,
            console=console,
        )
    return evaluation_of(answered, config.search, given.rollouts, given.temperature)


def _executor(bench: Workbench, name: str) -> Executor:
    execution, teacher = bench.config.roles.execution, bench.config.distillation.teacher
    if name == TEACHER:
        if teacher is None:
            raise BadConfig("distillation.teacher: is not set; name the model that teaches there.")
        return bench.executor(bench.role("execution", teacher))
    return bench.executor(bench.role("execution", execution, version=None if name == BASE else name))


async def _answered(bench: Workbench, executor: Executor, question: Question) -> Answered:
    context = bench.context()
    found: Trajectory = await bench.search(executor).run(question.text, context)
    check(found, 0, context)
    right = exact_match(found.answer, question.golds)
    accepted = None
    if bench.judge is not None:
        accepted = await bench.judge.accepts(question.text, question.golds, found.answer, bench.context().ledger)
    usages = [call.usage for call in context.ledger.calls if call.role == "execution" and call.usage is not None]
    executed = (Executed(run.sub_query, len(run.searches), run.failed) for run in found.executions)
    return Answered(
        question.id,
        found.answer,
        right,
        token_f1(found.answer, question.golds),
        accepted,
        sum(usage.total_tokens for usage in usages),
        tuple(executed),
    )


def _cells(one: Row) -> list[str]:
    shares = (one.exact_match, one.f1, one.judge)
    return [
        one.executor,
        *("–" if share is None else f"{share:.3f}" for share in shares),
        f"{one.searches:.3f}",
        f"{one.multi_search:.4f}",
        f"{one.failed:.4f}",
        f"{one.executor_tokens:.0f}",
        "–" if one.tokens_per_right_answer is None else f"{one.tokens_per_right_answer:.0f}",
    ]


def _compared(comparison: Comparison) -> str:
    match, tokens = comparison.exact_match, comparison.executor_tokens
    return (
        f"{comparison.executor} beside {comparison.beside}: "
        f"EM {match.mean:+.3f} ({match.low:+.3f} to {match.high:+.3f}), "
        f"executor tokens {tokens.mean:+.0f} ({tokens.low:+.0f} to {tokens.high:+.0f}) a question; 95 % intervals"
    )
