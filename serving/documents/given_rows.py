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
    """Values of each row, by the name of the table's column. An unknown value is empty."""
    lines: Sequence[int] = ()
    """Line number of each row in the file."""
    others: Mapping[tuple[str, ...], Mapping[str, str]] = {}
    """Values of the file's further columns, which the table does not have. The outer key is a row's
    values in the key columns, and the inner key is the name of the column.
    """


def read_given_rows(file: Path, columns: Sequence[pb.Column]) -> GivenRows:
    """Return the rows of `file`. The file's first line must list names of columns in any order, and
    at least one of them must be in the table's `columns`. Raises `BadConfig` if the file cannot be
    read or a line is invalid.
    """
    names = {normal_name(column.name): column.name for column in columns}
    rows = list[dict[str, str]]()
    lines = list[int]()
    others = dict[tuple[str, ...], dict[str, str]]()
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
    except ValueError as error:
        raise BadConfig(f"--rows {file}: {error}") from error
    except OSError as error:
        raise BadConfig(
            f"--rows {file}: cannot be read ({error.strerror}); check the path and permissions."
        ) from error
    except BadDocument:
        raise BadConfig(
            f"--rows {file}: cannot be read as a table; name a valid .csv or .xlsx file."
        ) from None
    if not rows:
        raise BadConfig(
            f"--rows {file}: has no rows after its header line; add rows, or leave out --rows."
        )
    return GivenRows(rows, lines, others)


def _unquoted(cell: str) -> str:
    """Return the value of a cell without the apostrophe that `inert` has put before it. `inert`
    does so because a spreadsheet would otherwise interpret the value as a formula.
    """
    return cell[1:] if cell.startswith("'") and inert(cell[1:]) == cell else cell


def read_cells(file: Path) -> Rows:
    """Yield the number and the cells of each row of `file`, which is delimited text in any
    encoding, or a workbook. Only the first sheet of a workbook is read. Raises `ValueError` for a
    malformed file.
    """
    if file.suffix.lower() != ".xlsx":
        for line, cells in delimited(decode(file.read_bytes(), file)):
            yield line, list(map(_unquoted, cells))
        return
    # python-calamine may abort this process if a cell is far from the others; openpyxl reads row by
    # row
    try:
        sheet = load_workbook(file, read_only=True, data_only=True).worksheets[0]
    except (BadZipFile, IndexError, KeyError, InvalidFileException) as error:
        raise ValueError(
            f"cannot be read as a workbook ({error}); save it again as .xlsx."
        ) from None
    for line, values in enumerate(sheet.iter_rows(values_only=True), 1):
        yield line, [unescape(shown(value)) for value in values]
