"""Variants measured in alternating order, round by round, and figures with bootstrap intervals."""

import itertools
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from benchmarks.load import quantile
from serving.terminal import progress_bar

_DRAWS = 1000
_SEED = 0


class Round(msgspec.Struct, frozen=True):
    """Measurements of one variant in one round."""

    values: list[float]
    """Mostly milliseconds, one value for each question."""
    cpu_ms: float = 0.0
    """CPU time per question."""


Metric = Callable[[Sequence[Round]], float]


class Wanted(msgspec.Struct, frozen=True):
    """Figure to compute, with its bounds: a metric of the variant `of`, divided by the same metric
    of the variant `to` if that is given.
    """

    figure: str
    metric: Metric
    of: str
    to: str = ""
    at_least: float = -math.inf
    at_most: float = math.inf


class Figure(msgspec.Struct, frozen=True):
    """Figure over all rounds, with its 95 % interval from a bootstrap over rounds."""

    figure: str
    value: float
    low: float
    high: float
    at_least: float
    at_most: float
    held: bool


def p50(rounds: Sequence[Round]) -> float:
    """Return the median of all values."""
    return _quantile(rounds, 0.5)


def p99(rounds: Sequence[Round]) -> float:
    """Return the 99th percentile of all values."""
    return _quantile(rounds, 0.99)


def cpu(rounds: Sequence[Round]) -> float:
    """Return the mean CPU time."""
    return sum(measured.cpu_ms for measured in rounds) / len(rounds)


def _quantile(rounds: Sequence[Round], share: float) -> float:
    return quantile((value for measured in rounds for value in measured.values), share)


async def in_turns(
    variants: Mapping[str, Callable[[int], Awaitable[Round]]], rounds: int
) -> dict[str, list[Round]]:
    """Measure all variants in each round, after one warm-up round. Every second round runs in
    reverse order. Variants are called with the number of the round, from 1 (the warm-up has 0).
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
    """Compute a figure with its interval. The bootstrap draws the same rounds for both sides of a
    ratio, so that a slow round affects both alike.
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
