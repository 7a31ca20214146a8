"""Figures of the estimate: its error for the rows of a table, by the probability of a discovery
to name a row.
"""

import random
from collections.abc import Callable, Iterator
from statistics import fmean, median

import pytest

from router.table.assembly import assemble
from router.table.completeness import completeness
from tests.router.table.figures.runs import show
from tests.router.table.reports import SCHEMA, discovery, listed

pytestmark = pytest.mark.slow

_SIZES = (8, 25, 55)
_RUNS = 100
Names = Callable[[random.Random, int, int], Iterator[list[int]]]
"""Function of a number of rows and of discoveries to the rows that each discovery names."""


def independent(chance: float) -> Names:
    """Name each row with the same probability, independently."""
    return lambda luck, rows, times: (
        [row for row in range(rows) if luck.random() < chance] for _ in range(times)
    )


def uneven(chance: float) -> Names:
    """Name half of the rows with the given probability, and the others with half of it."""
    return lambda luck, rows, times: (
        [row for row in range(rows) if luck.random() < chance / (1 + row % 2)] for _ in range(times)
    )


def one_index(chance: float) -> Names:
    """Name no row of a share, as if all discoveries search the same index, and the others
    independently.
    """
    return lambda luck, rows, times: (
        [row for row in range(rows) if row % 5 and luck.random() < chance] for _ in range(times)
    )


def parts(luck: random.Random, rows: int, times: int) -> Iterator[list[int]]:
    """Name the parts of a register, which do not overlap."""
    shuffled = luck.sample(range(rows), rows)
    return (shuffled[at::times] for at in range(times))


def estimated(names: Names, times: int, seed: int) -> Iterator[tuple[float, float, float]]:
    """Estimate runs of all sizes.

    Return the error of the estimate and of the count of known rows, and the share of repeated
    namings.
    """
    for rows in _SIZES:
        for run in range(_RUNS):
            luck = random.Random(f"{seed}/{rows}/{run}")
            named = [*names(luck, rows, times)]
            asks = [discovery(number) for number in range(1, times + 1)]
            executions = [
                listed("\n".join(f"- City {row}" for row in names_of_discovery) or "not found")
                for names_of_discovery in named
            ]
            estimate = completeness(
                assemble(SCHEMA, [], zip(asks, executions, strict=True)), {*asks}
            )
            if estimate.estimated_rows is None:
                continue
            yield (
                abs(estimate.estimated_rows - rows) / rows,
                abs(estimate.rows - rows) / rows,
                1 - estimate.rows_seen_once / max(1, sum(map(len, named))),
            )


def test_the_median_error_of_the_estimate_is_within_15_percent() -> None:
    """This holds if a discovery names each row at least half of the time.

    If it names fewer, or some rows are out of reach, the estimate says little. If discoveries
    ask for parts, there is none.
    """
    ways = {f"p = {chance}": independent(chance) for chance in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)}
    ways |= {
        "p = 0.5 or 0.25": uneven(0.5),
        "p = 0.5, a fifth out of reach": one_index(0.5),
        "parts": parts,
    }
    rows = list[dict[str, object]]()
    errors = dict[tuple[str, int], float]()
    for name, names in ways.items():
        for times in (3, 5, 8):
            runs = [*estimated(names, times, times)]
            rows.append(
                {"discoveries name a row with": name, "discoveries": times, "runs": len(runs)}
            )
            if not runs:
                continue
            wrong, without, again = zip(*runs, strict=True)
            errors[name, times] = median(wrong)
            rows[-1]["median error"] = median(wrong)
            rows[-1] |= {
                "worst tenth from": sorted(wrong)[int(0.9 * len(wrong))],
                "error of the count": median(without),
            }
            rows[-1]["named again"] = fmean(again)
    assert not any(row["runs"] for row in rows[-3:])  # rows of the parts
    show(f"|estimate - N| / N, N = {_SIZES}, {_RUNS} runs each", rows)
    assert all(
        errors[f"p = {chance}", times] <= 0.15 for chance in (0.5, 0.7, 0.9) for times in (3, 5, 8)
    )
