"""Tables: the requested columns and rows, and the table that is returned."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from google.protobuf.json_format import MessageToJson

from rolegate.client.options import enum_number
from rolegate.client.text import csv_text, markdown_table, source_line, visible
from rolegate.v1 import table_service_pb2 as pb

Columns = str | Iterable[str | pb.Column]
Rows = Iterable[Sequence[str] | Mapping[str, str]]
Others = Mapping[tuple[str, ...], Mapping[str, str]]
"""Values of further columns by column name, by the row's key."""


def parse_columns(columns: Columns) -> list[pb.Column]:
    """Return columns as messages. In text, each is `NAME`, `NAME:TYPE` or, for a choice,
    `NAME:ONE|OTHER`, with a `*` after the name of a key; commas separate them:
    "city*, founded:integer, size:small|large". Raises `ValueError` for an unknown type.
    """
    listed = columns.split(",") if isinstance(columns, str) else columns
    return [column if isinstance(column, pb.Column) else _column(column) for column in listed]


def _column(text: str) -> pb.Column:
    name, colon, kind = text.strip().rpartition(":")
    if not colon:
        name = kind
        kind = "text"
    name = name.strip()
    kind = kind.strip()

    choices = [choice.strip() for choice in kind.split("|")] if "|" in kind else []
    if choices:
        kind = "choice"
    option = f"the type of column {text.strip()!r}"
    column_type: Any = enum_number(pb.ColumnType.DESCRIPTOR, option, kind)
    return pb.Column(
        name=name.removesuffix("*").strip(),
        key=name.endswith("*"),
        type=column_type,
        choices=choices,
    )


def given_rows(columns: Sequence[pb.Column], rows: Rows) -> list[pb.GivenRow]:
    """Return known rows as messages; each row has a value for every column, or some values by
    column name. Raises `ValueError` for an unknown column name.
    """
    return [pb.GivenRow(values=_values(columns, number, row)) for number, row in enumerate(rows)]


def _values(
    columns: Sequence[pb.Column], number: int, row: Sequence[str] | Mapping[str, str]
) -> Sequence[str]:
    if not isinstance(row, Mapping):
        return row
    names = [column.name for column in columns]
    if unknown := row.keys() - set(names):
        raise ValueError(
            f"rows[{number}] has a value for {min(unknown)!r}, which is not a column; use "
            f"{', '.join(names)}."
        )
    return [row.get(name, "") for name in names]


@dataclass(frozen=True, slots=True)
class Table:
    """Table that was returned."""

    message: pb.Table
    """Whole message: also the cells' states, citations and costs."""

    @property
    def run_id(self) -> str:
        """Identifier of the run."""
        return self.message.run_id

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.message.columns]

    @property
    def rows(self) -> list[list[str]]:
        """Values of the cells, "" for missing ones; can be sent back as known rows."""
        return [[cell.value for cell in row.cells] for row in self.message.rows]

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        return self.message.markdown

    def to_csv(self) -> str:
        """Return CSV with a header (RFC 4180); no value can act as a spreadsheet formula."""
        return self.to_file(".csv").decode()

    def to_file(
        self,
        ending: str,
        *,
        sources: bool = False,
        others: Mapping[tuple[str, ...], Mapping[str, str]] = {},
    ) -> bytes:
        """Return the content of a .csv, .tsv, .md or .xlsx file (the last needs openpyxl), or of a
        .json file with the whole message. Raises `ValueError` for another ending.

        `sources`: add a column for each one, with the quoted sentences and any contradiction.
        `others`: values of further columns.
        """
        rows = list(self._lines(sources, others))
        match ending:
            case ".csv":
                return csv_text(rows).encode()
            case ".tsv":
                return csv_text(rows, "\t").encode()
            case ".md":
                return markdown_table(rows[0], rows[1:]).encode()
            case ".xlsx":
                return _workbook(self.message.columns, rows)
            case ".json":
                return f"{_json(self.message)}\n".encode()
        raise ValueError(
            f"{ending!r} is not a table file's ending; use .csv, .tsv, .md, .xlsx or .json."
        )

    def _lines(self, sources: bool, others: Others) -> Iterable[list[str]]:
        further = list(dict.fromkeys(name for row in others.values() for name in row))
        yield [*self.columns, *(f"{name}: sources" for name in self.columns if sources), *further]
        for row, values in zip(self.message.rows, self.rows, strict=True):
            key = tuple(
                value
                for value, column in zip(values, self.message.columns, strict=True)
                if column.key
            )
            rests_on = [_sources(cell) for cell in row.cells] if sources else []
            yield [*values, *rests_on, *(others.get(key, {}).get(name, "") for name in further)]


def _json(table: pb.Table) -> str:
    return MessageToJson(
        table,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        ensure_ascii=False,
    )


def rival_line(cell: pb.Cell) -> str:
    """Return the value that contradicts a cell's, with its source; empty if there is none."""
    if not cell.rivals or not (cell.contradicted or cell.state == pb.CELL_STATE_CONFLICT):
        return ""
    rival = cell.rivals[0]
    return f"{rival.value} ({source_line(rival.citations[0])})" if rival.citations else rival.value


def _sources(cell: pb.Cell) -> str:
    rival = rival_line(cell)
    return "; ".join([*map(source_line, cell.citations), *([f"but {rival}"] if rival else [])])


_ESCAPE = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")
"""Beginning of an escaped character in a workbook (ECMA-376, ST_Xstring)."""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?", re.ASCII)


def _workbook(columns: Sequence[pb.Column], rows: Iterable[Sequence[str]]) -> bytes:
    """Return a workbook of one sheet: numbers in numeric columns, text elsewhere, no formulas."""
    openpyxl = import_module("openpyxl")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Table")
    numeric = [column.type in (pb.COLUMN_TYPE_INTEGER, pb.COLUMN_TYPE_NUMBER) for column in columns]
    for row in rows:
        texts = (_ESCAPE.sub("_x005F_", visible(text)) for text in row)
        cells = [openpyxl.cell.WriteOnlyCell(sheet, text) for text in texts]
        for cell, number in zip(cells, numeric, strict=False):
            if number and _NUMBER.fullmatch(cell.value):
                cell.value = float(cell.value)
        for cell in cells:
            cell.data_type = "n" if isinstance(cell.value, float) else "s"
        sheet.append(cells)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def joined(pages: Sequence[pb.Table]) -> Table:
    """Join the pages of a table."""
    table = pb.Table()
    table.CopyFrom(pages[0])
    for page in pages[1:]:
        table.rows.extend(page.rows)
        table.markdown += "".join(page.markdown.splitlines(keepends=True)[2:])  # without the header
    table.next_page_token = ""
    return Table(table)
