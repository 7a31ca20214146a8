"""Results of a sweep: rows in a file that survives kills, and what a report reads of them."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.plan import Plan
from benchmarks.study.spending import merged
from executor_sft.jsonl import JsonlFile, read_json, read_jsonl
from executor_sft.step import write_json
from router.errors import BadConfig
from router.trace.call import RoleTotal

RESULTS = "results.jsonl"
PLAN = "plan.json"
_ADVICE = "remove this line; the same sweep makes it again"
Loss = Literal["delegation", "retrieval", "reading", "answering"]


class AnswerLoss(msgspec.Struct, frozen=True):
    """Role that lost a wrong answer: the first one whose correct work would have saved it.

    Delegation, if the answer is right with gold sub-queries. If it is right with gold reports, the
    executor lost it: retrieval, if no passage shown has the first answer that it missed, else
    reading. Otherwise answering.
    """

    lost_by: Loss
    with_gold_sub_queries: str
    """Answer from the executor's reports on gold sub-queries."""
    with_gold_reports: str


class QuestionResult(msgspec.Struct, frozen=True, kw_only=True):
    """Line of `results.jsonl`."""

    cell: str
    topology: str
    backbone: str
    executor: str | None
    max_turns: int
    """Turn limit of the executor (K in TBSS 4.1)."""
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
    """Searches of each executor run."""
    spent: tuple[RoleTotal, ...]
    """Cost of the answer, by role and model."""
    checking: tuple[RoleTotal, ...]
    """Cost of judging and attributing it, without calls that another row paid for."""
    checked: tuple[str, ...]
    """Keys of the calls in `checking`; each is in one row only."""
    latency_s: float | None
    """Latency of the whole run, at the sweep's concurrency; None if any of its calls came from the
    call cache.
    """
    attribution: AnswerLoss | None
    """None for right answers, without attribution, and without a gold decomposition."""
    seed: int
    index: str | None
    """Id of the retriever's index; None if unknown."""

    @property
    def right(self) -> bool:
        """Return the judge's verdict, or exact match without one."""
        return self.exact_match if self.accepted is None else self.accepted


class RowFile:
    """File of finished rows, to which rows are appended."""

    def __init__(self, file: JsonlFile[QuestionResult]) -> None:
        """Read the rows. Raises `BadConfig` for a line that is not a row."""
        self._file = file
        self._indexes = set[str | None]()
        self.done: set[tuple[str, str, int]] = set()
        """Cell, question id and rollout of each row."""
        self.booked: set[str] = set()
        """Keys of all calls in `checking` of the rows."""
        for row in file:
            self._note(row)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator["RowFile"]:
        """Open the file of a folder; a torn last line is removed. Raises `BadConfig`."""
        with closing(JsonlFile(folder / RESULTS, QuestionResult, _ADVICE)) as file:
            yield cls(file)

    def append(self, row: QuestionResult) -> None:
        """Append a row. Raises `StoreFailed`."""
        self._file.append(row)
        self._note(row)

    def check_index(self, index: str | None) -> None:
        """Raise `BadConfig` if rows were made with another index."""
        if others := self._indexes - {index}:
            raise BadConfig(
                f"{self._file.path}: its rows come from index {others.pop()!r}, but the index is "
                f"now {index!r}; use the former index, or start in a new folder."
            )

    def _note(self, row: QuestionResult) -> None:
        self.done.add((row.cell, row.question_id, row.rollout))
        self.booked.update(row.checked)
        self._indexes.add(row.index)


def read_rows(path: Path) -> Iterator[QuestionResult]:
    """Yield the rows of a file, without an incomplete last line. Raises `BadConfig` with file and
    line.
    """
    return (row for _, row in read_jsonl(path, QuestionResult, _ADVICE, growing=True))


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
    kept = KeptPlan(
        plan.title,
        tuple(question.id for question in questions),
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
    """Executor; the backbone's model in a homogeneous pair, empty without an executor."""
    max_turns: int
    rows: tuple[QuestionResult, ...]

    @property
    def pair(self) -> bool:
        """Return whether a backbone delegates to an executor of our protocol."""
        return self.topology in ("factorized", "homogeneous")

    @cached_property
    def spent(self) -> list[RoleTotal]:
        """Return the totals of all rows, without judging and attributing."""
        return merged(one for row in self.rows for one in row.spent)


class RoleSweep(msgspec.Struct, frozen=True):
    """Pairs with one model fixed in its role while the other role varies."""

    fixed: str
    max_turns: int
    cells: dict[str, CellRows]
    """Cells by the model of the varied role, in the order of the plan: at least two, all with
    `max_turns`.
    """


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
    def places(self) -> dict[str, int]:
        """Return the position of each model in the plan."""
        return {name: number for number, name in enumerate(self.plan.parameters)}

    def labelled(self, model: str, max_turns: int) -> str:
        """Return a model's name, with its turn limit if the sweep has several."""
        several = len({cell.max_turns for cell in self.cells}) > 1
        return f"{model}, K={max_turns}" if several else model

    def sweeps(self, *, backbones: bool) -> list[RoleSweep]:
        """Return the backbones of each executor, or else the executors of each backbone. Each turn
        limit is a separate sweep. Sweeps with the most models come first; among equals, the
        smallest executor or the largest backbone.
        """
        places = self.places
        groups: dict[tuple[str, int], dict[str, CellRows]] = {}
        for cell in filter(lambda cell: cell.pair, self.cells):
            fixed = cell.executor if backbones else cell.backbone
            varied = cell.backbone if backbones else cell.executor
            group = groups.setdefault((fixed, cell.max_turns), {})
            if varied not in group or cell.topology == "factorized":
                group[varied] = cell

        sign = 1 if backbones else -1
        return [
            RoleSweep(*key, dict(sorted(group.items(), key=lambda item: places[item[0]])))
            for key, group in sorted(
                groups.items(), key=lambda item: (-len(item[1]), sign * places[item[0][0]])
            )
            if len(group) > 1
        ]


def read_study(folder: Path) -> Study:
    """Read the sweep in a folder. Raises `BadConfig`."""
    plan = read_json(folder / PLAN, KeptPlan, "name the folder of a sweep made by this release")
    asked = frozenset(plan.question_ids)
    rows: dict[str, list[QuestionResult]] = {name: [] for name in plan.cells}
    for row in read_rows(folder / RESULTS):
        # The plan may have become smaller
        if row.cell in rows and row.rollout < plan.rollouts and row.question_id in asked:
            rows[row.cell].append(row)
    cells = tuple(_cell(name, own) for name, own in rows.items() if own)
    if not cells:
        raise BadConfig(f"{folder / RESULTS}: has no rows yet; run the sweep first.")
    return Study(plan, cells)


def _cell(name: str, rows: list[QuestionResult]) -> CellRows:
    """Return the rows of a cell, in an order that does not depend on their speed."""
    first = rows[0]
    executor = first.executor or (first.backbone if first.topology == "homogeneous" else "")
    ordered = sorted(rows, key=lambda row: (row.dataset, row.question_id, row.rollout))
    return CellRows(
        name,
        first.topology,
        first.backbone,
        executor,
        first.max_turns,
        tuple(ordered),
    )
