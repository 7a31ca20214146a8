"""Tables of a report, and their form in Markdown."""

from collections.abc import Iterable, Mapping
from typing import Any

from rolegate.client.text import markdown_table

from benchmarks.study.scores import Score
from executor_sft.evaluate import Difference
from router.frozen import Frozen

MICRO = (
    "Micro averages over all questions, in points of 100, ± standard error clustered by "
    "question; ours."
)
ReportValue = str | int | float | Score | Difference | None
"""Value in a cell of a table. Scores and differences are from 0 to 1, but are shown in points from
0 to 100, as in the TBSS paper. None is shown as a dash.
"""


class ReportTable(Frozen):
    """A table of a report."""

    key: str
    """Name of the table in `report.json`."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Rows with a `ReportValue` for each column."""
    note: str = ""
    """Text between the title and the table."""
    digits: int = 2
    """Decimals of floats below 100; larger floats are shown without decimals."""

    @classmethod
    def of(
        cls,
        key: str,
        title: str,
        rows: Iterable[Mapping[str, ReportValue]],
        *,
        note: str = MICRO,
        digits: int = 2,
    ) -> "ReportTable":
        """Return a table. `rows`: rows as mappings from column to value. The first row determines
        the columns and their order; all rows must have these columns.
        """
        lines = list(rows)
        columns = tuple(lines[0]) if lines else ()
        values = tuple(tuple(line[name] for name in columns) for line in lines)
        return cls(
            key,
            title,
            columns,
            values,
            note,
            digits,
        )

    def markdown(self) -> str:
        """Return the table in Markdown, with its title as a heading."""
        alignment = [
            "---" if all(isinstance(value, str) for value in column) else "---:"
            for column in zip(*self.rows, strict=True)
        ]
        lines = (tuple(map(self.text, row)) for row in self.rows)
        note = [self.note, ""] if self.note else []
        table = markdown_table(self.columns, lines, alignment)
        return "\n".join([f"### {self.title}", "", *note, table])

    def text(self, value: ReportValue) -> str:
        """Return the text of a value in the Markdown table."""
        match value:
            case None:
                return "–"
            case Score(mean, error):
                plain = f"{100 * mean:.2f}"
                return plain if error is None else f"{plain} ± {100 * error:.2f}"
            case Difference(mean, low, high):
                return f"{100 * mean:.2f} ({100 * low:.2f} to {100 * high:.2f})"
            case float():
                return f"{value:,.{self.digits if abs(value) < 100 else 0}f}"
            case int():
                return f"{value:,}"
            case _:
                return value
