"""How sure a difference between two executors is."""

from collections.abc import Sequence

import msgspec
import numpy as np

_RESAMPLES = 10_000
_DRAWN_AT_ONCE = 1_000_000


class Difference(msgspec.Struct, frozen=True):
    """A mean difference with its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def paired_difference(new: Sequence[float], old: Sequence[float], seed: int = 0) -> Difference:
    """Of the means of `new` and `old`, both by question in the same order, by the percentile bootstrap over questions.
    Raises `ValueError` where they differ in length or are empty.
    """
    if not new or len(new) != len(old):
        raise ValueError(f"{len(new)} and {len(old)} scores cannot be paired")
    differences = np.asarray(new, np.float64) - np.asarray(old, np.float64)
    rng, count = np.random.default_rng(seed), len(differences)
    means = [
        differences[rng.integers(0, count, (min(block, _RESAMPLES - done), count))].mean(axis=1)
        for block in [max(1, _DRAWN_AT_ONCE // count)]
        for done in range(0, _RESAMPLES, block)
    ]
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Difference(float(differences.mean()), float(low), float(high))
