"""Figures of a report: Fig. 2 and Fig. 3 of the paper (TBSS 4.5), from our own rows."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.study.results import CellRows, Study
from benchmarks.study.scores import metrics_of, micro, pareto_front
from benchmarks.study.tables import executor_tokens
from serving.files import replacing

_EXECUTION = "#2166ac"
_DELEGATION = "#b2182b"
_INTERVAL = 1.96
"""Half-width of a 95 % interval, in standard errors."""
Picture = tuple[Path, str]
"""PNG file and its caption."""


def pictures(study: Study, folder: Path) -> list[Picture]:
    """Draw all figures that have rows, into `folder`."""
    return [*_sensitivity(study, folder), *_frontiers(study, folder)]


def _sensitivity(study: Study, folder: Path) -> Iterator[Picture]:
    """Draw Fig. 2: scores while one role grows and the other is fixed. Backbones grow with the
    smallest executor, executors with the largest backbone.
    """
    both = (
        (execution, delegation)
        for execution, delegation in product(
            study.sweeps(backbones=False), study.sweeps(backbones=True)
        )
        if execution.max_turns == delegation.max_turns
    )
    if (first := next(both, None)) is None:
        return
    execution, delegation = first
    lines = [
        ("execution", _EXECUTION, execution.fixed, execution.cells),
        ("delegation", _DELEGATION, delegation.fixed, delegation.cells),
    ]
    models = [name for name in study.plan.parameters if any(name in cells for *_, cells in lines)]
    sizes = [study.plan.parameters[name] for name in models]
    places = {
        name: size or float(at) for at, (name, size) in enumerate(zip(models, sizes, strict=True))
    }
    drawn = [cell for *_, cells in lines for cell in cells.values()]
    metrics = metrics_of(cell.rows[0] for cell in drawn)
    figure = new_figure(4.2 * len(metrics), 3.8)
    for number, metric in enumerate(metrics, 1):
        axes = figure.add_subplot(1, len(metrics), number, ylabel=f"{metric} (points)")
        for role, color, fixed, cells in lines:
            means = [micro(cell.rows, metric).mean for cell in cells.values()]
            label = f"{role} grows, with {fixed}: {100 * (means[-1] - means[0]):+.1f}"
            own_places = [places[name] for name in cells]
            _plot(
                axes,
                own_places,
                [*cells.values()],
                metric,
                fmt="o-",
                color=color,
                label=label,
            )
        if all(sizes):
            axes.set_xscale("log")
        axes.set_xticks([*places.values()], models, rotation=30, ha="right", fontsize=8)
        axes.set_xticks([], minor=True)
        axes.legend(
            fontsize=7,
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            frameon=False,
        )
    path = saved(figure, folder / "figure-2.png")
    yield (
        path,
        "Fig. 2: capacity sensitivity of each role, micro averages with 95 % intervals; ours",
    )


def _frontiers(study: Study, folder: Path) -> Iterator[Picture]:
    """Draw Fig. 3 for each backbone with several executors: scores against tokens, with the Pareto
    front. Executors that score zero are not on the front, however cheap.
    """
    metric = "Judge" if all("Judge" in metrics_of(cell.rows) for cell in study.cells) else "EM"
    for number, sweep in enumerate(study.sweeps(backbones=False), 1):
        backbone = study.labelled(sweep.fixed, sweep.max_turns)
        figure = new_figure(8, 4.2)
        axes = figure.add_subplot(
            xlabel="executor tokens a question", ylabel=f"{metric} (points)", title=backbone
        )
        points = [
            (executor_tokens(cell), 100 * micro(cell.rows, metric).mean)
            for cell in sweep.cells.values()
        ]
        scoring = [point for point in points if point[1] > 0]
        front = [scoring[index] for index in pareto_front(scoring)]
        axes.plot(
            [cost for cost, _ in front], [score for _, score in front], "--", color="0.5", zorder=1
        )
        for point, (executor, cell) in zip(points, sweep.cells.items(), strict=True):
            color = _DELEGATION if point in front else _EXECUTION
            _plot(
                axes,
                [point[0]],
                [cell],
                metric,
                fmt="o",
                color=color,
                label=executor,
                zorder=2,
            )
        axes.margins(0.15)
        figure.legend(
            loc="outside right upper",
            fontsize=7,
            title="red: Pareto front",
            title_fontsize=7,
        )
        name = f"figure-3-{number}.png" if number > 1 else "figure-3.png"
        path = saved(figure, folder / name)
        yield path, f"Fig. 3: {metric} against executor tokens, backbone {backbone}; ours"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, sized in inches, which needs no display."""
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plot(
    axes: Axes,
    places: Sequence[float],
    cells: Sequence[CellRows],
    metric: str,
    **style: Any,
) -> None:
    """Plot scores with 95 % intervals, clipped to 0 and 100."""
    scores = [micro(cell.rows, metric) for cell in cells]
    means = [100 * score.mean for score in scores]
    errors = [nan if score.error is None else 100 * _INTERVAL * score.error for score in scores]
    below = [min(error, mean) for error, mean in zip(errors, means, strict=True)]
    above = [min(error, 100 - mean) for error, mean in zip(errors, means, strict=True)]
    axes.errorbar(places, means, [below, above], **style)
    axes.grid(alpha=0.3)


def saved(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, atomically, and return its path."""
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png")
    return path
