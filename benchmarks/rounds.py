"""Variants measured in turns, round by round, and figures of them with their spread."""

import itertools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from benchmarks.load import quantile
from serving.terminal import progress_bar

_DRAWS = 1000
_SEED = 0


class Round(msgspec.Struct, frozen=True):
    """One variant, one round."""

    values: list[float]
    """Mostly milliseconds of each question."""
    cpu_ms: float = 0.0
    """Of a question."""


Metric = Callable[[Sequence[Round]], float]


class Wanted(msgspec.Struct, frozen=True):
    """A figure that is wanted: a metric of a variant or, where another one is named, its ratio
    to that one's.
    """

    figure: str
    metric: Metric
    of: str
    to: str = ""
    most: float | None = None
    least: float | None = None


class Figure(msgspec.Struct, frozen=True):
    """A figure of all rounds, and between which values 95 % of it lie where the rounds are
    drawn anew.
    """

    figure: str
    value: float
    low: float
    high: float
    wanted: str
    held: bool | None


def p50(rounds: Sequence[Round]) -> float:
    """The median of all values."""
    return quantile((value for each in rounds for value in each.values), 0.5)


def p99(rounds: Sequence[Round]) -> float:
    """The value that 99 % of all are at most."""
    return quantile((value for each in rounds for value in each.values), 0.99)


def cpu(rounds: Sequence[Round]) -> float:
    """The mean CPU."""
    return sum(each.cpu_ms for each in rounds) / len(rounds)


async def in_turns(
    variants: Mapping[str, Callable[[int], Awaitable[Round]]], rounds: int
) -> dict[str, list[Round]]:
    """Measure all variants in each round, from first to last and then from last to first, after one
    round to warm up. Each gets the number of the round, from 1.
    """
    measured: dict[str, list[Round]] = {name: [] for name in variants}
    orders = itertools.cycle((list(variants), list(variants)[::-1]))
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=len(variants) * (1 + rounds))
        for number in range(1 + rounds):
            for name in next(orders):
                measured[name].append(await variants[name](number))
                bar.advance(task)
    return {name: each[1:] for name, each in measured.items()}


def figure(wanted: Wanted, found: Mapping[str, Sequence[Round]]) -> Figure:
    """A figure with its spread, by a bootstrap over the rounds, which are drawn alike for both
    sides of a ratio.
    """
    of = found[wanted.of]
    to = found.get(wanted.to)
    chance = random.Random(_SEED)

    def of_rounds(chosen: Sequence[int]) -> float:
        part = wanted.metric([of[number] for number in chosen])
        whole = wanted.metric([to[number] for number in chosen]) if to else 1.0
        return part / whole if whole else 0.0

    every = range(len(of))
    value = of_rounds(every)
    drawn = [of_rounds(chance.choices(every, k=len(of))) for _ in range(_DRAWS)]
    low = quantile(drawn, 0.025)
    high = quantile(drawn, 0.975)
    bound = ""
    held = None
    if wanted.most is not None:
        bound = f"≤ {wanted.most:g}"
        held = value <= wanted.most
    elif wanted.least is not None:
        bound = f"≥ {wanted.least:g}"
        held = value >= wanted.least
    return Figure(wanted.figure, value, low, high, bound, held)
