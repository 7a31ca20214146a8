"""Comparison of two independent answers to the same request, and the table made from them.

The table is made from the answer with more filled cells. Rows whose key is missing in the other
answer are left out. Cells in which the two answers differ are blanked.

Two answers from the same documents miss the same rows. So agreement is evidence for the cells, but
not for a table's completeness.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from msgspec import structs

from executor_sft.questions import HeldOut, Question
from executor_sft.tables.synthesis import MIN_COLUMNS
from router.frozen import Frozen
from router.table.cell_value import canonical, row_key
from router.table.scores import table_score
from router.trace.table import Schema

_Rows = tuple[tuple[str, ...], ...]


class Answer(Frozen):
    """One answer to a request: the rows of the filled table, and the number of sub-queries and
    tokens used. A cell has a value only if a passage contains the value.
    """

    rows: _Rows
    sub_agents: int
    tokens: int


class Answers(Frozen):
    """Two independent answers to a request: a line of `answers.jsonl`."""

    question: Question
    answers: tuple[Answer, Answer]

    @property
    def schema(self) -> Schema:
        """Columns of the requested table."""
        assert self.question.table
        return Schema(self.question.table.columns)


class MadeTable(Frozen):
    """The table made from two answers: a line of `scores.jsonl`."""

    question: Question
    """The request, with the rows of the table."""
    consistency: float
    """Agreement of the two answers: the item F1 (F1 over cells) of one against the other."""
    support: float
    """Share of the table's cells that have a value."""
    dropped: int
    """Number of rows that were left out, because only one of the two answers has them."""
    blanked: int
    """Number of cells that were blanked, because the two answers have different values there."""
    reason: str = ""
    """Reason not to keep the table; empty if the table is kept."""


def unusable(request: Question, held_out: HeldOut) -> str:
    """Return the reason not to answer a request; empty if it can be answered."""
    if request.table is None:
        return "request could not be read"
    if len(request.table.columns) < MIN_COLUMNS:
        return "too few columns"
    likeness = held_out.likeness(request.text)
    return f"held out: {likeness} question" if likeness else ""


def made_tables(
    answered: Sequence[Answers], *, consistency: float, min_rows: int, support: float
) -> Iterator[MadeTable]:
    """Yield the table made from each pair of answers. A table is kept (its `reason` is empty) if it
    reaches the limits, unless a table with the same rows was kept before. `consistency`, `support`:
    min values of these fields of `MadeTable`. `min_rows`: min number of rows.
    """
    seen = set[_Rows]()
    for pair in answered:
        table = _made(pair)
        rows = table.question.rows
        reasons = {
            "answers disagree": table.consistency < consistency,
            "too few rows": len(rows) < min_rows,
            "too little support": table.support < support,
            "same table": rows in seen,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), "")
        if not reason:
            seen.add(rows)
        yield structs.replace(table, reason=reason)


def _made(pair: Answers) -> MadeTable:
    schema = pair.schema
    other, best = sorted(pair.answers, key=lambda answer: _supported(answer.rows))
    twins = {row_key(schema, row): row for row in other.rows}
    made = list[tuple[str, ...]]()
    blanked = 0
    for row in best.rows:
        if twin := twins.get(row_key(schema, row)):
            agrees = [
                canonical(column, value) == canonical(column, its_value)
                for column, value, its_value in zip(schema.columns, row, twin, strict=True)
            ]
            cells = zip(row, agrees, strict=True)
            made.append(tuple(value if agreed else "" for value, agreed in cells))
            blanked += agrees.count(False)
    return MadeTable(
        structs.replace(pair.question, rows=tuple(sorted(made))),
        table_score(schema, best.rows, other.rows).item_f1,
        _supported(made) / max(1, len(made) * len(schema.columns)),
        len(best.rows) + len(other.rows) - 2 * len(made),
        blanked,
    )


def _supported(rows: Iterable[tuple[str, ...]]) -> int:
    """Return the number of cells with a value."""
    return sum(map(bool, chain.from_iterable(rows)))
