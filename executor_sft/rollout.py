"""`rolegate sft rollout`: let teacher and student work on the sub-queries of questions (TBSS 3.4).

The backbone answers each question with the teacher as its executor; the student works on every sub-query beside it, and
where its report differs, the run goes on from there to see which answer that leads to. What the teacher found with two
searches it looks for again with one. So `rolegate sft filter` can tell what is worth learning.

Interrupted, the same command goes on where it was, and no model call is paid for twice.
"""

import argparse
import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from executor_sft.memory import Spent
from executor_sft.questions import normal_question, read_question_list, read_texts
from executor_sft.rollouts import CALLS, ROLLOUTS, Question, Rollout, Sample, roll_out_all, roller_of, teacher_of
from executor_sft.step import Step, config_settings
from executor_sft.workbench import workbench
from router.errors import BadConfig
from serving.cli.options import add_config, chosen_config
from serving.config.config import Config
from serving.logs import errors_only


class SearchCounts(msgspec.Struct, frozen=True):
    """Of one executor's runs."""

    invocations: int
    """How many runs."""
    searches: int
    """In all of them."""
    none: int
    """Runs without a search."""
    one: int
    more: int
    """Runs with two or more."""

    @classmethod
    def of(cls, searches: Iterable[int]) -> "SearchCounts":
        """`searches`: how many each run made."""
        counts = list(searches)
        ones, nones = counts.count(1), counts.count(0)
        return cls(len(counts), sum(counts), nones, ones, len(counts) - ones - nones)

    @property
    def average(self) -> float:
        """Searches of a run; 0 where there are no runs."""
        return self.searches / max(1, self.invocations)


def search_table(executors: Mapping[str, SearchCounts]) -> Table:
    """A row for each executor."""
    table = Table("executor", title="Searches of each executor run", title_justify="left")
    for column in ("runs", "searches a run", "none", "one", "two or more"):
        table.add_column(column, justify="right")
    for name, counts in executors.items():
        shares = (_share(count, counts.invocations) for count in (counts.none, counts.one, counts.more))
        table.add_row(name, f"{counts.invocations:,}", f"{counts.average:.3f}", *shares)
    return table


def _share(count: int, of: int) -> str:
    return f"{count:,} ({count / max(1, of):.2%})"


class ExecutorFigures(msgspec.Struct, frozen=True):
    """One executor on the sub-queries of the teacher's runs."""

    model: str
    searches: SearchCounts
    no_report: int
    """Runs that came to no report."""
    exact_match: float
    """The share of its runs that lead to a right answer, all else being the teacher's."""


class RolloutFigures(msgspec.Struct, frozen=True):
    """The figures of the manifest."""

    selection: dict[str, int]
    """How many questions there were, and how many were left out, by reason."""
    questions: int
    """Rolled out."""
    failed: dict[str, str]
    """Why questions are not among them, by id."""
    exact_match: float
    """The share of the teacher's runs."""
    correct: float
    """The share that the judge accepts besides, where there is one."""
    unread: int
    """Replies of the judge that could not be read."""
    no_search: int
    """Questions that were answered without a sub-query."""
    teacher: ExecutorFigures
    student: ExecutorFigures
    spent: list[Spent]
    """Each paid call once, whatever was interrupted."""


def figures_of(
    path: Path,
    models: tuple[str, str],
    selection: dict[str, int],
    failed: dict[str, str],
    spent: list[Spent],
) -> RolloutFigures:
    """Count a file of rollouts, one in memory at a time. `models`: the teacher's and the student's."""
    teacher, student, runs = _Tally(), _Tally(), _Tally()
    correct = unread = no_search = 0
    decoder = msgspec.json.Decoder(Rollout)
    with path.open("rb") as file:
        for rollout in map(decoder.decode, file):
            runs.matches += rollout.verdict.exact_match is True
            runs.searches.append(0)
            correct += rollout.verdict.correct
            no_search += not rollout.sub_queries
            unread += rollout.verdict.judged and rollout.verdict.accepted is None
            for work in rollout.sub_queries:
                teacher.count(work.teacher)
                student.count(work.student)
    questions = len(runs.searches)
    return RolloutFigures(
        selection,
        questions,
        failed,
        runs.matches / max(1, questions),
        correct / max(1, questions),
        unread,
        no_search,
        teacher.figures(models[0]),
        student.figures(models[1]),
        spent,
    )


def show_figures(figures: RolloutFigures, console: Console) -> None:
    """Print the tables."""
    executors = {
        f"teacher {figures.teacher.model}": figures.teacher,
        f"student {figures.student.model}": figures.student,
    }
    console.print(search_table({name: executor.searches for name, executor in executors.items()}))
    for name, executor in executors.items():
        console.print(
            f"{name}: EM {executor.exact_match:.3f} over sub-queries (all else the teacher's), "
            f"{executor.no_report} without a report",
            highlight=False,
        )
    console.print(
        f"teacher's runs: EM {figures.exact_match:.3f}, correct {figures.correct:.3f}, of {figures.questions} "
        f"questions; {figures.no_search} without a sub-query, {figures.unread} replies of the judge unread",
        highlight=False,
    )
    console.print(_spent_table(figures.spent))
    chosen = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in figures.selection.items())
    console.print(f"questions: {chosen}", highlight=False)
    for name, reason in figures.failed.items():
        console.print(f"not rolled out: {name}: {reason}", style="yellow", markup=False, highlight=False)


def _spent_table(spent: Sequence[Spent]) -> Table:
    table = Table("role", "model", title="Tokens, each call once", title_justify="left")
    for column in ("calls", "uncounted", "prompt tokens", "written"):
        table.add_column(column, justify="right")
    for one in spent:
        counts = (one.calls, one.calls_without_usage, one.prompt_tokens, one.completion_tokens)
        table.add_row(one.role, one.model, *(f"{count:,}" for count in counts))
    return table


class _Tally:
    """Counts samples."""

    def __init__(self) -> None:
        self.searches: list[int] = []
        self.matches = self.no_report = 0

    def count(self, sample: Sample) -> None:
        self.searches.append(len(sample.execution.searches))
        self.no_report += sample.execution.failed
        self.matches += sample.verdict.exact_match is True

    def figures(self, model: str) -> ExecutorFigures:
        share = self.matches / max(1, len(self.searches))
        return ExecutorFigures(model, SearchCounts.of(self.searches), self.no_report, share)


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
