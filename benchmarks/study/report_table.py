"""A table of a report, as Markdown, CSV or HTML."""

import csv
import html
import io
import math
from dataclasses import dataclass

from benchmarks.study.scores import Score


@dataclass(frozen=True, slots=True)
class Gain:
    """A difference of scores, shown with its sign."""

    points: float
    """Of 100."""


Cell = str | int | float | Score | Gain | None
"""A score is a share of 1 and is shown in points of 100, as the paper does; None is shown as a dash."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows under columns."""

    key: str
    """The name of its CSV file."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    digits: int = 2
    """Of floats below 10; from 10 on at most two, and from 100 on, and for 0, none."""

    def markdown(self) -> str:
        """With its title as a heading."""
        lines = [f"### {self.title}", ""]
        if self.note:
            lines += [self.note, ""]
        texts = [list(self.columns), *([self.text(cell) for cell in row] for row in self.rows)]
        texts = [[text.replace("|", "\\|") for text in row] for row in texts]
        aligned = ["---" if self._is_text(place) else "---:" for place in range(len(self.columns))]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in (texts[0], aligned, *texts[1:])), ""])

    def csv(self) -> str:
        """Numbers as they are; a score takes two columns, the second one for its standard error."""
        scored = [any(isinstance(row[place], Score) for row in self.rows) for place in range(len(self.columns))]
        output = io.StringIO()
        writer = csv.writer(output, lineterminator="\n")
        header = (
            [name, f"{name} standard error"] if has else [name] for name, has in zip(self.columns, scored, strict=True)
        )
        writer.writerow([name for names in header for name in names])
        for row in self.rows:
            cells = (_raw(cell, two=has) for cell, has in zip(row, scored, strict=True))
            writer.writerow([value for values in cells for value in values])
        return output.getvalue()

    def html(self) -> str:
        """A `<figure>`; everything is escaped."""
        head = "".join(f"<th{self._align(place)}>{html.escape(name)}</th>" for place, name in enumerate(self.columns))
        body = "".join(
            "<tr>"
            + "".join(f"<td{self._align(place)}>{html.escape(self.text(cell))}</td>" for place, cell in enumerate(row))
            + "</tr>"
            for row in self.rows
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        caption = f"<figcaption>{html.escape(self.title)}</figcaption>"
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<figure id="{html.escape(self.key)}">{caption}{note}<div class="wide">{table}</div></figure>'

    def text(self, cell: Cell) -> str:
        """As a reader sees it."""
        match cell:
            case None:
                return "–"
            case Score(mean=mean, error=error):
                plain = f"{100 * mean:.2f}"
                return plain if error is None else f"{plain} ± {100 * error:.2f}"
            case Gain(points=points):
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

    def _is_text(self, place: int) -> bool:
        return all(isinstance(row[place], str) for row in self.rows)

    def _align(self, place: int) -> str:
        return "" if self._is_text(place) else ' class="number"'


def _raw(cell: Cell, *, two: bool) -> list[object]:
    if isinstance(cell, Score):
        error = "" if cell.error is None else round(100 * cell.error, 6)
        return [round(100 * cell.mean, 6), error]
    if isinstance(cell, Gain):
        return [round(cell.points, 6)]
    value: object = "" if cell is None else round(cell, 6) if isinstance(cell, float) else cell
    return [value, ""] if two else [value]
