"""What a list of questions is made of, and what was made of it."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.datasets.census import Census
from benchmarks.datasets.question import BenchmarkQuestion

_SHOWN = 5


class Counts(msgspec.Struct, frozen=True):
    """A data set's questions on their way (TBSS, Table 8)."""

    dataset: str
    split: str
    read: int
    sampled: int
    excluded: int
    """Of the sampled ones."""
    kept: int
    evidence: int
    """How many of those that were read name the passages that they take."""
    steps: int
    """How many of them have a gold decomposition."""


class Overview(msgspec.Struct, frozen=True):
    """What one command saw."""

    files: dict[str, int]
    """Rows."""
    counts: tuple[Counts, ...]
    census: Census
    """Of all that was read."""
    passages: dict[str, int]
    """Of the corpora beside the questions."""
    missing: dict[str, int]
    """How many passages that questions name are not in the corpus beside them."""


def count(
    questions: Sequence[BenchmarkQuestion], sampled: set[int], excluded: set[int], kept: set[int]
) -> tuple[Counts, ...]:
    """Count by data set and split, in the order of the list; the sets hold positions."""
    origins = [(question.dataset, question.split) for question in questions]

    def counted(positions: set[int]) -> Counter[tuple[str, str]]:
        return Counter(origins[position] for position in positions)

    read, evidence, steps = Counter(origins), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for question, origin in zip(questions, origins, strict=True):
        evidence[origin] += bool(question.supporting)
        steps[origin] += bool(question.decomposition)
    columns = (read, counted(sampled), counted(excluded & sampled), counted(kept), evidence, steps)
    return tuple(Counts(*origin, *(column[origin] for column in columns)) for origin in read)


def show(overview: Overview, console: Console) -> None:
    """Print it."""
    names = [field.name for field in msgspec.structs.fields(Counts)]
    table = Table(*names, title=", ".join(overview.files))
    for counts in overview.counts:
        table.add_row(*map(str, msgspec.structs.astuple(counts)))
    if len(overview.counts) > 1:
        table.add_row("all", "", *(str(sum(getattr(each, name) for each in overview.counts)) for name in names[2:]))
    console.print(table)
    for folder, passages in overview.passages.items():
        console.print(f"{folder}: {passages} passages, {overview.missing[folder]} named ones missing")
    census = overview.census
    console.print(f"{len(census.repeated_ids)} identifiers are used more than once")
    console.print(f"{len(census.repeated_questions)} questions stand there more than once")
    console.print(f"{len(census.conflicts)} of these with conflicting answers")
    for conflict in census.conflicts[:_SHOWN]:
        answers = "; ".join(" = ".join(each) for each in conflict.answers)
        console.print(f"  {conflict.dataset}: {conflict.question} {answers}", markup=False)
