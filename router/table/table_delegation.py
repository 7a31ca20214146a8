"""The delegator's texts for a table: the request, its plan, and the table's status."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from msgspec.structs import replace

from router.errors import BadRequest
from router.protocol import prompts
from router.protocol.tags import one_line, readable, without_thinking
from router.table.assembly import Table
from router.table.completeness import completeness
from router.table.schema import checked_schema, meaning, normal_name
from router.trace.table import Ask, CellState, Column, Row, Schema

STOP = ("<table",)
"""Stop strings against models that invent the next status."""

# Limits that bound the delegator's context for tables of any size
MAX_KEYS = 20
"""Max rows in a status."""
MAX_HOLES = 5
"""Max missing cells in a status."""
_MAX_CHARS = 100
"""Max characters of a row's name."""

_HOLES: tuple[CellState, ...] = ("missing", "not_found")
_ASK = re.compile(
    r"""<\s{0,4}ask\s{1,4}column\s{0,4}=\s{0,4}["'“]?([^"”<>]{1,200}?)["'”]?\s{0,4}>"""
    r"""([^<]{1,500})<\s{0,4}/\s{0,4}ask""",
    re.IGNORECASE,
)


def opening(question: str, schema: Schema) -> str:
    """Return the request for the delegator."""
    return prompts.table_request(question, map(described, schema.columns))


def described(column: Column) -> str:
    """Describe a column for models."""
    kind = "" if column.type == "text" else f":{column.type}"
    about = meaning(column)
    return f"{column.name}{'*' * column.key}{kind}{about and f' ({about})'}"


def planned(schema: Schema, text: str) -> Schema:
    """Return the schema with a turn's questions for columns without one; unusable questions are
    ignored.
    """
    for name, ask in _ASK.findall(without_thinking(text)):
        wanted = normal_name(readable(name))
        columns = list(schema.columns)
        for at, column in enumerate(columns):
            if normal_name(column.name) == wanted and not column.key and not column.ask:
                columns[at] = replace(column, ask=one_line(ask))
        with suppress(BadRequest):
            schema = checked_schema(columns)
    return schema


def status(
    table: Table,
    independent_discoveries: Collection[Ask],
    not_dispatched: Sequence[str] = (),
) -> str:
    """Return a table's status for the delegator. `independent_discoveries`: as for `completeness`.
    `not_dispatched`: questions of its last turn that were over the limit.
    """
    known = completeness(table, independent_discoveries)
    missing = sum(known.cells.get(state, 0) for state in _HOLES)
    counts = {"rows": known.rows, "complete": known.complete_rows, "missing": missing}
    counts |= {"conflicts": known.cells.get("conflict", 0), "seen_once": known.rows_seen_once}
    if known.estimated_rows is not None:
        counts["estimate"] = known.estimated_rows
    names = [_name(table.schema, row) for row in table.rows]
    holes = islice(_holes(table, names), MAX_HOLES)
    return prompts.table_status(counts, names[:MAX_KEYS], holes, not_dispatched)


def _holes(table: Table, names: Sequence[str]) -> Iterator[str]:
    """Yield the missing cells, by row and column."""
    for name, row in zip(names, table.rows, strict=True):
        for column, cell in zip(table.schema.columns, row.cells, strict=True):
            if cell.state in _HOLES:
                yield f"{name}: {column.name}"


def _name(schema: Schema, row: Row) -> str:
    """Return a row's key values on one line, cut to its limit."""
    shown = ", ".join(
        cell.value for column, cell in zip(schema.columns, row.cells, strict=True) if column.key
    )
    return " ".join(shown[:_MAX_CHARS].split())
