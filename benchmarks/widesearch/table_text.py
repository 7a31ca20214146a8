"""Tables in text, as columns of cells: as WideSearch's evaluator reads them, pandas' ways included, and plainly."""

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from io import StringIO
from itertools import takewhile

Table = dict[str, list[str]]
"""Cells by column; all columns are equally long."""
_MISSING = frozenset(
    "|#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null".split("|")
)
"""Values that pandas takes for missing."""
_INTEGER = re.compile(r"\s*[+-]?\d+\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?\s*|[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_MOST_CELLS = 1_000_000
"""Of a table with its missing cells filled in: a megabyte may name many columns, and begin as many rows."""
_END, _MARK = "\0", "\ufeff"


class Unreadable(ValueError):
    """There is no table to be scored; says why."""


def norm_column(name: str) -> str:
    """A column's name as WideSearch compares it."""
    return name.strip().lower().replace(" ", "")


def read_csv(text: str, delimiter: str) -> Table:
    """Read delimited text as pandas does, without its types. A first row with more fields than the header moves all
    columns to the right; a field without a name is `Unnamed`. Raises `Unreadable`.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    lines = StringIO(f"{text.removeprefix(_MARK)}\n{_END}", newline="")
    rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    if rows.pop() != [_END] or not rows:
        raise Unreadable("it is empty, or a quotation mark is never closed")
    header, *rows = rows
    shift = max(0, len(rows[0]) - len(header)) if rows else 0
    if any(len(row) > len(header) + shift for row in rows):
        raise Unreadable("a row has more cells than the header and the first row")
    seen, names = Counter[str](), []
    for place, given in enumerate(header):
        name = given or f"Unnamed: {place}"
        names.append(f"{name}.{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return _columns(names, [row[shift:] for row in rows])


def _columns(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The columns of rows, whose missing cells at the end are empty."""
    if (1 + len(rows)) * len(names) > _MOST_CELLS:
        raise Unreadable(f"it would have more than {_MOST_CELLS:,} cells")
    return {name: [row[at] if at < len(row) else "" for row in rows] for at, name in enumerate(names)}


def typed(values: Sequence[str]) -> list[str]:
    """A column as pandas infers its type, turned back into text."""
    known = [value for value in values if value not in _MISSING]
    write = _writer(known, complete=len(known) == len(values))
    return ["nan" if value in _MISSING else write(value) for value in values]


def _writer(known: Sequence[str], *, complete: bool) -> Callable[[str], str]:
    if all(map(_INTEGER.fullmatch, known)):  # missing ones make all of them floats, and large ones text
        numbers = [0, *map(int, known)]
        if min(numbers) >= -(2**63) and max(numbers) < 2**63:
            return (lambda value: str(int(value))) if complete else (lambda value: str(float(int(value))))
        return (lambda value: str(int(value))) if complete and min(numbers) == 0 and max(numbers) < 2**64 else str
    if all(map(_NUMBER.fullmatch, known)):
        return lambda value: str(float(value))
    return str.capitalize if all(value.lower() in ("true", "false") for value in known) else str


def official_table(response: str) -> Table:
    """The table of a response as WideSearch's evaluator reads it. Raises `Unreadable`."""
    block, closed, _ = response.partition("```markdown")[2].partition("```")
    if not closed:
        if response.count("|") < 4:
            raise Unreadable("there is no table")
        block = "\n".join(takewhile(lambda line: line.startswith("|"), response[response.index("|") :].split("\n")))
    first, *rest = block.strip().split("\n")
    stripped = [line.strip() for line in (first.replace(" ", "").lower(), *rest)]
    lines = [line for line in stripped if "|" in line and not set(line) <= set("|- :")]
    found = read_csv("\n".join("|".join(cell.strip() for cell in line.split("|")) for line in lines), "|")
    columns = [(norm_column(name), cells) for name, cells in found.items() if not name.startswith("Unnamed")]
    if len(named := dict(columns)) < len(columns):
        raise Unreadable("two columns have the same name")
    return {name: typed(cells) for name, cells in named.items()}


def plain_table(response: str) -> Table:
    r"""The first Markdown table of a response, in its fence or anywhere; `\|` is no border, and `<br>` a line break. Of
    columns with the same name, the last. Raises `Unreadable`.
    """
    lines = (response.partition("```markdown")[2].partition("```")[0] or response).split("\n")
    for header, border, at in zip(lines, lines[1:], range(2, len(lines) + 1), strict=False):
        if "|" in header and "-" in border and "|" in border and set(border.strip()) <= set("|-: \t"):
            names = [norm_column(name.replace("*", "")) for name in _cells(header)]
            return _columns(names, [_cells(line) for line in takewhile(lambda line: "|" in line, lines[at:])])
    raise Unreadable("there is no table with a line of dashes under its header")


def _cells(line: str) -> list[str]:
    inside = line.strip().replace("\\|", "\0").removeprefix("|").removesuffix("|")
    return [plain(cell.replace("\0", "|")) for cell in inside.split("|")]


def plain(cell: str) -> str:
    """A cell of Markdown or CSV as it is meant, with its line breaks."""
    return cell.replace("<br/>", "\n").replace("<br>", "\n").strip()
