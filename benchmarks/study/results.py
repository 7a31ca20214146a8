"""Results of a sweep. A `QuestionResult` is a line of `results.jsonl`; the `Study` has all results,
grouped for a report.
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import msgspec

from executor_sft.jsonl import read_json, read_jsonl
from router.errors import BadConfig
from router.frozen import Frozen
from router.trace import RoleName
from router.trace.attribution import Loss
from router.trace.call import RoleTotal, added

RESULTS = "results.jsonl"
PLAN = "plan.json"
ADVICE = "remove this line; the same sweep then makes this rollout again"


class QuestionResult(Frozen, kw_only=True):
    """One line of `results.jsonl`: one answer to one question in one cell."""

    cell: str
    topology: str
    backbone: str
    executor: str
    """Name of the executor's model in the plan; empty if the backbone's model worked alone."""
    dataset: str
    question_id: str
    question: str
    golds: tuple[str, ...]
    rollout: int
    """Number of this answer, from 0, among the answers to the same question in the same
    configuration of the sweep.
    """
    answer: str
    outcome: str
    exact_match: bool
    f1: float
    judged: bool
    """True if the judge was asked."""
    accepted: bool | None
    """The judge's verdict; None if the judge was not asked, or its reply could not be parsed."""
    searches: tuple[int, ...]
    """Number of searches for each sub-query. The work of a single agent counts as one sub-query."""
    spent: tuple[RoleTotal, ...]
    """Calls and cost of the answer, by role and model."""
    latency_s: float | None
    """Duration of the run in seconds. Other questions were answered at the same time. None if any
    call of the run was answered from the call cache.
    """
    lost_by: Loss | None
    """Role that caused a wrong answer; None if the answer is right, or if the role is unknown."""
    index: str | None
    """Id of the index that was searched; None if unknown."""

    @property
    def right(self) -> bool:
        """Return True if the judge accepts the answer. Without a verdict of the judge, return True
        if the answer is an exact match.
        """
        return self.exact_match if self.accepted is None else self.accepted


class KeptPlan(Frozen):
    """Content of `plan.json` in a sweep's folder: the parts of the plan that a report needs."""

    title: str
    question_ids: tuple[str, ...]
    rollouts: int
    cells: tuple[str, ...]
    parameters: dict[str, float | None]
    """Number of parameters of each model; None if unknown. Models are in the order of the plan,
    which should list small models first.
    """


class CellRows(Frozen, dict=True):
    """All results of one cell."""

    name: str
    topology: str
    backbone: str
    executor: str
    rows: tuple[QuestionResult, ...]

    @cached_property
    def spent(self) -> list[RoleTotal]:
        """Return the calls, tokens and cost of all answers together: one total for each combination
        of role, model and manager, in the order of first occurrence.
        """
        groups = dict[tuple[str, ...], list[RoleTotal]]()
        for row in self.rows:
            for total in row.spent:
                groups.setdefault((total.role, total.model, total.manager), []).append(total)
        return [msgspec.structs.replace(group[0], **added(group)) for group in groups.values()]

    def tokens(self, role: RoleName | None = None) -> float:
        """Return the mean number of prompt and completion tokens per answer. `role`: only tokens of
        this role; None for all roles.
        """
        spent = (
            total.prompt_tokens + total.completion_tokens
            for total in self.spent
            if role in (None, total.role)
        )
        return sum(spent) / len(self.rows)


class Study(Frozen):
    """All results of a sweep."""

    plan: KeptPlan
    cells: tuple[CellRows, ...]
    """Cells that have results, in the order of the plan."""

    @property
    def complete(self) -> bool:
        """Return True if no result of the plan is missing."""
        wanted = len(self.plan.question_ids) * self.plan.rollouts
        return len(self.cells) == len(self.plan.cells) and all(
            len(cell.rows) == wanted for cell in self.cells
        )

    @property
    def pairs(self) -> list[CellRows]:
        """Return the cells in which a backbone delegates to executors without managers. They are
        ordered by backbone and then by executor, each in the order of the plan's models.
        """
        places = {name: number for number, name in enumerate(self.plan.parameters)}
        pairs = [cell for cell in self.cells if cell.topology == "factorized"]
        return sorted(pairs, key=lambda cell: (places[cell.backbone], places[cell.executor]))

    def sweeps(self, *, backbones: bool) -> list[tuple[str, dict[str, CellRows]]]:
        """Return series of cells. In a series, the model of one role varies, and the other model is
        fixed. Each series is (name of the fixed model, cells by name of the varying model), with at
        least two cells.

        `backbones`: True to vary the backbone for each executor, False to vary the executor for
        each backbone. The series with the most models is first. Of equally long series, the series
        with the smallest executor or the largest backbone is first.
        """
        groups: dict[str, dict[str, CellRows]] = {name: {} for name in self.plan.parameters}
        for cell in self.pairs:
            if backbones:
                groups[cell.executor][cell.backbone] = cell
            else:
                groups[cell.backbone][cell.executor] = cell
        found = [(fixed, cells) for fixed, cells in groups.items() if len(cells) > 1]
        if not backbones:
            found.reverse()
        return sorted(found, key=lambda sweep: -len(sweep[1]))


def read_study(folder: Path) -> Study:
    """Return the results of the sweep in a folder. Raises `BadConfig` if there are no results, or
    if a file is invalid.
    """
    plan = read_json(folder / PLAN, KeptPlan, "name the folder of a sweep made by this release")
    asked = frozenset(plan.question_ids)
    rows: dict[str, list[QuestionResult]] = {name: [] for name in plan.cells}
    for row in read_jsonl(folder / RESULTS, QuestionResult, ADVICE, growing=True):
        # Skip results that belong to an earlier, larger plan
        if row.cell in rows and row.rollout < plan.rollouts and row.question_id in asked:
            rows[row.cell].append(row)
    cells = tuple(_cell(name, own) for name, own in rows.items() if own)
    if not cells:
        raise BadConfig(f"{folder / RESULTS}: has no results yet; run the sweep first.")
    return Study(plan, cells)


def _cell(name: str, rows: Iterable[QuestionResult]) -> CellRows:
    """Return the cell with these results, ordered by question. Their order in the file is
    arbitrary, because answers are written when they are finished.
    """
    ordered = sorted(rows, key=lambda row: (row.dataset, row.question_id, row.rollout))
    first = ordered[0]
    return CellRows(
        name,
        first.topology,
        first.backbone,
        first.executor,
        tuple(ordered),
    )
