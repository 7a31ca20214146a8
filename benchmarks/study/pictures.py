"""Pictures of a report: Fig. 2 and Fig. 3 of the TBSS paper (section 4.5), drawn from a sweep's
results.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.study.results import CellRows, Study
from benchmarks.study.scores import metrics_of, micro, pareto_front
from serving.files import save_picture

_COLORS = {"execution": "#2166ac", "delegation": "#b2182b"}
_INTERVAL = 1.96
_DPI = 130
"""`_INTERVAL`: half-width of a 95 % interval, in standard errors. `_DPI`: resolution of the
pictures.
"""
Picture = tuple[Path, str]
"""Path of a PNG file, and the picture's caption."""


def pictures(study: Study, folder: Path) -> Iterator[Picture]:
    """Draw each figure for which the sweep has results, write it to `folder`, and yield it."""
    yield from _sensitivity(study, folder)
    yield from _frontiers(study, folder)


def _sensitivity(study: Study, folder: Path) -> Iterator[Picture]:
    """Draw Fig. 2, with two lines: the scores of growing backbones with the smallest executor, and
    the scores of growing executors with the largest backbone.
    """
    lines = [
        (role, *sweep)
        for role in _COLORS
        for sweep in study.sweeps(backbones=role == "delegation")[:1]
    ]
    if len(lines) < len(_COLORS):
        return

    models = [name for name in study.plan.parameters if any(name in cells for *_, cells in lines)]
    sizes = [study.plan.parameters[name] or 0.0 for name in models]
    places = dict(zip(models, sizes if all(sizes) else range(len(models)), strict=True))
    metrics = metrics_of(cell.rows[0] for *_, cells in lines for cell in cells.values())
    figure = _figure(4.2 * len(metrics))
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for role, fixed, cells in lines:
            first, *_, last = (micro(cell.rows, metric).mean for cell in cells.values())
            label = f"{role} grows, with {fixed}: {100 * (last - first):+.1f}"
            own_places = [places[name] for name in cells]
            _plot(
                axes, own_places, cells.values(), metric, fmt="o-", color=_COLORS[role], label=label
            )
        if all(sizes):
            axes.set_xscale("log")
        axes.set_xticks([*places.values()], models, rotation=30, ha="right")
        axes.set_xticks([], minor=True)
        axes.set_ylabel(f"{metric} (points)")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=7)
    caption = "Fig. 2: capacity sensitivity of each role, micro averages with 95 % intervals; ours"
    yield _saved(figure, folder / "figure-2.png"), caption


def _frontiers(study: Study, folder: Path) -> Iterator[Picture]:
    """Draw Fig. 3 for each backbone with several executors: each executor's score against its
    number of tokens, and the Pareto front. Executors with a score of zero are never on the front.
    """
    metric = "Judge" if all("Judge" in metrics_of(cell.rows) for cell in study.cells) else "EM"
    for number, (backbone, cells) in enumerate(study.sweeps(backbones=False), 1):
        figure = _figure(8)
        axes = figure.add_subplot(
            xlabel="executor tokens a question", ylabel=f"{metric} (points)", title=backbone
        )
        points = {
            name: (cell.tokens("execution"), 100 * micro(cell.rows, metric).mean)
            for name, cell in cells.items()
        }
        front = pareto_front(point for point in points.values() if point[1] > 0)
        axes.plot([cost for cost, _ in front], [score for _, score in front], "--", color="0.5")
        for name, point in points.items():
            color = _COLORS["delegation" if point in front else "execution"]
            _plot(axes, point[:1], [cells[name]], metric, fmt="o", color=color, label=name)
        axes.margins(0.15)
        figure.legend(loc="outside right upper", title="red: Pareto front")
        file = f"figure-3-{number}.png" if number > 1 else "figure-3.png"
        caption = f"Fig. 3: {metric} against executor tokens, backbone {backbone}; ours"
        yield _saved(figure, folder / file), caption


def _figure(width: float) -> Figure:
    """Return an empty figure that is `width` inches wide."""
    return Figure(figsize=(width, 4), layout="constrained")


def _plot(
    axes: Axes, places: Sequence[float], cells: Iterable[CellRows], metric: str, **style: Any
) -> None:
    """Plot the score of each cell with its 95 % interval. `places`: positions on the horizontal
    axis.
    """
    scores = [micro(cell.rows, metric) for cell in cells]
    means = [100 * score.mean for score in scores]
    errors = [100 * _INTERVAL * (score.error or 0.0) for score in scores]
    axes.errorbar(places, means, errors, **style)
    axes.grid(alpha=0.3)


def _saved(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG to `path`, atomically, and return the path."""
    save_picture(figure, path, _DPI)
    return path
