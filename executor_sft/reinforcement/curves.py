"""Picture of a training by reinforcement learning: a curve for each figure, over the steps."""

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from serving.files import save_picture

_PANELS = ("reward", "mixed_groups", "agents", "entropy", "kl", "logprob_gap")


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the figures of all steps into the PNG file `path`. `rows`: lines of `steps.jsonl`."""
    figure = Figure(figsize=(12, 6), layout="constrained")
    flat = [_flat(row) for row in rows]
    labels = dict.fromkeys(label for row in flat for label in row)
    for axes, name in zip(figure.subplots(2, 3).flat, _PANELS, strict=True):
        for label in labels:
            if name in label:
                values = [row.get(label, nan) for row in flat]
                axes.plot(range(1, len(rows) + 1), values, ".-", label=label)
        axes.set(xlabel="step")
        axes.legend(fontsize=7)
    save_picture(figure, path)


def _flat(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a line, with nested figures under names such as `executor entropy`."""
    flat = dict[str, float]()
    for key, value in row.items():
        parts = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key} {name}".strip(): part for name, part in parts.items()}
    return flat
