"""A table of a report, as Markdown, CSV or HTML."""

import csv
import html
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from benchmarks.study.scores import Score


class Gain(NamedTuple):
    """A difference of scores in points of 100, shown with its sign."""

    points: float


Cell = str | int | float | Score | Gain | None
"""A score is a share of 1 and is shown in points of 100, as the paper does; None is shown as a dash."""


class ReportTable(msgspec.Struct, frozen=True):
    """Rows under columns."""

    key: str
    """The name of its CSV file."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    """Each a `Cell` for each column."""
    note: str = ""
    digits: int = 2
    """Of floats below 10; from 10 on at most two, and from 100 on, and for 0, none."""

    @classmethod
    def of(
        cls, key: str, title: str, rows: Sequence[Mapping[str, Cell]], *, note: str = "", digits: int = 2
    ) -> "ReportTable":
        """A table of rows by column; all have the same ones."""
        columns = tuple(rows[0]) if rows else ()
        return cls(key, title, columns, tuple(tuple(row[name] for name in columns) for row in rows), note, digits)

    def markdown(self) -> str:
        """With its title as a heading."""
        aligned = ["---" if left else "---:" for left in self._texts]
        lines = [self.columns, *(tuple(map(self.text, row)) for row in self.rows)]
        escaped = [[text.replace("|", "\\|") for text in line] for line in lines]
        table = [f"| {' | '.join(line)} |" for line in (escaped[0], aligned, *escaped[1:])]
        return "\n".join([f"### {self.title}", "", *([self.note, ""] if self.note else []), *table, ""])

    def csv(self) -> str:
        """Numbers as they are; a score takes two columns, the second one for its standard error."""
        scored = [any(isinstance(row[place], Score) for row in self.rows) for place in range(len(self.columns))]
        output = io.StringIO()
        writer = csv.writer(output, lineterminator="\n")
        names = zip(self.columns, scored, strict=True)
        writer.writerow([name for column, two in names for name in (column, f"{column} standard error")[: 1 + two]])
        for row in self.rows:
            cells = zip(row, scored, strict=True)
            writer.writerow([value for cell, two in cells for value in (*_raw(cell), "")[: 1 + two]])
        return output.getvalue()

    def html(self) -> str:
        """A `<figure>`; everything is escaped."""
        classes = ["" if left else ' class="number"' for left in self._texts]

        def line(tag: str, texts: Iterable[str]) -> str:
            cells = (f"<{tag}{of}>{html.escape(text)}</{tag}>" for text, of in zip(texts, classes, strict=True))
            return f"<tr>{''.join(cells)}</tr>"

        body = "".join(line("td", map(self.text, row)) for row in self.rows)
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        caption = f"<figcaption>{html.escape(self.title)}</figcaption>"
        table = f"<table><thead>{line('th', self.columns)}</thead><tbody>{body}</tbody></table>"
        return f'<figure id="{html.escape(self.key)}">{caption}{note}<div class="wide">{table}</div></figure>'

    def text(self, cell: Cell) -> str:
        """A cell as a reader sees it."""
        match cell:
            case None:
                return "–"
            case Score(mean, error):
                plain = f"{100 * mean:.2f}"
                return plain if error is None else f"{plain} ± {100 * error:.2f}"
            case Gain(points):
                return f"{points:+.2f}".replace("-", "−")
            case float():
                return "–" if math.isnan(cell) else self._number(cell).replace("-", "−")
            case int():
                return f"{cell:,}"
            case _:
                return cell

    def _number(self, value: float) -> str:
        digits = self.digits
        if abs(round(value, digits)) >= 10:
            digits = min(digits, 2)
        if abs(round(value, digits)) >= 100 or not round(value, digits):
            digits = 0
        return f"{round(value, digits) + 0.0:,.{digits}f}"  # there is a zero below zero, which + 0.0 is not

    @property
    def _texts(self) -> list[bool]:
        """By column: true where all of its cells are text."""
        return [all(isinstance(row[place], str) for row in self.rows) for place in range(len(self.columns))]


def _raw(cell: Cell) -> tuple[object, ...]:
    match cell:
        case Score(mean, error):
            return round(100 * mean, 6), "" if error is None else round(100 * error, 6)
        case Gain(points):
            return (round(points, 6),)
        case float():
            return (round(cell, 6),)
        case _:
            return ("" if cell is None else cell,)
