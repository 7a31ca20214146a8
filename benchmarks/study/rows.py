"""Rows of a sweep, one for each rollout of a question by a cell, in a file that a kill at any time leaves usable."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from executor_sft.jsonl import JsonlFile, read_jsonl
from router.errors import BadConfig
from router.trace.call import RoleTotal

RESULTS = "results.jsonl"
_ADVICE = "remove this line, and the same sweep makes it again"
Loss = Literal["delegation", "retrieval", "reading", "answering"]


class Attribution(msgspec.Struct, frozen=True):
    """The role that lost a wrong answer: the first one whose right work would have saved it.

    With gold sub-queries, the answer is right: delegation. With gold reports, it is: the executor's work on the gold
    sub-queries; retrieval where no passage that it was shown holds the first answer that it missed, or else reading. If
    not even that helps: answering.
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
    """Of the whole run, with as many others beside it as the sweep allows; None where calls of it had been made before,
    by a sweep that was killed or for the same sub-query, so that they took no time again."""
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
                f"{self._file.path}: rows were made with the index {others.pop()!r}, and now it is {index!r}; go on "
                "with that one, or begin in a new folder."
            )

    def _note(self, row: Row) -> None:
        self.done.add((row.cell, row.question_id, row.rollout))
        self.booked.update(row.checked)
        self._indexes.add(row.index)


def read_rows(path: Path) -> Iterator[Row]:
    """Read a file row by row, without a last line that is still being written, or was torn. Raises `BadConfig`, naming
    file and line.
    """
    return (row for _, row in read_jsonl(path, Row, _ADVICE, growing=True))
