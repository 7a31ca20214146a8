"""Two readers of tables in text: one reads tables exactly as WideSearch's evaluator does, with the
behaviour of pandas; the other is a plain Markdown reader.
"""

import csv
from collections.abc import Sequence
from io import StringIO
from itertools import takewhile

Table = dict[str, list[str]]
"""Cells of a table, by column; all columns have the same length."""
_MAX_CELLS = 1_000_000
_MAX_COLUMNS = 1_000
"""`_MAX_CELLS`, `_MAX_COLUMNS`: max number of cells, and of columns, of a table. Missing cells are
counted too, because a short text can name many columns and begin many rows.
"""


class Unreadable(ValueError):
    """Raised if a response has no table that can be scored; the message says why."""


def norm_column(name: str) -> str:
    """Return a column's name as WideSearch compares it: in lower case, without spaces."""
    return name.strip().lower().replace(" ", "")


def read_csv(text: str, delimiter: str) -> Table:
    """Read delimited text as pandas does, with all cells as text.

    As in pandas, if the first row has more fields than the header, the header names the last
    columns, and the first columns are left out. A column without a name is called `Unnamed`. Raises
    `Unreadable` if the text cannot be parsed or the table is too large.
    """
    import pandas  # slow to import

    lines = text.split("\n")
    _check_size(len(lines), 1 + max(line.count(delimiter) for line in lines))
    try:
        frame = pandas.read_csv(StringIO(text), sep=delimiter, dtype=str, na_filter=False)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise Unreadable(str(error)) from None
    return {name: frame[name].tolist() for name in frame}


def _check_size(rows: int, columns: int) -> None:
    """Raise `Unreadable` if a table of this size exceeds the limits."""
    if columns > _MAX_COLUMNS or rows * columns > _MAX_CELLS:
        raise Unreadable(
            f"its table has more than {_MAX_COLUMNS:,} columns or more than {_MAX_CELLS:,} cells"
        )


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table with these column names and rows. Cells that are missing at the end of a row
    are empty.
    """
    _check_size(1 + len(rows), len(names))
    return {
        name: [row[at] if at < len(row) else "" for row in rows] for at, name in enumerate(names)
    }


def typed(values: Sequence[str]) -> list[str]:
    """Return the cells of a column as texts, after pandas has inferred the column's type and
    converted the cells.
    """
    import pandas

    file = StringIO(newline="")
    csv.writer(file).writerows([["name"], *([value] for value in values)])
    file.seek(0)
    return [str(cell) for cell in pandas.read_csv(file, skip_blank_lines=False)["name"].tolist()]


def official_table(response: str) -> Table:
    """Return the table of a response as WideSearch's evaluator reads it. Raises `Unreadable` if
    there is no table, or if it cannot be read.
    """
    block, closed, _ = response.partition("```markdown")[2].partition("```")
    if not closed:
        if response.count("|") < 4:
            raise Unreadable("it has no table")
        block = "\n".join(
            takewhile(
                lambda line: line.startswith("|"), response[response.index("|") :].split("\n")
            )
        )
    first, *rest = block.strip().split("\n")
    stripped = [line.strip() for line in (first.replace(" ", "").lower(), *rest)]
    lines = [line for line in stripped if "|" in line and not set(line) <= set("|- :")]
    table = read_csv(
        "\n".join("|".join(cell.strip() for cell in line.split("|")) for line in lines), "|"
    )
    columns = [
        (norm_column(name), cells)
        for name, cells in table.items()
        if not name.startswith("Unnamed")
    ]
    if len(named := dict(columns)) < len(columns):
        raise Unreadable("two of its columns have the same name")
    return {name: typed(cells) for name, cells in named.items()}


def plain_table(response: str) -> Table:
    r"""Return the first Markdown table in the response's code block of the language `markdown`, or,
    if there is no such block, the first one anywhere.

    `\|` does not separate cells, and `<br>` is a line break. If columns have the same name, the
    last one is used. Raises `Unreadable` if there is no table.
    """
    lines = (response.partition("```markdown")[2].partition("```")[0] or response).split("\n")
    for header, border, at in zip(lines, lines[1:], range(2, len(lines) + 1), strict=False):
        if (
            "|" in header
            and "-" in border
            and "|" in border
            and set(border.strip()) <= set("|-: \t")
        ):
            names = [norm_column(name.replace("*", "")) for name in _cells(header)]
            return _columns(
                names, [_cells(line) for line in takewhile(lambda line: "|" in line, lines[at:])]
            )
    raise Unreadable("it has no Markdown table with a line of dashes under its header")


def _cells(line: str) -> list[str]:
    """Return the cells of a line of a Markdown table."""
    inner = line.strip().replace("\\|", "\0").removeprefix("|").removesuffix("|")
    return [plain(cell.replace("\0", "|")) for cell in inner.split("|")]


def plain(cell: str) -> str:
    """Return the text of a Markdown or CSV cell, with `<br>` converted to line breaks."""
    return cell.replace("<br/>", "\n").replace("<br>", "\n").strip()
