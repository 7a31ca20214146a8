"""`rolegate sft evaluate`: executors on the same held-out questions, under the same backbone, answerer and budgets.

Each question is asked several times with each executor, with other seeds; figures are means over all of it (mean@k),
and differences come with a confidence interval from a bootstrap over questions. Every model call is kept in the folder,
so that an interrupted evaluation goes on where it was.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from executor_sft.config_settings import config_settings
from executor_sft.cut_off import check
from executor_sft.evaluation import Answered, Comparison, Evaluation, Executed, Row, evaluation_of
from executor_sft.questions import read_questions
from executor_sft.rollout import check_counts
from executor_sft.rollouts import Question
from executor_sft.step import Step, digest_of
from executor_sft.workbench import Workbench, workbench
from router.errors import BadConfig
from router.protocol.scoring import exact_match, token_f1
from router.search.executor import Executor
from router.trace.values import Trajectory
from serving.cli.options import add_config, chosen_config
from serving.config.config import Config
from serving.engines.versions import MANIFEST
from serving.files import write_atomically
from serving.logs import errors_only

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
