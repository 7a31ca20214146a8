"""What a sweep will take, by what its pilot took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from benchmarks.study.pricing import dollars, merged
from benchmarks.study.result_row import Scored
from router.role_total import RoleTotal


@dataclass(slots=True)
class CellPilot:
    """What the rows of one cell took."""

    rows: int = 0
    spent: list[RoleTotal] = field(default_factory=list)

    def add(self, row: Scored) -> None:
        """Count another row."""
        self.rows += 1
        self.spent = merged([*self.spent, *row.spent, *row.checking])


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of what is still to be done."""

    role: str
    model: str
    prompt_tokens: float
    completion_tokens: float
    dollars: float | None
    """None where a price is not known."""


def estimates(pilots: Mapping[str, CellPilot], left: Mapping[str, int]) -> list[Estimate]:
    """By role and model. `left`: rollouts to be done, by cell; each takes what those of its pilot took on average."""
    sums: dict[tuple[str, str], Estimate] = {}
    for cell, pilot in pilots.items():
        for one in pilot.spent if pilot.rows else ():
            known = one.attempts - one.attempts_without_usage
            scale = left.get(cell, 0) / pilot.rows * (one.attempts / known if known else 1.0)
            before = sums.get((one.role, one.model), Estimate(one.role, one.model, 0.0, 0.0, 0.0))
            cost = dollars([one])
            sums[one.role, one.model] = Estimate(
                one.role,
                one.model,
                before.prompt_tokens + scale * one.prompt_tokens,
                before.completion_tokens + scale * one.completion_tokens,
                None if before.dollars is None or cost is None else before.dollars + scale * cost,
            )
    return list(sums.values())


def estimate_table(found: Sequence[Estimate], left: int) -> Table:
    """A row for each role and model, and their sum."""
    table = Table("role", "model", title=f"{left:,} rollouts are left; they will take about", title_justify="left")
    for column in ("prompt tokens", "written", "dollars"):
        table.add_column(column, justify="right")
    known = [one.dollars for one in found if one.dollars is not None]
    whole = Estimate(
        "all",
        "",
        sum(one.prompt_tokens for one in found),
        sum(one.completion_tokens for one in found),
        sum(known) if len(known) == len(found) else None,
    )
    for one in (*found, whole):
        cost = "price unknown" if one.dollars is None else f"{one.dollars:.4f}"
        table.add_row(one.role, one.model, f"{one.prompt_tokens:,.0f}", f"{one.completion_tokens:,.0f}", cost)
    return table
