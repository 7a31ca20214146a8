"""The rows of a finished or unfinished sweep, as its report reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.study.provenance import Provenance
from benchmarks.study.result_row import Scored, Sourced
from benchmarks.study.results import RESULTS, read_rows
from router.errors import BadConfig

PLAN = "plan.json"


class KeptPlan(msgspec.Struct, frozen=True):
    """`plan.json`: what a report needs to know of the plan."""

    title: str
    question_ids: tuple[str, ...]
    rollouts: int
    cells: tuple[str, ...]
    parameters: dict[str, float | None]
    """By model, in the order of the plan."""


@dataclass(frozen=True, slots=True)
class CellRows:
    """What one cell did."""

    name: str
    topology: str
    backbone: str
    executor: str
    """In a homogeneous pair the backbone's model; empty where there is none."""
    max_turns: int
    rows: tuple[Scored, ...]

    @property
    def pair(self) -> bool:
        """Whether a backbone delegates to an executor that goes by our protocol."""
        return self.topology in ("factorized", "homogeneous")


@dataclass(frozen=True, slots=True)
class RoleSweep:
    """A model that stays in its role, with the pairs in which the other role varies."""

    fixed: str
    max_turns: int
    cells: tuple[CellRows, ...]
    """At least two, of one limit of turns; each model of the other role once, in the order of the plan."""


@dataclass(frozen=True, slots=True)
class Study:
    """All of it."""

    plan: KeptPlan
    cells: tuple[CellRows, ...]
    """Those with rows, in the order of the plan."""
    made_by: Mapping[str, Provenance]
    """By cell, as its first row has it."""

    @property
    def whole(self) -> bool:
        """Whether every cell has answered everything."""
        wanted = len(self.plan.question_ids) * self.plan.rollouts
        return len(self.cells) == len(self.plan.cells) and all(len(cell.rows) == wanted for cell in self.cells)

    @property
    def places(self) -> dict[str, int]:
        """Each model's place in the sweep's file, which goes from the smallest to the largest."""
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
        found = sorted(groups, key=lambda key: (-len(groups[key]), places[key[0]] * (1 if backbones else -1)))
        return [
            RoleSweep(*key, tuple(groups[key][name] for name in sorted(groups[key], key=places.__getitem__)))
            for key in found
            if len(groups[key]) > 1
        ]


def read_study(folder: Path) -> Study:
    """The sweep in a folder. Raises `BadConfig`."""
    plan = _plan(folder)
    asked = frozenset(plan.question_ids)
    found: dict[str, list[Scored]] = {name: [] for name in plan.cells}
    for row in read_rows(folder / RESULTS, Scored):
        # A plan may have been cut since.
        if row.cell in found and row.rollout < plan.rollouts and row.question_id in asked:
            found[row.cell].append(row)
    cells = tuple(_cell(name, rows) for name, rows in found.items() if rows)
    if not cells:
        raise BadConfig(f"{folder / RESULTS}: holds no row yet; finish the sweep first.")
    made_by: dict[str, Provenance] = {}
    for made in read_rows(folder / RESULTS, Sourced):  # again, as the provenance of all rows would fill the memory
        made_by.setdefault(made.cell, made.provenance)
    return Study(plan, cells, made_by)


def _plan(folder: Path) -> KeptPlan:
    try:
        return msgspec.json.decode((folder / PLAN).read_bytes(), type=KeptPlan)
    except OSError as error:
        raise BadConfig(f"{folder / PLAN}: cannot be read ({error.strerror}); name the folder of a sweep.") from None
    except msgspec.DecodeError as error:
        raise BadConfig(f"{folder / PLAN}: {error}; was it written by another release?") from None


def _cell(name: str, rows: list[Scored]) -> CellRows:
    """In an order that does not tell who was quicker."""
    first = rows[0]
    executor = first.executor or (first.backbone if first.topology == "homogeneous" else "")
    ordered = sorted(rows, key=lambda row: (row.dataset, row.question_id, row.rollout))
    return CellRows(name, first.topology, first.backbone, executor, first.max_turns, tuple(ordered))
