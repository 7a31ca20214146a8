"""Pictures of a report: Fig. 2 and Fig. 3 of the paper (TBSS 4.5), drawn from a sweep's results."""

from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.study.results import CellRows, Study
from benchmarks.study.scores import metrics_of, micro, pareto_front
from serving.files import replacing

_EXECUTION = "#2166ac"
_DELEGATION = "#b2182b"
_INTERVAL = 1.96
"""Half-width of a 95 % interval, in standard errors."""
Picture = tuple[Path, str]
"""Path of a PNG file, and the picture's caption."""


def pictures(study: Study, folder: Path) -> list[Picture]:
    """Draw all figures for which the sweep has results into `folder`, and return them."""
    return [*_sensitivity(study, folder), *_frontiers(study, folder)]


def _sensitivity(study: Study, folder: Path) -> Iterator[Picture]:
    """Draw Fig. 2: how scores change if the model of one role grows and that of the other role
    stays the same. Backbones grow with the smallest executor, executors with the largest backbone.
    """
    lines = [
        (role, color, *sweep)
        for role, color in (("execution", _EXECUTION), ("delegation", _DELEGATION))
        for sweep in study.sweeps(backbones=role == "delegation")[:1]
    ]
    if len(lines) < 2:
        return

    models = [name for name in study.plan.parameters if any(name in cells for *_, cells in lines)]
    sizes = [study.plan.parameters[name] for name in models]
    places = {
        name: size or float(at) for at, (name, size) in enumerate(zip(models, sizes, strict=True))
    }
    metrics = metrics_of(cell.rows[0] for *_, cells in lines for cell in cells.values())
    figure = _figure(4.2 * len(metrics), 3.8)
    for number, metric in enumerate(metrics, 1):
        axes = figure.add_subplot(1, len(metrics), number, ylabel=f"{metric} (points)")
        for role, color, fixed, cells in lines:
            drawn = [*cells.values()]
            gain = micro(drawn[-1].rows, metric).mean - micro(drawn[0].rows, metric).mean
            label = f"{role} grows, with {fixed}: {100 * gain:+.1f}"
            own_places = [places[name] for name in cells]
            _plot(
                axes,
                own_places,
                drawn,
                metric,
                fmt="o-",
                color=color,
                label=label,
            )
        if all(sizes):
            axes.set_xscale("log")
        axes.set_xticks(
            [*places.values()],
            models,
            rotation=30,
            ha="right",
            fontsize=8,
        )
        axes.set_xticks([], minor=True)
        axes.legend(
            fontsize=7,
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            frameon=False,
        )
    path = _saved(figure, folder / "figure-2.png")
    yield (
        path,
        "Fig. 2: capacity sensitivity of each role, micro averages with 95 % intervals; ours",
    )


def _frontiers(study: Study, folder: Path) -> Iterator[Picture]:
    """Draw Fig. 3 for each backbone that has several executors: the score of each executor against
    its tokens, and the Pareto front. Executors that score zero are not on the front, however cheap
    they are.
    """
    metric = "Judge" if all("Judge" in metrics_of(cell.rows) for cell in study.cells) else "EM"
    for number, (backbone, cells) in enumerate(study.sweeps(backbones=False), 1):
        figure = _figure(8, 4.2)
        axes = figure.add_subplot(
            xlabel="executor tokens a question", ylabel=f"{metric} (points)", title=backbone
        )
        points = {
            name: (cell.tokens("execution"), 100 * micro(cell.rows, metric).mean)
            for name, cell in cells.items()
        }
        front = pareto_front(point for point in points.values() if point[1] > 0)
        axes.plot(
            [cost for cost, _ in front],
            [score for _, score in front],
            "--",
            color="0.5",
            zorder=1,
        )
        for name, point in points.items():
            color = _DELEGATION if point in front else _EXECUTION
            _plot(
                axes,
                point[:1],
                [cells[name]],
                metric,
                fmt="o",
                color=color,
                label=name,
            )
        axes.margins(0.15)
        title = "red: Pareto front"
        figure.legend(
            loc="outside right upper",
            fontsize=7,
            title=title,
            title_fontsize=7,
        )
        file = f"figure-3-{number}.png" if number > 1 else "figure-3.png"
        path = _saved(figure, folder / file)
        yield path, f"Fig. 3: {metric} against executor tokens, backbone {backbone}; ours"


def _figure(width: float, height: float) -> Figure:
    """Return an empty figure that can be drawn without a display. `width`, `height`: in inches."""
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
    """Plot the score of each cell with its 95 % interval; intervals do not go below 0 or above 100.
    `places`: positions on the horizontal axis.
    """
    scores = [micro(cell.rows, metric) for cell in cells]
    means = [100 * score.mean for score in scores]
    errors = [nan if score.error is None else 100 * _INTERVAL * score.error for score in scores]
    below = [min(error, mean) for error, mean in zip(errors, means, strict=True)]
    above = [min(error, 100 - mean) for error, mean in zip(errors, means, strict=True)]
    axes.errorbar(places, means, [below, above], **style)
    axes.grid(alpha=0.3)


def _saved(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG to `path`, atomically, and return the path."""
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png")
    return path
