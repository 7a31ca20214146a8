"""The loss of a training as a picture."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from serving.files import replacing

_SMOOTHED = 20
"""Steps of the running mean."""


class StepLoss(msgspec.Struct, frozen=True):
    """One line of `loss.jsonl`."""

    step: int
    loss: float
    """Mean over the tokens of the step that carry one, in nats."""
    learning_rate: float
    token_accuracy: float | None = None
    """The share of these tokens that the model would have written itself."""


def draw(steps: Sequence[StepLoss], path: Path) -> None:
    """Write a PNG with the loss of each step and its running mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="loss (nats a token)", yscale="log")
    numbers = [step.step for step in steps]
    axes.plot(numbers, [step.loss for step in steps], color="0.75", linewidth=0.8, label="each step")
    axes.plot(numbers, smoothed([step.loss for step in steps]), label=f"mean of the last {_SMOOTHED}")
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png")


def smoothed(losses: Sequence[float]) -> list[float]:
    """For each step, the mean of the last few."""
    windows = (losses[max(0, end - _SMOOTHED) : end] for end in range(1, len(losses) + 1))
    return [sum(window) / len(window) for window in windows]
