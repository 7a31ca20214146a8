"""Results of a sweep: rows in a file that survives kills, and what a report reads of them."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.plan import Plan
from executor_sft.jsonl import read_json, read_jsonl
from executor_sft.step import write_json
from router.errors import BadConfig
from router.trace import RoleName
from router.trace.attribution import Loss
from router.trace.call import RoleTotal, added

RESULTS = "results.jsonl"
PLAN = "plan.json"
ADVICE = "remove this line; the same sweep makes it again"


class QuestionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Line of `results.jsonl`."""

    cell: str
    topology: str
    backbone: str
    executor: str
    """Empty for a model that works alone."""
    dataset: str
    question_id: str
    question: str
    golds: tuple[str, ...]
    rollout: int
    """Number of the rollout, from 0."""
    answer: str
    outcome: str
    exact_match: bool
    f1: float
    judged: bool
    accepted: bool | None
    """Verdict of the judge; None if it was not asked or its reply was unreadable."""
    searches: tuple[int, ...]
    """Searches of each executor run; a single agent counts as one run."""
    spent: tuple[RoleTotal, ...]
    """Cost of the answer, by role and model."""
    latency_s: float | None
    """Latency of the whole run, at the sweep's concurrency; None if any of its calls came from the
    call cache.
    """
    lost_by: Loss | None
    """Role that lost a wrong answer; None for right answers, and if unknown."""
    index: str | None
    """Id of the retriever's index; None if unknown."""

    @property
    def right(self) -> bool:
        """Return the judge's verdict, or exact match without one."""
        return self.exact_match if self.accepted is None else self.accepted


class KeptPlan(msgspec.Struct, frozen=True):
    """Content of `plan.json`: the part of the plan that a report needs."""

    title: str
    question_ids: tuple[str, ...]
    rollouts: int
    cells: tuple[str, ...]
    parameters: dict[str, float | None]
    """Parameters by model, in the order of the plan, from the smallest to the largest."""


def write_plan(
    folder: Path,
    plan: Plan,
    cells: Sequence[str],
    questions: Sequence[BenchmarkQuestion],
) -> None:
    """Write `plan.json` into the folder of a sweep."""
    parameters = {name: model.parameters for name, model in plan.models.items()}
    question_ids = tuple(question.id for question in questions)
    kept = KeptPlan(
        plan.title,
        question_ids,
        plan.rollouts,
        tuple(cells),
        parameters,
    )
    write_json(folder / PLAN, kept)


class CellRows(msgspec.Struct, frozen=True, dict=True):
    """Rows of one cell."""

    name: str
    topology: str
    backbone: str
    executor: str
    rows: tuple[QuestionResult, ...]

    @cached_property
    def spent(self) -> list[RoleTotal]:
        """Return the totals of all rows by role, model and manager, in the order of their first
        appearance.
        """
        groups: dict[tuple[str, ...], list[RoleTotal]] = {}
        for row in self.rows:
            for total in row.spent:
                groups.setdefault((total.role, total.model, total.manager), []).append(total)
        return [msgspec.structs.replace(group[0], **added(group)) for group in groups.values()]

    def tokens(self, role: RoleName | None = None) -> float:
        """Return the mean prompt and completion tokens per question, of one role or of all."""
        spent = (
            total.prompt_tokens + total.completion_tokens
            for total in self.spent
            if role in (None, total.role)
        )
        return sum(spent) / len(self.rows)


class Study(msgspec.Struct, frozen=True):
    """All results of a sweep."""

    plan: KeptPlan
    cells: tuple[CellRows, ...]
    """Cells with rows, in the order of the plan."""

    @property
    def complete(self) -> bool:
        """Return whether every cell has all rollouts."""
        wanted = len(self.plan.question_ids) * self.plan.rollouts
        return len(self.cells) == len(self.plan.cells) and all(
            len(cell.rows) == wanted for cell in self.cells
        )

    @property
    def pairs(self) -> list[CellRows]:
        """Return the cells in which a backbone delegates to executors, without managers, in the
        order of their models.
        """
        places = {name: number for number, name in enumerate(self.plan.parameters)}
        pairs = [cell for cell in self.cells if cell.topology == "factorized"]
        return sorted(pairs, key=lambda cell: (places[cell.backbone], places[cell.executor]))

    def sweeps(self, *, backbones: bool) -> list[tuple[str, dict[str, CellRows]]]:
        """Return the backbones of each executor, or else the executors of each backbone: the fixed
        model, and at least two cells by the model that varies. Sweeps with the most models come
        first; among equals, the smallest executor or the largest backbone.
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
    """Read the sweep in a folder. Raises `BadConfig`."""
    plan = read_json(folder / PLAN, KeptPlan, "name the folder of a sweep made by this release")
    asked = frozenset(plan.question_ids)
    rows: dict[str, list[QuestionResult]] = {name: [] for name in plan.cells}
    for _, row in read_jsonl(folder / RESULTS, QuestionResult, ADVICE, growing=True):
        # The plan may have become smaller
        if row.cell in rows and row.rollout < plan.rollouts and row.question_id in asked:
            rows[row.cell].append(row)
    cells = tuple(_cell(name, own) for name, own in rows.items() if own)
    if not cells:
        raise BadConfig(f"{folder / RESULTS}: has no rows yet; run the sweep first.")
    return Study(plan, cells)


def _cell(name: str, rows: Iterable[QuestionResult]) -> CellRows:
    """Return the rows of a cell, in an order that does not depend on their speed."""
    ordered = sorted(rows, key=lambda row: (row.dataset, row.question_id, row.rollout))
    first = ordered[0]
    return CellRows(
        name,
        first.topology,
        first.backbone,
        first.executor,
        tuple(ordered),
    )
