"""Tables: the columns and rows that are asked for, and the table that comes back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rolegate.client.text import csv_text
from rolegate.v1 import table_service_pb2 as pb

Columns = str | Iterable[str | pb.Column]
Rows = Iterable[Sequence[str] | Mapping[str, str]]


def parse_columns(columns: Columns) -> list[pb.Column]:
    """Columns, each as a message or as `NAME`, `NAME:TYPE` or, with all its values, `NAME:ONE|OTHER`, and with a `*`
    behind the name where it is a key; in a string, commas part them: "city*, founded:integer, size:small|large". Raises
    `ValueError` for a type that there is not.
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
        raise ValueError(f"column {text.strip()!r}: the type {kind!r} is unknown; use one of {', '.join(types)}.")
    name, key = name.removesuffix("*").strip(), name.endswith("*")
    return pb.Column(name=name, key=key, type=f"COLUMN_TYPE_{kind.upper()}", choices=choices)


def given_rows(columns: Sequence[pb.Column], rows: Rows) -> list[pb.GivenRow]:
    """Rows that are known, each a value for each column, or some values by the names of their columns. Raises
    `ValueError` for a name that there is not.
    """
    return [pb.GivenRow(values=_values(columns, number, row)) for number, row in enumerate(rows)]


def _values(columns: Sequence[pb.Column], number: int, row: Sequence[str] | Mapping[str, str]) -> Sequence[str]:
    if not isinstance(row, Mapping):
        return row
    names = [column.name for column in columns]
    if strange := row.keys() - set(names):
        raise ValueError(
            f"rows[{number}] has a value for {min(strange)!r}, which is no column; use {', '.join(names)}."
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
        """The values of its cells, empty where there is none; they can be sent back as known rows."""
        return [[cell.value for cell in row.cells] for row in self.message.rows]

    def to_markdown(self) -> str:
        """A table in Markdown."""
        return self.message.markdown

    def to_csv(self) -> str:
        """Comma-separated values with a header (RFC 4180), none of which a spreadsheet takes for a formula."""
        return csv_text([self.columns, *self.rows])

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` of texts, missing where there is none. Raises `ImportError` without pandas."""
        rows = [[value or None for value in row] for row in self.rows]
        return import_module("pandas").DataFrame(rows, columns=self.columns)


def joined(pages: Sequence[pb.Table]) -> Table:
    """The table of its pages."""
    whole = pb.Table()
    whole.CopyFrom(pages[0])
    for page in pages[1:]:
        whole.rows.extend(page.rows)
        whole.markdown += "".join(page.markdown.splitlines(keepends=True)[2:])  # without the header
    return Table(whole)
