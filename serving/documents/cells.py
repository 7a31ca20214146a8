"""Read delimited text and workbooks. Each row becomes a text in which each value follows the name
of its column.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, time
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from serving.documents.document import (
    Document,
    TextBlock,
    Unread,
    check_archive,
    encrypted,
    read_content,
    title_of,
)
from serving.documents.metadata import archive_metadata
from serving.documents.text import decode

Rows = Iterator[tuple[int, list[str]]]
"""Pairs of a number and the cells of a row. The number is the row's number in the spreadsheet, or
its line number in the text file.
"""

_MAX_FIRST = 100_000
"""The delimiter is detected in this number of characters at the beginning of the text."""
_MAX_NAME_CHARS = 200
"""Max characters of a column's name. The name is repeated in every row."""
_NUMBER = re.compile(r"(?!(?:1[5-9]|20)\d\d$)(?:(?=\W*\d)[\W\d]+|\d[\d.,]*\s*\w{1,3})")
"""Matches a number or a date, but not a year from 1500 to 2099. A row with a match is not a
header.
"""


def read_delimited(path: Path) -> Document:
    """Read delimited text, with a block for each row. Raises `BadDocument` for a large or binary
    file, and `OSError`.
    """
    rows = delimited(decode(read_content(path), path))
    return Document(title_of(path), row_blocks(rows))


def read_workbook(path: Path) -> Document:
    """Read the visible sheets of a workbook, with a block for each row. Raises `BadDocument` for a
    large or encrypted file, and `OSError`.
    """
    content = read_content(path)
    if content[:2] == b"PK":
        check_archive(content, path, "workbook")
    book = _Workbook(content, path)
    return Document(title_of(path), book.blocks(), archive_metadata(content))


def delimited(text: str) -> Rows:
    """Yield the records of delimited text, each with the number of its first line.

    The delimiter is a tab if the first line has a tab outside of quotes, else the most frequent of
    `,`, `;` and `|` in that line. Raises `ValueError`, with the line number, if quotes are not
    well-formed.
    """
    first = re.sub('"[^"]*"', "", text[:_MAX_FIRST].lstrip()).partition("\n")[0]
    delimiter = "\t" if "\t" in first else max(",;|", key=first.count)
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    line = 1
    try:
        for cells in reader:
            yield line, [cell.strip() for cell in cells]
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}; correct the quotes.") from None


def sheet_rows(sheet: Any) -> Rows:
    """Yield the rows of `sheet`, an object of python-calamine, with all values converted to
    text.
    """
    for number, cells in enumerate(sheet.iter_rows(), 1):
        yield number, [shown(cell) for cell in cells]


def shown(value: object) -> str:
    """Return the value of a cell as text: whole numbers without a decimal point, dates at midnight
    without a time.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return "" if value is None else " ".join(str(value).split())


def row_blocks(rows: Rows, sheet: str = "") -> Iterator[TextBlock]:
    """Yield a block for each row that is not empty, such as `City: Krurou | Founded: 1200`.

    The header is the first row with at least two filled cells, if none of its cells is a number. A
    row above the header has one filled cell, and becomes a block without column names. `sheet`:
    name of the sheet; empty for none.
    """
    header: Sequence[str] | None = None
    has_rows = False
    where = f"sheet {sheet}, " if sheet else ""
    for number, cells in rows:
        filled = [cell for cell in cells if cell]
        if not filled:
            continue
        if header is None and len(filled) > 1:
            is_header = not any(map(_NUMBER.fullmatch, filled))
            header = [cell[:_MAX_NAME_CHARS] for cell in cells] if is_header else ()
            if is_header:
                continue
        has_rows = True
        named = zip(chain(header or (), repeat("")), cells, strict=False)
        values = [f"{name}: {cell}" if name else cell for name, cell in named if cell]
        yield TextBlock(" | ".join(values), sheet or None, location=f"{where}row {number}")

    if header and not has_rows:
        yield TextBlock(" | ".join(filter(None, header)), sheet or None, location=f"{where}header")


class _Workbook:
    """A workbook that is being read."""

    def __init__(self, content: bytes, path: Path) -> None:
        import python_calamine

        workbook = python_calamine.CalamineWorkbook
        try:
            try:
                self._book = workbook.from_filelike(io.BytesIO(content))
            except python_calamine.CalamineError:
                self._book = workbook.from_path(
                    str(path)
                )  # this error says why the file cannot be read
        except python_calamine.PasswordError as error:
            raise encrypted(path) from error

    def blocks(self) -> Iterator[TextBlock | Unread]:
        """Yield the blocks of the visible sheets, and an `Unread` that lists the other sheets."""
        unread = list[str]()
        for sheet in self._book.sheets_metadata:
            kind = str(sheet.typ).rpartition(".")[2]
            is_visible = str(sheet.visible).endswith(".Visible")
            if is_visible and kind == "WorkSheet":
                yield from row_blocks(
                    sheet_rows(self._book.get_sheet_by_name(sheet.name)), sheet.name
                )
            else:
                unread.append(f"sheet {sheet.name} ({'hidden' if not is_visible else kind})")
        if unread:
            yield Unread(", ".join(unread))
