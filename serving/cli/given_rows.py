"""Reading known rows of a table from a file: delimited text, such as CSV, or an Excel workbook."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

from openpyxl import load_workbook
from openpyxl.utils.escape import unescape
from openpyxl.utils.exceptions import InvalidFileException
from rolegate.client.text import inert
from rolegate.v1 import table_service_pb2 as pb

from router.errors import BadConfig
from router.table.schema import normal_name
from serving.documents.text import decode

_MAX_FIRST = 100_000
"""Max characters of the first line that are searched for the delimiter."""
Numbered = Iterator[tuple[int, list[str]]]
"""Line number and cells of each line of a file."""


class GivenRows(NamedTuple):
    """Known rows of a table that a file contains."""

    values: Sequence[Mapping[str, str]] = ()
    """Values of each row, by the names of the table's columns."""
    lines: Sequence[int] = ()
    """Line number of each row in the file."""
    others: Mapping[tuple[str, ...], Mapping[str, str]] = {}
    """Values of the columns that only the file has, by the values of the row's key columns."""


def read_given_rows(file: Path, columns: Sequence[pb.Column]) -> GivenRows:
    """Return the rows of `file`. Its first line holds column names, in any order: some of the
    table's `columns`, and possibly further ones. Raises `BadConfig` with the number of the bad
    line.
    """
    names = {normal_name(column.name): column.name for column in columns}
    rows: list[dict[str, str]] = []
    lines: list[int] = []
    others: dict[tuple[str, ...], dict[str, str]] = {}
    try:
        read = _workbook(file) if file.suffix.lower() == ".xlsx" else _delimited(file)
        header = [names.get(normal_name(name), name.strip()) for name in next(read, (1, [""]))[1]]
        if not set(header) & set(names.values()):
            raise ValueError(
                f"its first line names none of the columns {', '.join(names.values())}."
            )
        if again := [name for name in header if name and header.count(name) > 1]:
            raise ValueError(f"its first line names {again[0]!r} twice.")
        for line, cells in read:
            if any(cells[len(header) :]):
                raise ValueError(
                    f"line {line} has {len(cells)} values; the first line names "
                    f"{len(header)} columns."
                )
            if not any(cells):
                continue
            row = dict(zip(header, cells, strict=False))
            rows.append({name: row.pop(name, "") for name in names.values()})
            lines.append(line)
            others[tuple(rows[-1][column.name] for column in columns if column.key)] = row
    except (OSError, ValueError, KeyError, csv.Error, InvalidFileException) as error:
        raise BadConfig(f"--rows {file}: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise BadConfig(
            f"--rows {file}: no row was found; the first line must name some of the columns."
        )
    return GivenRows(rows, lines, others)


def _delimited(file: Path) -> Numbered:
    """Yield the number and the cells of each line of delimited text, in any encoding. The delimiter
    is the one of comma, semicolon, tab and `|` that occurs most often in the first line, outside of
    quotes. Raises `ValueError` with the number of a malformed line.
    """
    text = decode(file.read_bytes(), file)
    first = re.sub('"[^"]*"', "", text[:_MAX_FIRST].lstrip()).partition("\n")[0]
    delimiter = max(",;\t|", key=first.count)
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    line = 1
    try:
        for cells in reader:
            yield line, [_unquoted(cell.strip()) for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}.") from None


def _unquoted(cell: str) -> str:
    """Return the value of a cell without the leading apostrophe that exports put before values that
    a spreadsheet would take for a formula.
    """
    return cell[1:] if cell.startswith("'") and inert(cell[1:]) == cell else cell


def _workbook(file: Path) -> Numbered:
    """Yield the number and the cells of each row of a workbook's first sheet. Raises `ValueError`
    if the file is not a workbook.
    """
    try:
        sheet = load_workbook(file, read_only=True, data_only=True).worksheets[0]
    except (BadZipFile, IndexError) as error:
        raise ValueError(f"is not an Excel workbook that can be read ({error}).") from None
    for line, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        yield line, [_shown(cell) for cell in cells]


def _shown(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return "" if value is None else unescape(str(value)).strip()
