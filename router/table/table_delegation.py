"""The texts that the delegator of a table is shown (the request, and the table's status), and the
reading of the plan that it writes.
"""

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
"""Stop strings: a model that writes the tag of a status would invent the table's next status."""

# These limits keep the delegator's context small for tables of any size
MAX_KEYS = 20
"""Max rows that a status lists."""
MAX_HOLES = 5
"""Max missing cells that a status lists."""
_MAX_CHARS = 100
"""Max characters of a row's name."""

_HOLES: tuple[CellState, ...] = ("missing", "not_found")
_ASK = re.compile(
    r"""<\s{0,4}ask\s{1,4}column\s{0,4}=\s{0,4}["'“]?([^"”<>]{1,200}?)["'”]?\s{0,4}>"""
    r"""([^<]{1,500})<\s{0,4}/\s{0,4}ask""",
    re.IGNORECASE,
)


def opening(question: str, schema: Schema) -> str:
    """Return the text of the request that the delegator is shown first."""
    return prompts.table_request(question, map(described, schema.columns))


def described(column: Column) -> str:
    """Describe a column for models: name, a star for a key, type, and meaning."""
    kind = "" if column.type == "text" else f":{column.type}"
    about = meaning(column)
    return f"{column.name}{'*' * column.key}{kind}{about and f' ({about})'}"


def planned(schema: Schema, text: str) -> Schema:
    """Return the schema with the question templates that the delegator wrote in its turn `text`.
    Only columns without a template get one. Invalid templates are ignored.
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
    """Return the text that shows the delegator the table's status: counts, and the names of some
    rows and missing cells.

    `independent_discoveries`: the discoveries that searched themselves, instead of using a report
    of another run. `not_dispatched`: questions of the delegator's last turn that exceeded the
    limit.
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
    """Yield the names of missing cells, as `row: column`."""
    for name, row in zip(names, table.rows, strict=True):
        for column, cell in zip(table.schema.columns, row.cells, strict=True):
            if cell.state in _HOLES:
                yield f"{name}: {column.name}"


def _name(schema: Schema, row: Row) -> str:
    """Return a row's key values on one line, cut to `_MAX_CHARS` characters."""
    shown = ", ".join(
        cell.value for column, cell in zip(schema.columns, row.cells, strict=True) if column.key
    )
    return " ".join(shown[:_MAX_CHARS].split())
