"""`rolegate sft rollout`: let teacher and student work on the sub-queries of questions (TBSS 3.4).

The backbone answers each question with the teacher as its executor; the student works on every sub-query beside it, and
where its report differs, the run goes on from there to see which answer that leads to. What the teacher found with two
searches it looks for again with one. So `rolegate sft filter` can tell what is worth learning.

Interrupted, the same command goes on where it was, and no model call is paid for twice.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from executor_sft.config_settings import config_settings
from executor_sft.questions import normal_question, read_question_list, read_texts
from executor_sft.rolling_out import CALLS, ROLLOUTS, roll_out_all, roller_of, teacher_of
from executor_sft.rollout_figures import RolloutFigures, figures_of, show_figures
from executor_sft.rollouts import Question
from executor_sft.step import Step
from executor_sft.workbench import workbench
from router.errors import BadConfig
from serving.cli.options import add_config, chosen_config
from serving.config.config import Config
from serving.logs import errors_only


def main(arguments: Sequence[str]) -> int:
    """Run the step; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft rollout", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=Path, required=True, metavar="FILE", help="with right answers, JSON lines")
    parser.add_argument(
        "--exclude", type=Path, nargs="+", action="extend", default=[], metavar="FILE", help="questions to leave out"
    )
    add_common(parser)
    given = parser.parse_args(arguments)
    errors_only()
    config = chosen_config(given)
    settings = settings_of(config, given)
    listed = read_question_list(given.questions)
    excluded = read_texts(given.exclude)
    chosen = [question for question in listed.questions if normal_question(question.text) not in excluded]
    selection = {
        "read": len(listed.questions) + listed.duplicates,
        "duplicates": listed.duplicates,
        "excluded": len(listed.questions) - len(chosen),
        "over_limit": len(chosen) - len(chosen[: given.limit]),
    }
    inputs = {"questions": given.questions, **{f"exclude {path}": path for path in given.exclude}}
    step = Step.begin(given.out, "rollout", inputs, settings)
    return rolled_out(step, config, chosen[: given.limit], selection, given)


def add_common(parser: argparse.ArgumentParser) -> None:
    """What `mine` takes too."""
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the step")
    add_config(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="so many questions at most")
    parser.add_argument("--leave-failed", action="store_true", help="finish without the questions that failed")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="questions in flight (default: 8)")


def settings_of(config: Config, given: argparse.Namespace) -> dict[str, object]:
    """What the step is made with. Raises `BadConfig` where an option cannot be, or where nobody teaches."""
    check_counts(given, "limit", "concurrency")
    also = {"teacher": teacher_of(config), "judge": config.distillation.judge}
    return {"limit": given.limit, **config_settings(config, also)}


def check_counts(given: argparse.Namespace, *names: str) -> None:
    """Raise `BadConfig` where one of these options is given, and less than 1."""
    for name in names:
        if (count := getattr(given, name)) is not None and count < 1:
            raise BadConfig(f"--{name} {count}: must be at least 1.")


def rolled_out(
    step: Step, config: Config, questions: Sequence[Question], selection: Mapping[str, int], given: argparse.Namespace
) -> int:
    """Roll out, unless that was done, and print what came of it; the exit status. Where questions failed, the step is
    not finished, unless it is to be without them.
    """
    console = Console()
    if (finished := step.finished) is not None:
        console.print(f"{step.folder}: was finished before, at {finished.finished_at}", highlight=False)
        show_figures(msgspec.convert(finished.figures, RolloutFigures), console)
        return 0
    if not questions:
        raise BadConfig(f"{step.folder}: no question is left to roll out ({dict(selection)}).")
    figures = asyncio.run(_rolled_out(step.folder, config, questions, selection, given.concurrency))
    show_figures(figures, console)
    if figures.failed and not given.leave_failed:
        console.print("The same command tries those that failed again; --leave-failed goes on without them.")
        return 1
    step.finish(msgspec.to_builtins(figures), [ROLLOUTS])
    return 0


async def _rolled_out(
    folder: Path, config: Config, questions: Sequence[Question], selection: Mapping[str, int], concurrency: int
) -> RolloutFigures:
    console = Console(stderr=True)
    path = folder / ROLLOUTS
    columns = (TextColumn("rolling out"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with workbench(
        config, lambda text: console.print(text, style="dim"), remember=folder / CALLS, teacher=True
    ) as bench:
        roller = roller_of(bench)
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=len(questions))
            failed = await roll_out_all(
                roller, questions, path, concurrency, lambda done: bar.update(task, completed=done)
            )
        assert bench.memory is not None
        spent = bench.memory.spent
    models = teacher_of(config).model, config.roles.execution.model
    return figures_of(path, models, dict(selection), failed, spent)
