"""Read known rows of a table from a file: delimited text, such as CSV, or an Excel workbook."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

from openpyxl import load_workbook
from openpyxl.utils.escape import unescape
from openpyxl.utils.exceptions import InvalidFileException
from rolegate.client.text import inert
from rolegate.v1 import table_service_pb2 as pb

from router.errors import BadConfig, BadDocument
from router.table.schema import normal_name
from serving.documents.cells import Rows, delimited, shown
from serving.documents.text import decode


class GivenRows(NamedTuple):
    """Known rows of a table, read from a file."""

    values: Sequence[Mapping[str, str]] = ()
    """Values of each row, by name of the table's column; empty for an unknown value."""
    lines: Sequence[int] = ()
    """Line number of each row in the file."""
    others: Mapping[tuple[str, ...], Mapping[str, str]] = {}
    """Values of the file's further columns, which the table does not have: for each row, by the
    values of its key columns.
    """


def read_given_rows(file: Path, columns: Sequence[pb.Column]) -> GivenRows:
    """Return the rows of `file`. Its first line must have names of columns in any order, at least
    one of them from the table's `columns`. Raises `BadConfig` if the file cannot be read, with the
    line number if a line is wrong.
    """
    names = {normal_name(column.name): column.name for column in columns}
    rows: list[dict[str, str]] = []
    lines: list[int] = []
    others: dict[tuple[str, ...], dict[str, str]] = {}
    try:
        read = read_cells(file)
        header = [names.get(normal_name(name), name.strip()) for name in next(read, (1, [""]))[1]]
        if not set(header) & set(names.values()):
            raise ValueError(
                f"the first line names none of the columns {', '.join(names.values())}; write the "
                "names of the columns there."
            )
        if again := [name for name in header if name and header.count(name) > 1]:
            raise ValueError(
                f"the first line names {again[0]!r} twice; remove one of these columns."
            )
        for line, cells in read:
            if any(cells[len(header) :]):
                raise ValueError(
                    f"line {line} has {len(cells)} values, but the first line names {len(header)} "
                    "columns; remove values, or name their columns."
                )
            if not any(cells):
                continue
            row = dict(zip(header, cells, strict=False))
            rows.append({name: row.pop(name, "") for name in names.values()})
            lines.append(line)
            others[tuple(rows[-1][column.name] for column in columns if column.key)] = row
    except (OSError, ValueError, KeyError, InvalidFileException) as error:
        raise BadConfig(f"--rows {file}: {getattr(error, 'strerror', None) or error}") from error
    except BadDocument:
        raise BadConfig(f"--rows {file}: is not text; name a .csv or .xlsx file.") from None
    if not rows:
        raise BadConfig(
            f"--rows {file}: has no rows after the first line, which names the columns; add rows, "
            "or leave out --rows."
        )
    return GivenRows(rows, lines, others)


def _unquoted(cell: str) -> str:
    """Return the value of a cell without the leading apostrophe that `inert` puts before a value
    which a spreadsheet would otherwise interpret as a formula.
    """
    return cell[1:] if cell.startswith("'") and inert(cell[1:]) == cell else cell


def read_cells(file: Path) -> Rows:
    """Yield the number and the cells of each row of `file`: delimited text in any encoding, or a
    workbook, of which only the first sheet is read. Raises `ValueError` for a file that is
    malformed.
    """
    if file.suffix.lower() != ".xlsx":
        for line, cells in delimited(decode(file.read_bytes(), file)):
            yield line, list(map(_unquoted, cells))
        return
    # python-calamine may abort this process if a cell is far from the others; openpyxl reads row by
    # row
    try:
        sheet = load_workbook(file, read_only=True, data_only=True).worksheets[0]
    except (BadZipFile, IndexError) as error:
        raise ValueError(
            f"cannot be read as a workbook ({error}); save it again as .xlsx."
        ) from None
    for line, values in enumerate(sheet.iter_rows(values_only=True), 1):
        yield line, [unescape(shown(value)) for value in values]
