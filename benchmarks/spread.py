"""Figures of measurements that were made in rounds, in turns, with how far they spread."""

import itertools
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from benchmarks.load import quantile
from serving.terminal import progress_bar

_DRAWS, _SEED = 1000, 0
Figure = Callable[[Sequence[int]], float]
"""A figure of some of the rounds, by their numbers."""


class Round(msgspec.Struct, frozen=True):
    """One variant, one round."""

    times_ms: list[float]
    cpu_ms: float = 0.0
    """Of a question."""
    memory_kb: float = 0.0
    """Of a question in flight."""


Rounds = Sequence[Round]


async def in_turns(variants: Mapping[str, Callable[[int], Awaitable[Round]]], rounds: int) -> dict[str, list[Round]]:
    """Measure all variants in each round, from first to last and then from last to first, after one round to warm up.
    Each gets the number of the round, from 1.
    """
    measured: dict[str, list[Round]] = {name: [] for name in variants}
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=len(variants) * (1 + rounds))
        for number, order in zip(
            range(1 + rounds), itertools.cycle((list(variants), list(variants)[::-1])), strict=False
        ):
            for name in order:
                measured[name].append(await variants[name](number))
                bar.advance(task, 1)
    return {name: each[1:] for name, each in measured.items()}


class Line(msgspec.Struct, frozen=True):
    """A figure of all rounds, and between which values 95 % of it lie where the rounds are drawn anew."""

    figure: str
    value: float
    low: float
    high: float
    wanted: str = ""
    held: bool | None = None


def line(name: str, figure: Figure, rounds: int, wanted: tuple[Literal["≤", "≥"], float] | None = None) -> Line:
    """A figure with its spread, by a bootstrap over the rounds, which are drawn alike for all of its parts."""
    chance, value = random.Random(_SEED), figure(range(rounds))
    drawn = [figure(chance.choices(range(rounds), k=rounds)) for _ in range(_DRAWS)]
    low, high = quantile(drawn, 0.025), quantile(drawn, 0.975)
    if wanted is None:
        return Line(name, value, low, high)
    sign, bound = wanted
    return Line(name, value, low, high, f"{sign} {bound:g}", value <= bound if sign == "≤" else value >= bound)


def time_ms(rounds: Rounds, share: float) -> Figure:
    """The time that `share` of all took at most."""
    return lambda chosen: quantile((ms for number in chosen for ms in rounds[number].times_ms), share)


def cpu_ms(rounds: Rounds) -> Figure:
    """The mean CPU of a question."""
    return lambda chosen: _mean(rounds[number].cpu_ms for number in chosen)


def memory_kb(rounds: Rounds) -> Figure:
    """The memory of a question in flight, the median of the rounds."""
    return lambda chosen: quantile((rounds[number].memory_kb for number in chosen), 0.5)


def ratio(part: Figure, whole: Figure) -> Figure:
    """One to the other; 0 where the other is none."""
    return lambda chosen: part(chosen) / whole(chosen) if whole(chosen) else 0.0


def difference(more: Figure, less: Figure) -> Figure:
    """One less the other."""
    return lambda chosen: more(chosen) - less(chosen)


def extremes(figures: Sequence[Figure]) -> Figure:
    """The largest to the smallest."""
    return lambda chosen: max(each := [figure(chosen) for figure in figures]) / min(each)


def _mean(values: Iterable[float]) -> float:
    each = list(values)
    return sum(each) / len(each)
