"""Tables: the columns and rows that are asked for, and the table that comes back."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from google.protobuf.json_format import MessageToJson

from rolegate.client.text import csv_text, markdown_table, source_line, visible
from rolegate.v1 import table_service_pb2 as pb

Columns = str | Iterable[str | pb.Column]
Rows = Iterable[Sequence[str] | Mapping[str, str]]


def parse_columns(columns: Columns) -> list[pb.Column]:
    """Columns, each as a message or as `NAME`, `NAME:TYPE` or, with all its values,
    `NAME:ONE|OTHER`, and with a `*` behind the name where it is a key; in a string, commas part
    them: "city*, founded:integer, size:small|large". Raises `ValueError` for a type that there is
    not.
    """
    listed = columns.split(",") if isinstance(columns, str) else columns
    return [one if isinstance(one, pb.Column) else _column(one) for one in listed]


def _column(text: str) -> pb.Column:
    name, sign, kind = text.strip().rpartition(":")
    name, kind = (name.strip(), kind.strip()) if sign else (kind, "text")
    choices = [choice.strip() for choice in kind.split("|")] if "|" in kind else []
    kind = "choice" if choices else kind
    types = [each.removeprefix("COLUMN_TYPE_").lower() for each in pb.ColumnType.keys()[1:]]
    if kind not in types:
        raise ValueError(
            f"column {text.strip()!r}: the type {kind!r} is unknown; use one of {', '.join(types)}."
        )
    name, key = name.removesuffix("*").strip(), name.endswith("*")
    return pb.Column(name=name, key=key, type=f"COLUMN_TYPE_{kind.upper()}", choices=choices)


def given_rows(columns: Sequence[pb.Column], rows: Rows) -> list[pb.GivenRow]:
    """Rows that are known, each a value for each column, or some values by the names of their
    columns. Raises `ValueError` for a name that there is not.
    """
    return [pb.GivenRow(values=_values(columns, number, row)) for number, row in enumerate(rows)]


def _values(
    columns: Sequence[pb.Column], number: int, row: Sequence[str] | Mapping[str, str]
) -> Sequence[str]:
    if not isinstance(row, Mapping):
        return row
    names = [column.name for column in columns]
    if strange := row.keys() - set(names):
        raise ValueError(
            f"rows[{number}] has a value for {min(strange)!r}, which is no column; use "
            f"{', '.join(names)}."
        )
    return [row.get(name, "") for name in names]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that came back."""

    message: pb.Table
    """All of it: states of cells, what they rest on, what they cost."""

    @property
    def run_id(self) -> str:
        """The identifier of its run."""
        return self.message.run_id

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.message.columns]

    @property
    def rows(self) -> list[list[str]]:
        """The values of its cells, empty where there is none; they can be sent back as known
        rows.
        """
        return [[cell.value for cell in row.cells] for row in self.message.rows]

    def to_markdown(self) -> str:
        """A table in Markdown."""
        return self.message.markdown

    def to_csv(self) -> str:
        """Comma-separated values with a header (RFC 4180), none of which a spreadsheet takes
        for a formula.
        """
        return csv_text([self.columns, *self.rows])

    def to_file(
        self,
        ending: str,
        *,
        sources: bool = False,
        others: Mapping[tuple[str, ...], Mapping[str, str]] = {},
    ) -> bytes:
        """Return the content of a file that ends in .csv, .tsv, .md or .xlsx (which needs
        openpyxl), or in .json: then it is the whole message. Raises `ValueError` for another
        ending.

        `sources`: add a column for each, with the sentences that its cells rest on, and what
        contradicts them. `others`: values of further columns, by the row's key.
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
            f"{ending!r} is no ending of a table's file; use .csv, .tsv, .md, .xlsx or .json."
        )

    def _lines(
        self, sources: bool, others: Mapping[tuple[str, ...], Mapping[str, str]]
    ) -> Iterable[list[str]]:
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

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` of texts, missing where there is none. Raises `ImportError`
        without pandas.
        """
        rows = [[value or None for value in row] for row in self.rows]
        return import_module("pandas").DataFrame(rows, columns=self.columns)


def _json(table: pb.Table) -> str:
    return MessageToJson(
        table,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        ensure_ascii=False,
    )


def rival_line(cell: pb.Cell) -> str:
    """Return the value that contradicts a cell's, with its source; empty where none does."""
    if not cell.rivals or not (cell.contradicted or cell.state == pb.CELL_STATE_CONFLICT):
        return ""
    rival = cell.rivals[0]
    return f"{rival.value} ({source_line(rival.citations[0])})" if rival.citations else rival.value


def _sources(cell: pb.Cell) -> str:
    rival = rival_line(cell)
    return "; ".join([*map(source_line, cell.citations), *([f"but {rival}"] if rival else [])])


_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?", re.ASCII)


def _workbook(columns: Sequence[pb.Column], rows: Iterable[Sequence[str]]) -> bytes:
    """Return a workbook of one sheet: numbers in columns of numbers, text elsewhere, and never
    a formula.
    """
    openpyxl = import_module("openpyxl")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("Table")
    numeric = [column.type in (pb.COLUMN_TYPE_INTEGER, pb.COLUMN_TYPE_NUMBER) for column in columns]
    for row in rows:
        cells = [openpyxl.cell.WriteOnlyCell(sheet, visible(text)) for text in row]
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
    """The table of its pages."""
    whole = pb.Table()
    whole.CopyFrom(pages[0])
    for page in pages[1:]:
        whole.rows.extend(page.rows)
        whole.markdown += "".join(page.markdown.splitlines(keepends=True)[2:])  # without the header
    whole.next_page_token = ""
    return Table(whole)
