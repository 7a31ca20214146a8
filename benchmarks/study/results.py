"""The results of a finished or unfinished sweep, as its report reads them."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.plan import Plan
from benchmarks.study.rows import RESULTS, Row, read_rows
from benchmarks.study.spending import merged
from executor_sft.jsonl import read_json
from executor_sft.step import write_json
from router.errors import BadConfig
from router.trace.call import RoleTotal

PLAN = "plan.json"


class KeptPlan(msgspec.Struct, frozen=True):
    """`plan.json`: the part of the plan that a report needs."""

    title: str
    question_ids: tuple[str, ...]
    rollouts: int
    cells: tuple[str, ...]
    parameters: dict[str, float | None]
    """By model, in the order of the plan, which goes from the smallest to the largest."""


def write_plan(folder: Path, plan: Plan, cells: Sequence[str], questions: Sequence[BenchmarkQuestion]) -> None:
    """Write it into the folder of a sweep."""
    parameters = {name: model.parameters for name, model in plan.models.items()}
    kept = KeptPlan(plan.title, tuple(question.id for question in questions), plan.rollouts, tuple(cells), parameters)
    write_json(folder / PLAN, kept)


class CellRows(msgspec.Struct, frozen=True, dict=True):
    """The rows of one cell."""

    name: str
    topology: str
    backbone: str
    executor: str
    """In a homogeneous pair the backbone's model; empty where there is none."""
    max_turns: int
    rows: tuple[Row, ...]

    @property
    def pair(self) -> bool:
        """True where a backbone delegates to an executor that goes by our protocol."""
        return self.topology in ("factorized", "homogeneous")

    @cached_property
    def spent(self) -> list[RoleTotal]:
        """The totals of all its rows, without judging and attributing."""
        return merged(one for row in self.rows for one in row.spent)


class RoleSweep(msgspec.Struct, frozen=True):
    """A model that stays in its role, with the pairs in which the other role varies."""

    fixed: str
    max_turns: int
    cells: tuple[CellRows, ...]
    """At least two, of one limit of turns; each model of the other role once, in the order of the plan."""


class Study(msgspec.Struct, frozen=True):
    """All results."""

    plan: KeptPlan
    cells: tuple[CellRows, ...]
    """Those with rows, in the order of the plan."""

    @property
    def complete(self) -> bool:
        """True where every cell has answered everything."""
        wanted = len(self.plan.question_ids) * self.plan.rollouts
        return len(self.cells) == len(self.plan.cells) and all(len(cell.rows) == wanted for cell in self.cells)

    @property
    def places(self) -> dict[str, int]:
        """Each model's place in the sweep's file."""
        return {name: number for number, name in enumerate(self.plan.parameters)}

    def labelled(self, model: str, max_turns: int) -> str:
        """A model's name, with its limit of turns where the plan has several."""
        several = len({cell.max_turns for cell in self.cells}) > 1
        return f"{model}, K={max_turns}" if several else model

    def sweeps(self, *, backbones: bool) -> list[RoleSweep]:
        """With each executor its backbones, or else with each backbone its executors. Two limits of turns are two
        sweeps. Those of the most models come first, and of these the smallest executor, or else the largest backbone.
        """
        places = self.places
        groups: dict[tuple[str, int], dict[str, CellRows]] = {}
        for cell in filter(lambda cell: cell.pair, self.cells):
            fixed, varied = (cell.executor, cell.backbone) if backbones else (cell.backbone, cell.executor)
            group = groups.setdefault((fixed, cell.max_turns), {})
            if varied not in group or cell.topology == "factorized":
                group[varied] = cell
        ordered = sorted(groups, key=lambda key: (-len(groups[key]), places[key[0]] * (1 if backbones else -1)))
        return [
            RoleSweep(*key, tuple(groups[key][name] for name in sorted(groups[key], key=places.__getitem__)))
            for key in ordered
            if len(groups[key]) > 1
        ]


def read_study(folder: Path) -> Study:
    """Read the sweep in a folder. Raises `BadConfig`."""
    plan = read_json(folder / PLAN, KeptPlan, "name the folder of a sweep, made by this release")
    asked = frozenset(plan.question_ids)
    rows: dict[str, list[Row]] = {name: [] for name in plan.cells}
    for row in read_rows(folder / RESULTS):
        if row.cell in rows and row.rollout < plan.rollouts and row.question_id in asked:  # a plan may have been cut
            rows[row.cell].append(row)
    cells = tuple(_cell(name, found) for name, found in rows.items() if found)
    if not cells:
        raise BadConfig(f"{folder / RESULTS}: holds no row yet; finish the sweep first.")
    return Study(plan, cells)


def _cell(name: str, rows: list[Row]) -> CellRows:
    """In an order that does not tell which was quicker."""
    first = rows[0]
    executor = first.executor or (first.backbone if first.topology == "homogeneous" else "")
    ordered = sorted(rows, key=lambda row: (row.dataset, row.question_id, row.rollout))
    return CellRows(name, first.topology, first.backbone, executor, first.max_turns, tuple(ordered))
