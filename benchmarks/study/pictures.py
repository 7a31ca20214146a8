"""The pictures of a report."""

from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from statistics import fmean

from benchmarks.study import published
from benchmarks.study.figures import Point, Sweep, draw_frontier, draw_sensitivity
from benchmarks.study.picture import Picture
from benchmarks.study.report_table import ReportTable
from benchmarks.study.scores import HEADLINE, METRICS, headline, metrics_of, micro
from benchmarks.study.study_data import CellRows, RoleSweep, Study


def pictures(study: Study, folder: Path) -> list[Picture]:
    """Draw those for which there are rows, into `folder`."""
    return [*_sensitivity(study, folder), *_frontiers(study, folder)]


def published_pictures(folder: Path) -> list[Picture]:
    """The paper's Fig. 2, drawn from its Tables 2 and 3; the points of its Fig. 3 are not all printed."""
    untuned = [row[0] for row in published.TABLE_2.rows]
    execution = _published(published.TABLE_3, "DeepSeek-V4-Flash", [str(name) for name in untuned])
    delegation = _published(published.TABLE_2, "Qwen3-1.7B", [str(name) for name in untuned])
    path = folder / "published-figure-2.png"
    draw_sensitivity(path, execution, delegation, execution.models, {})
    return [Picture(path, "Published (TBSS Fig. 2, drawn from its Tables 2 and 3): capacity sensitivity of each role")]


def _published(table: ReportTable, fixed: str, models: Sequence[str]) -> Sweep:
    rows = {str(row[0]): [float(value) for value in row[-3:] if isinstance(value, float)] for row in table.rows}
    points = {name: tuple((rows[model][place], nan) for model in models) for place, name in enumerate(HEADLINE)}
    return Sweep(fixed, tuple(models), points)


def _sensitivity(study: Study, folder: Path) -> Iterator[Picture]:
    """The smallest executor stays while backbones grow, the largest backbone while executors do."""
    delegations, executions = study.sweeps(backbones=True), study.sweeps(backbones=False)
    both = ((one, other) for one in executions for other in delegations if one.max_turns == other.max_turns)
    if (first := next(both, None)) is None:
        return
    execution, delegation = first
    path = folder / "figure-2.png"
    draw_sensitivity(
        path,
        _sweep(study, execution, backbones=False),
        _sweep(study, delegation, backbones=True),
        list(study.plan.parameters),
        study.plan.parameters,
    )
    yield Picture(path, "Fig. 2: capacity sensitivity of each role, micro averages with 95 % intervals; ours")


def _sweep(study: Study, sweep: RoleSweep, *, backbones: bool) -> Sweep:
    names, cells = headline(sweep.cells[0].rows), sweep.cells
    points = {name: tuple(_points(cell, name) for cell in cells) for name in names}
    models = tuple(cell.backbone if backbones else cell.executor for cell in cells)
    return Sweep(study.labelled(sweep.fixed, sweep.max_turns), models, points)


def _frontiers(study: Study, folder: Path) -> Iterator[Picture]:
    """Under each backbone that has several executors, and over everything."""
    score = "Judge" if all("Judge" in metrics_of(cell.rows) for cell in study.cells) else "EM"
    for number, sweep in enumerate(study.sweeps(backbones=False), 1):
        backbone = study.labelled(sweep.fixed, sweep.max_turns)
        path = folder / (f"figure-3-{number}.png" if number > 1 else "figure-3.png")
        points = [Point(cell.executor, _executor_tokens(cell), *_points(cell, score)) for cell in sweep.cells]
        draw_frontier(path, points, "executor tokens a question", score, f"backbone {backbone}")
        yield Picture(path, f"Fig. 3: {score} against executor tokens, backbone {backbone}; ours")
    if len(study.cells) > 1:
        path = folder / "all-tokens.png"
        points = [Point(cell.name, _tokens(cell), *_points(cell, score)) for cell in study.cells]
        draw_frontier(path, points, "tokens of all roles a question", score, "all configurations")
        yield Picture(path, f"{score} against the tokens of all roles, all configurations; ours")


def _points(cell: CellRows, score: str) -> tuple[float, float]:
    found = micro(cell.rows, METRICS[score])
    return 100 * found.mean, nan if found.error is None else 100 * found.error


def _executor_tokens(cell: CellRows) -> float:
    return fmean(row.executor_tokens for row in cell.rows)


def _tokens(cell: CellRows) -> float:
    return fmean(sum(one.prompt_tokens + one.completion_tokens for one in row.spent) for row in cell.rows)
