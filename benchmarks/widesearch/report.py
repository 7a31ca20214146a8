"""The report: scores of all tasks, by language and size, from the mean and the best of each task's runs."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import get_args

import msgspec

from benchmarks.study.report import ReportTable
from benchmarks.study.scores import Score
from benchmarks.widesearch.scoring import RuleSet, Scores
from benchmarks.widesearch.tasks import Task
from serving.files import replacing, write_atomically

PAGE, PICTURE, LINES = "report.md", "report.png", "scores.csv"
_FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {"Avg": fmean, "Max": max}
_NOTES = {
    "official": "As WideSearch's own evaluator scores, its bugs included; the success of Max@N is Pass@N.",
    "strict": "By what columns hold. A key counts once; cells of missing columns are wrong, other columns ignored.",
}
_METRICS = {name.replace("_", " ").replace("f1", "F1"): name for name in Scores.__struct_fields__ if name != "why"}
_DRAWN = {"success": "#1b7837", "row F1": "#b2182b", "item F1": "#2166ac"}
_BAR = 0.27


class Row(msgspec.Struct, frozen=True):
    """One response, by each set of rules."""

    task: Task
    run: int
    scores: dict[RuleSet, Scores]


def tables_of(rows: Sequence[Row], runs: int) -> list[ReportTable]:
    """A table for each set of rules and each way to fold the runs of a task: means over tasks, with standard errors."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.task.instance_id, []).append(row)
    groups = {"all": [*by_task.values()]}
    for kind in ("language", "size"):
        for own in sorted(
            by_task.values(), key=lambda own: (kind == "language" and own[0].task.language, own[0].task.rows)
        ):
            groups.setdefault(getattr(own[0].task, kind), []).append(own)
    tables = []
    for rules in get_args(RuleSet):
        for name, fold in _FOLDS.items():
            lines = [
                {"tasks": group, "number": len(tasks)}
                | {
                    title: _mean([fold([getattr(row.scores[rules], metric) for row in own]) for own in tasks])
                    for title, metric in _METRICS.items()
                }
                for group, tasks in groups.items()
            ]
            title = f"{rules.capitalize()}, {name}@{runs}"
            tables.append(ReportTable.of(f"{rules}-{name}".lower(), title, lines, note=_NOTES[rules]))
    return tables


def _mean(values: Sequence[float]) -> Score:
    return Score(fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None)


def write_report(folder: Path, title: str, lead: str, tables: Sequence[ReportTable], rows: Sequence[Row]) -> None:
    """Write the tables as Markdown, with a picture, and the scores of each response as CSV."""
    _draw(folder / PICTURE, title, {table.key: table for table in tables})
    page = [f"# {title}", lead, f"![Bars are Avg@N, marks Max@N]({PICTURE})", *(table.markdown() for table in tables)]
    write_atomically(folder / PAGE, "\n\n".join(page).encode())
    with replacing(folder / LINES) as unfinished, unfinished.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["instance_id", "language", "size", "rows", "run", "rules", *Scores.__struct_fields__])
        for row in rows:
            task = row.task.instance_id, row.task.language, row.task.size, row.task.rows, row.run
            lines.writerows([*task, rules, *msgspec.structs.astuple(scores)] for rules, scores in row.scores.items())


def _draw(path: Path, title: str, tables: Mapping[str, ReportTable]) -> None:
    from benchmarks.study.pictures import new_figure, saved  # they need matplotlib

    figure = new_figure(11, 4.2)
    for panel, rules in enumerate(get_args(RuleSet), 1):
        average, best = tables[f"{rules}-avg"], tables[f"{rules}-max"]
        axes = figure.add_subplot(1, 2, panel, title=average.title, ylabel="points")
        for place, (metric, color) in enumerate(_DRAWN.items()):
            column, at = average.columns.index(metric), [_BAR * place + group for group in range(len(average.rows))]
            axes.bar(at, [100 * row[column].mean for row in average.rows], _BAR, color=color, label=metric)
            axes.plot(at, [100 * row[column].mean for row in best.rows], "_", color="black")
        axes.set_xticks([_BAR + group for group in range(len(average.rows))], [row[0] for row in average.rows])
        axes.tick_params(axis="x", labelrotation=30)
        axes.legend(fontsize=7)
    figure.suptitle(title, fontsize=9)
    saved(figure, path)
