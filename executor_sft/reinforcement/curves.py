"""The picture of a reinforcement: its figures over its steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from serving.files import replacing

_PANELS = ("reward", "mixed_groups", "agents", "entropy", "kl", "logprob_gap")


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the lines of `steps.jsonl` into the PNG file `path`."""
    figure = Figure(figsize=(12, 6), layout="constrained")
    for axes, name in zip(figure.subplots(2, 3).flat, _PANELS, strict=True):
        series: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            for part, value in _values(row, name).items():
                series.setdefault(part, []).append((row["step"], value))
        for part, points in series.items():
            axes.plot(*zip(*points, strict=True), marker=".", label=part)
        axes.set(title=name.replace("_", " "), xlabel="step")
        axes.legend()
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=100)


def _values(row: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return a figure of a step, by what it is about: all runs, a role, or an adapter."""
    value = row.get(name)
    if isinstance(value, dict):
        return value
    if value is not None:
        return {"all runs": value}
    return {key: item[name] for key, item in row.items() if isinstance(item, dict) and name in item}
