"""What came of rolling out many questions."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from executor_sft.memory import Spent
from executor_sft.rollouts import Rollout, Sample
from executor_sft.search_counts import SearchCounts, search_table


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
