"""Tables: the columns and rows of a request, and the table that the gateway returns."""

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
"""Values of columns that the gateway does not know. Keys identify a row by the values of its key
columns; values map a further column's name to the row's value in it.
"""


def parse_columns(columns: Columns) -> list[pb.Column]:
    """Return columns as messages. `columns`: one text with commas between the columns, or a list of
    texts and messages.

    In a text, a column is `NAME`, `NAME:TYPE` or, for a choice of values, `NAME:ONE|OTHER`. A `*`
    after the name marks a key column. Example: "city*, founded:integer, size:small|large". Raises
    `ValueError` for an unknown type, and for the type `choice` without choices.
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
    elif kind == "choice":
        raise ValueError(
            f"column {name!r}: the type choice needs choices, as in `{name}:small|large`."
        )
    option = f"the type of column {text.strip()!r}"
    column_type: Any = enum_number(pb.ColumnType.DESCRIPTOR, option, kind)
    return pb.Column(
        name=name.removesuffix("*").strip(),
        key=name.endswith("*"),
        type=column_type,
        choices=choices,
    )


_CONDITION = re.compile(
    r"(.+?)\s+(equals|one of|before|after|at least|at most|contains)\s+(.+)", re.DOTALL
)


def parse_conditions(conditions: Iterable[str | pb.Condition]) -> list[pb.Condition]:
    """Return conditions as messages. A text has a column, an operator and a value, as in "founded
    after 1990" or "country one of Vorland|Norland"; or it is a yes/no question with key columns in
    braces, such as "Is {city} in Veshoux?". Raises `ValueError` for any other text.
    """
    return [
        condition if isinstance(condition, pb.Condition) else _condition(condition)
        for condition in conditions
    ]


def _condition(text: str) -> pb.Condition:
    if text.endswith(("?", "？")):
        return pb.Condition(column=pb.Column(ask=text))
    match = _CONDITION.fullmatch(text)
    if not match:
        raise ValueError(
            f"{text!r} is not a condition; write a condition such as `founded after 1990` "
            "(operators: equals, one of, before, after, at least, at most, contains), or a yes/no "
            "question such as `Is {city} in Veshoux?`."
        )
    operator: Any = enum_number(pb.Operator.DESCRIPTOR, text, match[2].replace(" ", "_"))
    values = [value.strip() for value in match[3].split("|")]
    return pb.Condition(column=_column(match[1]), operator=operator, values=values)


def given_rows(columns: Sequence[pb.Column], rows: Rows) -> list[pb.GivenRow]:
    """Return known rows as messages. Each row is a sequence with a value for every column, or a
    mapping with some values by column name. Raises `ValueError` for an unknown column name.
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
            f"rows[{number}] has a value for {min(unknown)!r}, which is not a column; the columns "
            f"are {', '.join(names)}."
        )
    return [row.get(name, "") for name in names]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that the gateway returned."""

    message: pb.Table
    """The table as a protobuf message. It also has the states and citations of cells, and the cost.
    """

    @property
    def run_id(self) -> str:
        """Identifier of the run that filled the table."""
        return self.message.run_id

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.message.columns]

    @property
    def rows(self) -> list[list[str]]:
        """Values of the cells of each row; an empty string for a cell without a value. Can be
        passed as the known rows of another request.
        """
        return [[cell.value for cell in row.cells] for row in self.message.rows]

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        return self.message.markdown

    def to_csv(self) -> str:
        """Return the table as CSV with a header (RFC 4180). Values that a spreadsheet would treat
        as formulas are escaped.
        """
        return self.to_file(".csv").decode()

    def to_file(
        self,
        ending: str,
        *,
        sources: bool = False,
        excluded: bool = False,
        others: Mapping[tuple[str, ...], Mapping[str, str]] = {},
    ) -> bytes:
        """Return the content of a file with the table. `ending`: .csv, .tsv, .md, .xlsx (needs
        openpyxl), or .json for the whole message. Raises `ValueError` for other endings.

        `sources`: True to add a column of sources for each column: the sentences that are cited for
        its values, and conflicting values. `excluded`: True to add the rows that contradict a
        condition. With one of these options, a table with conditions also has a column `membership`
        (see the function of this name). `others`: values of further columns, see `Others`.
        """
        rows = list(self._lines(sources, excluded, others))
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
            f"a table file cannot end in {ending!r}; use .csv, .tsv, .md, .xlsx or .json."
        )

    def _lines(self, sources: bool, excluded: bool, others: Others) -> Iterable[list[str]]:
        message = self.message
        further = list(dict.fromkeys(name for row in others.values() for name in row))
        checked = ["membership"] if message.conditions and (sources or excluded) else []
        titles = [f"{name}: sources" for name in self.columns if sources]
        yield [*self.columns, *titles, *checked, *further]
        for row in (*message.rows, *(message.excluded if excluded else ())):
            values = [cell.value for cell in row.cells]
            key = tuple(
                value
                for value, column in zip(values, self.message.columns, strict=True)
                if column.key
            )
            rests_on = [_sources(cell) for cell in row.cells] if sources else []
            member = [membership(message.conditions, row)] if checked else []
            rest = [others.get(key, {}).get(name, "") for name in further]
            yield [*values, *rests_on, *member, *rest]


def _json(table: pb.Table) -> str:
    return MessageToJson(
        table,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        ensure_ascii=False,
    )


def membership(conditions: Iterable[pb.Condition], row: pb.Row) -> str:
    """Return a text about the conditions of a table: those that the row contradicts, with a cited
    sentence for each, and those that were not checked for the row. Empty if the row meets all
    conditions.
    """
    texts = list[str]()
    for condition, check in zip(conditions, row.checks, strict=True):
        if check.state == pb.CHECK_STATE_NOT_CHECKED:
            texts.append(f"membership not checked: {condition.text}")
        if check.state == pb.CHECK_STATE_CONTRADICTED:
            lines = "".join(f" ({source_line(at)})" for at in check.citations[:1])
            texts.append(f"excluded: not {condition.text}, but {check.value}{lines}")
    return "; ".join(texts)


def rival_line(cell: pb.Cell) -> str:
    """Return the best supported of the values that conflict with a cell's value, followed by its
    source. Empty if there is no conflict.
    """
    if not cell.rivals or not (cell.contradicted or cell.state == pb.CELL_STATE_CONFLICT):
        return ""
    rival = cell.rivals[0]
    return f"{rival.value} ({source_line(rival.citations[0])})" if rival.citations else rival.value


def _sources(cell: pb.Cell) -> str:
    rival = rival_line(cell)
    return "; ".join([*map(source_line, cell.citations), *([f"but {rival}"] if rival else [])])


_ESCAPE = re.compile(r"_(?=x[0-9A-Fa-f]{4}_)")
"""Finds each underscore that must be escaped in a workbook, because it begins a text such as
`_x000D_`, which would be read as an escape sequence (ECMA-376, ST_Xstring).
"""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?", re.ASCII)


def _workbook(columns: Sequence[pb.Column], rows: Iterable[Sequence[str]]) -> bytes:
    """Return the content of a workbook with one sheet. Numbers in numeric columns are written as
    numbers, all other cells as text, and none as formulas.
    """
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
    """Return the whole table. `pages`: all pages of the table, in order."""
    table = pb.Table()
    table.CopyFrom(pages[0])
    for page in pages[1:]:
        table.rows.extend(page.rows)
        table.excluded.extend(page.excluded)
        table.markdown += "".join(page.markdown.splitlines(keepends=True)[2:])  # without its header
    table.next_page_token = ""
    return Table(table)
