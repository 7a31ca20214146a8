"""Fig. 2 and Fig. 3 of the paper (TBSS 4.5), of our own rows or of published figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.study.pareto import pareto_front
from serving.files import replacing

_EXECUTION, _DELEGATION = "#2166ac", "#b2182b"
_INTERVAL = 1.96
"""Standard errors to each side."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One role's models with their scores."""

    fixed: str
    """Who stands in the other role."""
    models: tuple[str, ...]
    """From the smallest to the largest."""
    points: Mapping[str, tuple[tuple[float, float], ...]]
    """By metric, scores in points of 100 with their standard errors; NaN where these are not known."""


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration in Fig. 3."""

    name: str
    tokens: float
    score: float
    """In points of 100."""
    error: float
    """Its standard error; NaN where it is not known."""


def draw_sensitivity(
    path: Path, execution: Sweep, delegation: Sweep, order: Sequence[str], parameters: Mapping[str, float | None]
) -> None:
    """Fig. 2: how much a score moves when one role grows and the other stays. `order`: all models, smallest first."""
    names = [name for name in execution.points if name in delegation.points]
    shown = [name for name in order if name in (*execution.models, *delegation.models)]
    known = {name: size for name in shown if (size := parameters.get(name))}
    places = known if len(known) == len(shown) else {name: float(place) for place, name in enumerate(shown)}
    figure = Figure(figsize=(4.2 * len(names), 3.8), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for number, metric in enumerate(names, 1):
        axes = figure.add_subplot(1, len(names), number, ylabel=f"{metric} (points)")
        _line(axes, places, execution, metric, "execution")
        _line(axes, places, delegation, metric, "delegation")
        if places is known:
            axes.set_xscale("log")
        axes.set_xticks([places[name] for name in shown], shown, rotation=30, ha="right", fontsize=8)
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    _save(figure, path)


def draw_frontier(path: Path, points: Sequence[Point], tokens: str, score: str, title: str) -> None:
    """Fig. 3: scores against tokens with 95 % intervals, and what no other configuration beats in both: of those that
    score at all, as nobody wants what is cheap and never right.
    """
    figure = Figure(figsize=(8, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel=tokens, ylabel=f"{score} (points)", title=title)
    scoring = [point for point in points if point.score > 0]
    front = [scoring[index] for index in pareto_front([(point.tokens, point.score) for point in scoring])]
    axes.plot([point.tokens for point in front], [point.score for point in front], "--", color="0.5", zorder=1)
    for number, point in enumerate(points, 1):
        color = _DELEGATION if point in front else _EXECUTION
        label = f"{number}  {point.name}"
        interval = _intervals([point.score], [point.error])
        axes.errorbar(point.tokens, point.score, interval, fmt="o", color=color, label=label, zorder=2)
        axes.annotate(str(number), (point.tokens, point.score), (4, 4), textcoords="offset points", fontsize=8)
    axes.margins(0.15)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=7, title="red: Pareto front", title_fontsize=7)
    _save(figure, path)


def _line(axes: Axes, places: Mapping[str, float], sweep: Sweep, metric: str, role: str) -> None:
    values, errors = zip(*sweep.points[metric], strict=True)
    label = f"{role} grows, beside {sweep.fixed}: {values[-1] - values[0]:+.1f}"
    color = _EXECUTION if role == "execution" else _DELEGATION
    intervals = _intervals(values, errors)
    axes.errorbar([places[name] for name in sweep.models], values, intervals, fmt="o-", color=color, label=label)


def _intervals(scores: Sequence[float], errors: Sequence[float]) -> list[list[float]]:
    """How far they reach down and up; no score is below 0 or above 100."""
    widths = [_INTERVAL * error for error in errors]
    below = [min(width, score) for width, score in zip(widths, scores, strict=True)]
    return [below, [min(width, 100 - score) for width, score in zip(widths, scores, strict=True)]]


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png")
