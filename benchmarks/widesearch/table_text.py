"""Tables in text, as columns of cells: as WideSearch's evaluator reads them, pandas' ways
included, and plainly.
"""

import csv
from collections.abc import Sequence
from io import StringIO
from itertools import takewhile

Table = dict[str, list[str]]
"""Cells by column; all columns are equally long."""
_MOST_CELLS = 1_000_000
_MOST_COLUMNS = 1_000
"""Of a table with its missing cells filled in: a megabyte may name many columns, and begin as
many rows.
"""


class Unreadable(ValueError):
    """There is no table to be scored; says why."""


def norm_column(name: str) -> str:
    """A column's name as WideSearch compares it."""
    return name.strip().lower().replace(" ", "")


def read_csv(text: str, delimiter: str) -> Table:
    """Read delimited text as pandas does, without its types. A first row with more fields than the
    header moves all columns to the right; a field without a name is `Unnamed`. Raises `Unreadable`.
    """
    import pandas  # takes a second

    lines = text.split("\n")
    _check_size(len(lines), 1 + max(line.count(delimiter) for line in lines))
    try:
        frame = pandas.read_csv(StringIO(text), sep=delimiter, dtype=str, na_filter=False)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as error:
        raise Unreadable(str(error)) from None
    return {name: frame[name].tolist() for name in frame}


def _check_size(rows: int, columns: int) -> None:
    if columns > _MOST_COLUMNS or rows * columns > _MOST_CELLS:
        raise Unreadable(
            f"it would have more than {_MOST_COLUMNS:,} columns, or more than {_MOST_CELLS:,} cells"
        )


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The columns of rows, whose missing cells at the end are empty."""
    _check_size(1 + len(rows), len(names))
    return {
        name: [row[at] if at < len(row) else "" for row in rows] for at, name in enumerate(names)
    }


def typed(values: Sequence[str]) -> list[str]:
    """A column as pandas infers its type, turned back into text."""
    import pandas

    file = StringIO(newline="")
    csv.writer(file).writerows([["name"], *([value] for value in values)])
    file.seek(0)
    return [str(cell) for cell in pandas.read_csv(file, skip_blank_lines=False)["name"].tolist()]


def official_table(response: str) -> Table:
    """The table of a response as WideSearch's evaluator reads it. Raises `Unreadable`."""
    block, closed, _ = response.partition("```markdown")[2].partition("```")
    if not closed:
        if response.count("|") < 4:
            raise Unreadable("there is no table")
        block = "\n".join(
            takewhile(
                lambda line: line.startswith("|"), response[response.index("|") :].split("\n")
            )
        )
    first, *rest = block.strip().split("\n")
    stripped = [line.strip() for line in (first.replace(" ", "").lower(), *rest)]
    lines = [line for line in stripped if "|" in line and not set(line) <= set("|- :")]
    found = read_csv(
        "\n".join("|".join(cell.strip() for cell in line.split("|")) for line in lines), "|"
    )
    columns = [
        (norm_column(name), cells)
        for name, cells in found.items()
        if not name.startswith("Unnamed")
    ]
    if len(named := dict(columns)) < len(columns):
        raise Unreadable("two columns have the same name")
    return {name: typed(cells) for name, cells in named.items()}


def plain_table(response: str) -> Table:
    r"""The first Markdown table of a response, in its fence or anywhere; `\|` is no border, and
    `<br>` a line break. Of columns with the same name, the last. Raises `Unreadable`.
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
    raise Unreadable("there is no table with a line of dashes under its header")


def _cells(line: str) -> list[str]:
    inside = line.strip().replace("\\|", "\0").removeprefix("|").removesuffix("|")
    return [plain(cell.replace("\0", "|")) for cell in inside.split("|")]


def plain(cell: str) -> str:
    """A cell of Markdown or CSV as it is meant, with its line breaks."""
    return cell.replace("<br/>", "\n").replace("<br>", "\n").strip()
