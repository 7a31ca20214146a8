"""The results of a sweep: rows in a file that a kill at any time leaves usable, and what a
report reads of them.
"""

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
_ADVICE = "remove this line, and the same sweep makes it again"
Loss = Literal["delegation", "retrieval", "reading", "answering"]


class Attribution(msgspec.Struct, frozen=True):
    """The role that lost a wrong answer: the first one whose right work would have saved it.

    With gold sub-queries, the answer is right: delegation. With gold reports, it is: the executor's
    work on the gold sub-queries; retrieval where no passage that it was shown holds the first
    answer that it missed, or else reading. If not even that helps: answering.
    """

    lost_by: Loss
    with_gold_sub_queries: str
    """The answer then."""
    with_gold_reports: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `results.jsonl`."""

    cell: str
    topology: str
    backbone: str
    executor: str | None
    max_turns: int
    """Its executor's limit (K in TBSS 4.1)."""
    dataset: str
    question_id: str
    question: str
    golds: tuple[str, ...]
    rollout: int
    """From 0."""
    answer: str
    outcome: str
    exact_match: bool
    f1: float
    judged: bool
    accepted: bool | None
    """The judge's verdict; None where it was not asked, or its reply could not be read."""
    searches: tuple[int, ...]
    """Of each executor run."""
    spent: tuple[RoleTotal, ...]
    """On the answer, by role and model."""
    checking: tuple[RoleTotal, ...]
    """On judging and attributing it; calls remembered from elsewhere were paid for there."""
    checked: tuple[str, ...]
    """Keys of the calls in `checking`, each of which stands in one row only."""
    latency_s: float | None
    """Of the whole run, with as many others beside it as the sweep allows; None where calls of it
    had been made before, by a sweep that was killed or for the same sub-query, so that they took no
    time again.
    """
    attribution: Attribution | None
    """None where it was right, where nobody asked, and where no gold decomposition is known."""
    seed: int
    index: str | None
    """The retriever's own name of it; None where that is not known."""

    @property
    def right(self) -> bool:
        """By the judge, where its reply could be read, or else by exact match."""
        return self.exact_match if self.accepted is None else self.accepted


class RowFile:
    """The rows that are done, and more of them."""

    def __init__(self, file: JsonlFile[Row]) -> None:
        """Raises `BadConfig` for a line that is not a row."""
        self._file = file
        self._indexes = set[str | None]()
        self.done: set[tuple[str, str, int]] = set()
        """Cell, question and rollout of each."""
        self.booked: set[str] = set()
        """Keys of all calls that rows have under `checking`."""
        for row in file:
            self._note(row)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator["RowFile"]:
        """Open that of a folder; a line that was torn is cut off. Raises `BadConfig`."""
        with closing(JsonlFile(folder / RESULTS, Row, _ADVICE)) as file:
            yield cls(file)

    def append(self, row: Row) -> None:
        """Keep a row. Raises `StoreFailed`."""
        self._file.append(row)
        self._note(row)

    def check_index(self, index: str | None) -> None:
        """Raise `BadConfig` where rows were made with another index."""
        if others := self._indexes - {index}:
            raise BadConfig(
                f"{self._file.path}: rows were made with the index {others.pop()!r}, and "
                f"now it is {index!r}; go on "
                "with that one, or begin in a new folder."
            )

    def _note(self, row: Row) -> None:
        self.done.add((row.cell, row.question_id, row.rollout))
        self.booked.update(row.checked)
        self._indexes.add(row.index)


def read_rows(path: Path) -> Iterator[Row]:
    """Read a file row by row, without a last line that is still being written, or was torn. Raises
    `BadConfig`, naming file and line.
    """
    return (row for _, row in read_jsonl(path, Row, _ADVICE, growing=True))


class KeptPlan(msgspec.Struct, frozen=True):
    """`plan.json`: the part of the plan that a report needs."""

    title: str
    question_ids: tuple[str, ...]
    rollouts: int
    cells: tuple[str, ...]
    parameters: dict[str, float | None]
    """By model, in the order of the plan, which goes from the smallest to the largest."""


def write_plan(
    folder: Path, plan: Plan, cells: Sequence[str], questions: Sequence[BenchmarkQuestion]
) -> None:
    """Write it into the folder of a sweep."""
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
    cells: dict[str, CellRows]
    """By the model of the other role, in the order of the plan: at least two, of one limit of
    turns.
    """


class Study(msgspec.Struct, frozen=True):
    """All results."""

    plan: KeptPlan
    cells: tuple[CellRows, ...]
    """Those with rows, in the order of the plan."""

    @property
    def complete(self) -> bool:
        """True where every cell has answered everything."""
        wanted = len(self.plan.question_ids) * self.plan.rollouts
        return len(self.cells) == len(self.plan.cells) and all(
            len(cell.rows) == wanted for cell in self.cells
        )

    @property
    def places(self) -> dict[str, int]:
        """Each model's place in the sweep's file."""
        return {name: number for number, name in enumerate(self.plan.parameters)}

    def labelled(self, model: str, max_turns: int) -> str:
        """A model's name, with its limit of turns where the plan has several."""
        several = len({cell.max_turns for cell in self.cells}) > 1
        return f"{model}, K={max_turns}" if several else model

    def sweeps(self, *, backbones: bool) -> list[RoleSweep]:
        """With each executor its backbones, or else with each backbone its executors. Two limits of
        turns are two sweeps. Those of the most models come first, and of these the smallest
        executor, or else the largest backbone.
        """
        places = self.places
        groups: dict[tuple[str, int], dict[str, CellRows]] = {}
        for cell in filter(lambda cell: cell.pair, self.cells):
            fixed, varied = (
                (cell.executor, cell.backbone) if backbones else (cell.backbone, cell.executor)
            )
            group = groups.setdefault((fixed, cell.max_turns), {})
            if varied not in group or cell.topology == "factorized":
                group[varied] = cell
        ordered = sorted(
            groups, key=lambda key: (-len(groups[key]), places[key[0]] * (1 if backbones else -1))
        )
        return [
            RoleSweep(
                *key,
                {name: groups[key][name] for name in sorted(groups[key], key=places.__getitem__)},
            )
            for key in ordered
            if len(groups[key]) > 1
        ]


def read_study(folder: Path) -> Study:
    """Read the sweep in a folder. Raises `BadConfig`."""
    plan = read_json(folder / PLAN, KeptPlan, "name the folder of a sweep, made by this release")
    asked = frozenset(plan.question_ids)
    rows: dict[str, list[Row]] = {name: [] for name in plan.cells}
    for row in read_rows(folder / RESULTS):
        # A plan may have been cut
        if row.cell in rows and row.rollout < plan.rollouts and row.question_id in asked:
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
