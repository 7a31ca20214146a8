"""The pictures of a report: Fig. 2 and Fig. 3 of the paper (TBSS 4.5), of our own rows."""

from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import msgspec
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.study.results import CellRows, RoleSweep, Study
from benchmarks.study.scores import metrics_of, micro, pareto_front
from benchmarks.study.spending import tokens
from benchmarks.study.tables import executor_tokens
from serving.files import replacing

_EXECUTION, _DELEGATION = "#2166ac", "#b2182b"
_INTERVAL = 1.96
"""Standard errors to each side."""
Picture = tuple[Path, str]
"""A PNG file and its caption."""
Points = tuple[float, float]
"""A score in points of 100, and its standard error; NaN where this is not known."""


class _Line(msgspec.Struct, frozen=True):
    """One role's models with their scores."""

    fixed: str
    """The model in the other role."""
    models: tuple[str, ...]
    """From the smallest to the largest."""
    scores: Mapping[str, tuple[Points, ...]]
    """By metric."""


class _Dot(msgspec.Struct, frozen=True):
    """A configuration in Fig. 3."""

    name: str
    tokens: float
    score: Points


def pictures(study: Study, folder: Path) -> list[Picture]:
    """Draw those for which there are rows, into `folder`."""
    return [*_sensitivity(study, folder), *_frontiers(study, folder)]


def _sensitivity(study: Study, folder: Path) -> Iterator[Picture]:
    """The smallest executor stays while backbones grow, the largest backbone while executors do."""
    delegations, executions = study.sweeps(backbones=True), study.sweeps(backbones=False)
    both = ((one, other) for one in executions for other in delegations if one.max_turns == other.max_turns)
    if (first := next(both, None)) is None:
        return
    execution, delegation = first
    path = folder / "figure-2.png"
    _draw_sensitivity(
        path,
        _line(study, execution, backbones=False),
        _line(study, delegation, backbones=True),
        study.plan.parameters,
    )
    yield path, "Fig. 2: capacity sensitivity of each role, micro averages with 95 % intervals; ours"


def _line(study: Study, sweep: RoleSweep, *, backbones: bool) -> _Line:
    cells = sweep.cells
    return _Line(
        study.labelled(sweep.fixed, sweep.max_turns),
        tuple(cell.backbone if backbones else cell.executor for cell in cells),
        {name: tuple(_points(cell, name) for cell in cells) for name in metrics_of(cells[0].rows)},
    )


def _frontiers(study: Study, folder: Path) -> Iterator[Picture]:
    """Under each backbone that has several executors, and over everything."""
    score = "Judge" if all("Judge" in metrics_of(cell.rows) for cell in study.cells) else "EM"
    for number, sweep in enumerate(study.sweeps(backbones=False), 1):
        backbone = study.labelled(sweep.fixed, sweep.max_turns)
        path = folder / (f"figure-3-{number}.png" if number > 1 else "figure-3.png")
        dots = [_Dot(cell.executor, executor_tokens(cell), _points(cell, score)) for cell in sweep.cells]
        _draw_frontier(path, dots, "executor tokens a question", score, f"backbone {backbone}")
        yield path, f"Fig. 3: {score} against executor tokens, backbone {backbone}; ours"
    if len(study.cells) > 1:
        path = folder / "all-tokens.png"
        dots = [_Dot(one.name, tokens(one.spent) / len(one.rows), _points(one, score)) for one in study.cells]
        _draw_frontier(path, dots, "tokens of all roles a question", score, "all configurations")
        yield path, f"{score} against the tokens of all roles, all configurations; ours"


def _points(cell: CellRows, metric: str) -> Points:
    mean, error = micro(cell.rows, metric)
    return 100 * mean, nan if error is None else 100 * error


def _draw_sensitivity(path: Path, execution: _Line, delegation: _Line, parameters: Mapping[str, float | None]) -> None:
    """Fig. 2: how much a score moves when one role grows and the other stays. `parameters`: of all models, smallest
    first.
    """
    metrics = [name for name in execution.scores if name in delegation.scores]
    shown = [name for name in parameters if name in (*execution.models, *delegation.models)]
    known = {name: size for name in shown if (size := parameters[name])}
    places = known if len(known) == len(shown) else {name: float(place) for place, name in enumerate(shown)}
    figure = _figure(4.2 * len(metrics), 3.8)
    for number, metric in enumerate(metrics, 1):
        axes = figure.add_subplot(1, len(metrics), number, ylabel=f"{metric} (points)")
        for line, role, color in ((execution, "execution", _EXECUTION), (delegation, "delegation", _DELEGATION)):
            scores = line.scores[metric]
            label = f"{role} grows, beside {line.fixed}: {scores[-1][0] - scores[0][0]:+.1f}"
            _plot(axes, [places[name] for name in line.models], scores, fmt="o-", color=color, label=label)
        if places is known:
            axes.set_xscale("log")
        axes.set_xticks([places[name] for name in shown], shown, rotation=30, ha="right", fontsize=8)
        axes.set_xticks([], minor=True)
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    _save(figure, path)


def _draw_frontier(path: Path, dots: Sequence[_Dot], cost: str, score: str, title: str) -> None:
    """Fig. 3: scores against tokens, and the ones that no other configuration beats in both: of those that score at
    all, as nobody wants one that is cheap and never right.
    """
    figure = _figure(8, 4.2)
    axes = figure.add_subplot(xlabel=cost, ylabel=f"{score} (points)", title=title)
    scoring = [dot for dot in dots if dot.score[0] > 0]
    front = [scoring[index] for index in pareto_front([(dot.tokens, dot.score[0]) for dot in scoring])]
    axes.plot([dot.tokens for dot in front], [dot.score[0] for dot in front], "--", color="0.5", zorder=1)
    for number, dot in enumerate(dots, 1):
        color = _DELEGATION if dot in front else _EXECUTION
        _plot(axes, [dot.tokens], [dot.score], fmt="o", color=color, label=f"{number}  {dot.name}", zorder=2)
        axes.annotate(str(number), (dot.tokens, dot.score[0]), (4, 4), textcoords="offset points", fontsize=8)
    axes.margins(0.15)
    figure.legend(loc="outside right upper", fontsize=7, title="red: Pareto front", title_fontsize=7)
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plot(axes: Axes, places: Sequence[float], scores: Sequence[Points], **style: Any) -> None:
    """With 95 % intervals; no score is below 0 or above 100."""
    below = [min(_INTERVAL * error, score) for score, error in scores]
    above = [min(_INTERVAL * error, 100 - score) for score, error in scores]
    axes.errorbar(places, [score for score, _ in scores], [below, above], **style)
    axes.grid(alpha=0.3)


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png")
