"""Drawing questions from data sets (TBSS 4.1: up to 1,000 of each)."""

import random
from collections.abc import Sequence

from benchmarks.datasets.question import BenchmarkQuestion


def sample(questions: Sequence[BenchmarkQuestion], most: int, seed: int) -> list[int]:
    """The positions of up to `most` questions of each data set, in order; data sets do not change each other's draw."""
    positions: dict[str, list[int]] = {}
    for position, question in enumerate(questions):
        positions.setdefault(question.dataset, []).append(position)
    drawn = (
        random.Random(f"{seed} {dataset}").sample(each, min(most, len(each))) for dataset, each in positions.items()
    )
    return sorted(position for each in drawn for position in each)
