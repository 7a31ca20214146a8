"""Measure several variants round by round, in alternating order, and compare them with bootstrap
intervals.
"""

import itertools
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from benchmarks.load import quantile
from router.frozen import Frozen
from serving.terminal import progress_bar

_DRAWS = 1000
_SEED = 0


class Round(Frozen):
    """Measurements of one variant in one round."""

    values: list[float]
    """Measured values: one for each question, in milliseconds. For the variant `memory`: one value
    in kB.
    """
    cpu_ms: float = 0.0
    """CPU time per question, in milliseconds."""


Metric = Callable[[Sequence[Round]], float]
"""Function that computes a number from the rounds of a variant."""


class Wanted(Frozen):
    """A figure to compute, and the bounds that it must keep. The figure is the metric of the
    variant `of`, divided by the metric of the variant `to` unless `to` is empty.
    """

    figure: str
    metric: Metric
    of: str
    to: str = ""
    at_least: float = -math.inf
    at_most: float = math.inf


class Figure(Frozen):
    """A figure over all rounds, with a 95 % confidence interval (`low`, `high`) from a bootstrap
    over rounds. `held`: True if the value is between `at_least` and `at_most`.
    """

    figure: str
    value: float
    low: float
    high: float
    at_least: float
    at_most: float
    held: bool


def _quantile(share: float, rounds: Sequence[Round]) -> float:
    return quantile((value for measured in rounds for value in measured.values), share)


p50 = partial(_quantile, 0.5)
"""Median of the values of all rounds."""
p99 = partial(_quantile, 0.99)
"""99th percentile of the values of all rounds."""


def cpu(rounds: Sequence[Round]) -> float:
    """Return the mean CPU time per question, over all rounds, in milliseconds."""
    return sum(measured.cpu_ms for measured in rounds) / len(rounds)


async def in_turns(
    variants: Mapping[str, Callable[[int], Awaitable[Round]]], rounds: int
) -> dict[str, list[Round]]:
    """Measure each variant once in each round, and return the rounds of each variant. The first
    round is a warm-up, and is not returned. Every second round has the variants in reverse order.

    `variants`: for each variant, by name, the function that measures the variant. The function
    takes the number of the round: 0 for the warm-up, then 1, 2, and so on.
    """
    measured: dict[str, list[Round]] = {name: [] for name in variants}
    orders = itertools.cycle((list(variants), list(variants)[::-1]))
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=len(variants) * (1 + rounds))
        for number in range(1 + rounds):
            for name in next(orders):
                measured[name].append(await variants[name](number))
                bar.advance(task)
    return {name: results[1:] for name, results in measured.items()}


def figure(wanted: Wanted, measured: Mapping[str, Sequence[Round]]) -> Figure:
    """Compute a figure with its confidence interval. `measured`: the rounds of each variant.

    The bootstrap draws the same rounds for both variants of a ratio, so that a slow round affects
    both alike.
    """
    numerator = measured[wanted.of]
    denominator = measured.get(wanted.to)
    chance = random.Random(_SEED)

    def of_rounds(chosen: Sequence[int]) -> float:
        part = wanted.metric([numerator[number] for number in chosen])
        if denominator is None:
            return part
        denominator_value = wanted.metric([denominator[number] for number in chosen])
        return part / denominator_value if denominator_value else 0.0

    every = range(len(numerator))
    value = of_rounds(every)
    drawn = [of_rounds(chance.choices(every, k=len(every))) for _ in range(_DRAWS)]
    low = quantile(drawn, 0.025)
    high = quantile(drawn, 0.975)

    held = wanted.at_least <= value <= wanted.at_most
    return Figure(
        wanted.figure,
        value,
        low,
        high,
        wanted.at_least,
        wanted.at_most,
        held,
    )
