"""What the training data is made of, by the data set of its questions (TBSS, Table 7)."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from executor_sft.kept import Kept

Composition = dict[str, dict[str, int]]
"""By source: `records`, and the `questions` that these are from."""


def composition(kept: Sequence[Kept]) -> Composition:
    """Records and unique source questions of every source."""
    questions: dict[str, list[str]] = {}
    for trajectory in kept:
        questions.setdefault(trajectory.source, []).append(trajectory.question_id)
    return {source: {"records": len(ids), "questions": len(set(ids))} for source, ids in sorted(questions.items())}


def composition_table(sources: Composition) -> Table:
    """A row for each source, and a sum."""
    table = Table("source", box=SIMPLE_HEAD)
    for column in ("records", "questions"):
        table.add_column(column, justify="right")
    for source, counts in sources.items():
        table.add_row(escape(source) or "–", f"{counts['records']:,}", f"{counts['questions']:,}")
    table.add_section()
    sums = (sum(counts[column] for counts in sources.values()) for column in ("records", "questions"))
    table.add_row("all", *(f"{count:,}" for count in sums))
    return table


def counts_table(title: str, counts: Mapping[str, int]) -> Table:
    """A row for each name, and a sum."""
    table = Table(title, box=SIMPLE_HEAD)
    table.add_column("count", justify="right")
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    table.add_section()
    table.add_row("all", f"{sum(counts.values()):,}")
    return table
