"""The delegator's part in a table: a plan, and then, shown nothing but its status, more
discoveries or a stop.
"""

import re
from collections.abc import Collection, Sequence
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
"""The status that would come next, from models that go on to invent it."""
MOST_KEYS = 20
MOST_HOLES = 5
_MOST_CHARS = 100
"""Rows and holes that it is shown, and characters of each: its context is bounded, whatever the
table holds.
"""
_HOLES: tuple[CellState, ...] = ("missing", "not_found")
_ASK = re.compile(
    r"""<\s{0,4}ask\s{1,4}column\s{0,4}=\s{0,4}["'“]?([^"”<>]{1,200}?)["'”]?\s{0,4}>([^<]{1,500})<\s{0,4}/\s{0,4}ask""",
    re.IGNORECASE,
)


def opening(question: str, schema: Schema) -> str:
    """The request, as the delegator sees it."""
    return prompts.table_request(question, map(described, schema.columns))


def described(column: Column) -> str:
    """A column, as models see it."""
    kind = "" if column.type == "text" else f":{column.type}"
    about = meaning(column)
    return f"{column.name}{'*' * column.key}{kind}{about and f' ({about})'}"


def planned(schema: Schema, text: str) -> Schema:
    """The schema with the questions that a turn words for columns without one; those that cannot be
    asked of a row are left out.
    """
    for name, asked in _ASK.findall(without_thinking(text)):
        wanted = normal_name(readable(name))
        with suppress(BadRequest):
            schema = checked_schema(
                replace(each, ask=one_line(asked))
                if normal_name(each.name) == wanted and not each.key and not each.ask
                else each
                for each in schema.columns
            )
    return schema


def status(table: Table, occasions: Collection[Ask], not_dispatched: Sequence[str] = ()) -> str:
    """A table, as the delegator sees it. `occasions`: as for `completeness`. `not_dispatched`:
    questions of its last turn.
    """
    known = completeness(table, occasions)
    missing = sum(known.cells.get(state, 0) for state in _HOLES)
    counts = {"rows": known.rows, "complete": known.complete_rows, "missing": missing}
    counts |= {"conflicts": known.cells.get("conflict", 0), "seen_once": known.rows_seen_once}
    if known.estimated_rows is not None:
        counts["estimate"] = known.estimated_rows
    names = [_name(table.schema, row) for row in table.rows]
    holes = (
        f"{name}: {column.name}"
        for name, row in zip(names, table.rows, strict=True)
        for column, cell in zip(table.schema.columns, row.cells, strict=True)
        if cell.state in _HOLES
    )
    return prompts.table_status(
        counts, names[:MOST_KEYS], islice(holes, MOST_HOLES), not_dispatched
    )


def _name(schema: Schema, row: Row) -> str:
    shown = ", ".join(
        cell.value for column, cell in zip(schema.columns, row.cells, strict=True) if column.key
    )
    return " ".join(shown[:_MOST_CHARS].split())
