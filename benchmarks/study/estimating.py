"""What a sweep will take, by what its pilot took."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from rich.table import Table

from benchmarks.study.pricing import dollars, merged
from benchmarks.study.result_row import Scored
from router.trace.call import RoleTotal


@dataclass(slots=True)
class CellPilot:
    """What the rows of one cell took."""

    rows: int = 0
    spent: list[RoleTotal] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)

    def add(self, row: Scored) -> None:
        """Count another row."""
        self.rows += 1
        self.latencies_s += [] if row.latency_s is None else [row.latency_s]
        self.spent = merged([*self.spent, *row.spent, *row.checking])


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of what is still to be done."""

    role: str
    model: str
    prompt_tokens: float | None
    """None where it is not known, as the others are."""
    completion_tokens: float | None
    dollars: float | None


def estimates(pilots: Mapping[str, CellPilot], left: Mapping[str, int]) -> list[Estimate]:
    """By role and model. `left`: rollouts to be done, by cell; each takes what those of its pilot took on average, and
    nobody knows what where there was none.
    """
    sums: dict[tuple[str, str], Estimate] = {}
    for cell, pilot in pilots.items():
        for one in pilot.spent if pilot.rows else ():
            known = one.attempts - one.attempts_without_usage
            scale, cost = left.get(cell, 0) / pilot.rows, dollars([one])
            estimate = Estimate(
                one.role,
                one.model,
                scale * one.prompt_tokens * one.attempts / known if known else None,
                scale * one.completion_tokens * one.attempts / known if known else None,
                None if cost is None else scale * cost,
            )
            before = sums.get((one.role, one.model))
            sums[one.role, one.model] = estimate if before is None else _sum(one.role, one.model, [before, estimate])
    unknown = sum(count > 0 and not (cell in pilots and pilots[cell].rows) for cell, count in left.items())
    blind = [Estimate("all", f"of {unknown:,} pairs without a pilot", None, None, None)] if unknown else []
    return [*sums.values(), *blind]


def seconds_left(
    pilots: Mapping[str, CellPilot], left: Mapping[str, int], concurrency: int
) -> tuple[float, float] | None:
    """How long the rollouts that are left will take to answer, `left` by cell and `concurrency` at a time.

    At least, where many at a time take no longer each than those that were measured; at most, where models do no more
    at a time than that. None where nobody knows how long one of some cell takes.
    """
    least = most = 0.0
    for name, count in left.items():
        measured_s = pilots[name].latencies_s if name in pilots else []
        if count and not measured_s:
            return None
        if count:
            all_s, at_once = count * statistics.fmean(measured_s), min(concurrency, count)
            least += all_s / at_once
            most += all_s / min(at_once, len(measured_s))
    return least, most


def time_line(seconds: tuple[float, float] | None) -> str:
    """What `seconds_left` tells, in words."""
    ends = list(dict.fromkeys(str(timedelta(seconds=round(end))) for end in seconds or ()))
    known = f"about {' to '.join(ends)}" if ends else "an unknown time"
    return f"They will take {known}, besides starting engines, judging and attributing."


def estimate_table(found: Sequence[Estimate], left: int) -> Table:
    """A row for each role and model, and their sum."""
    table = Table("role", "model", title=f"{left:,} rollouts are left; they will cost about", title_justify="left")
    for column in ("prompt tokens", "written", "dollars"):
        table.add_column(column, justify="right")
    for one in (*found, _sum("all", "", found)):
        texts = [
            "unknown" if amount is None else f"{amount:,.{digits}f}"
            for amount, digits in ((one.prompt_tokens, 0), (one.completion_tokens, 0), (one.dollars, 4))
        ]
        table.add_row(one.role, one.model, *texts)
    return table


def _sum(role: str, model: str, many: Sequence[Estimate]) -> Estimate:
    return Estimate(
        role,
        model,
        _known([one.prompt_tokens for one in many]),
        _known([one.completion_tokens for one in many]),
        _known([one.dollars for one in many]),
    )


def _known(amounts: Sequence[float | None]) -> float | None:
    """Their sum; None where any is not known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None
