"""The loss of a training is drawn."""

import struct
from pathlib import Path

from executor_sft.train import StepLoss, draw, smoothed


def test_it_is_a_picture(tmp_path: Path) -> None:
    """A PNG of a size that a page can show."""
    draw([StepLoss(step, 2.0 / step, 1e-3) for step in range(1, 50)], tmp_path / "loss.png")
    content = (tmp_path / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG") and struct.unpack(">II", content[16:24]) == (840, 480)


def test_the_line_is_the_mean_of_the_last_steps() -> None:
    """Of fewer at the beginning."""
    assert smoothed([1.0, 3.0, 5.0]) == [1.0, 2.0, 3.0]
    assert smoothed([0.0] * 10 + [1.0] * 20)[-1] == 1.0
