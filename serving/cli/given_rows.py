"""Known rows of a table, read from a file of delimited text or a workbook."""

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
"""Characters of the first line in which the delimiter is looked for."""
Numbered = Iterator[tuple[int, list[str]]]


class GivenRows(NamedTuple):
    """The rows of a file."""

    values: Sequence[Mapping[str, str]] = ()
    """Values by the names of the table's columns."""
    lines: Sequence[int] = ()
    """The line of each row."""
    others: Mapping[tuple[str, ...], Mapping[str, str]] = {}
    """Values of the file's other columns, by the row's key."""


def read_given_rows(file: Path, columns: Sequence[pb.Column]) -> GivenRows:
    """Read rows below a line that names some of the columns, in any order, among others. Raises
    `BadConfig`, naming the line.
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
    """Read delimited text, in any encoding, parted by what the first line has most of outside
    of quotes.
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
    """Return the value without the apostrophe that keeps spreadsheets from taking it for a
    formula.
    """
    return cell[1:] if cell.startswith("'") and inert(cell[1:]) == cell else cell


def _workbook(file: Path) -> Numbered:
    """Read the first sheet of a workbook."""
    try:
        sheet = load_workbook(file, read_only=True, data_only=True).worksheets[0]
    except (BadZipFile, IndexError) as error:
        raise ValueError(f"is no workbook that can be read ({error}).") from None
    for line, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        yield line, [_shown(cell) for cell in cells]


def _shown(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return "" if value is None else unescape(str(value)).strip()
