"""Checks of columns and given rows before anything is spent, and the questions for cells."""

import re
from collections.abc import Iterable, Sequence, Sized
from functools import lru_cache

from router.errors import BadRequest
from router.table.cell_value import is_blank, row_key
from router.table.plain_text import folded
from router.trace.table import Column, RowKey, Schema

MAX_COLUMNS = 64
_MAX_CHOICES = 1024
"""Max choices of all columns together, as a value is searched for each of them."""
_MAX_PLACES = 8
"""Max placeholders in one ask, as each holds a key of any length."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
"""Placeholder of a key column in `Column.ask`."""


@lru_cache(1024)
def normal_name(name: str) -> str:
    """Return the case-folded letters and digits of a name, as names are compared."""
    form = folded(name)
    return "".join(filter(str.isalnum, form)) or "".join(form.split())


def check_number(columns: Sized) -> None:
    """Raise `BadRequest` for too many columns."""
    if len(columns) > MAX_COLUMNS:
        raise BadRequest(
            f"columns: {len(columns)} of them, at most {MAX_COLUMNS}; ask for fewer, or twice."
        )


def checked_schema(columns: Iterable[Column]) -> Schema:
    """Return the schema of columns. Raises `BadRequest` for the first defect."""
    schema = Schema(tuple(columns))
    check_number(schema.columns)
    if (choices := sum(len(column.choices) for column in schema.columns)) > _MAX_CHOICES:
        raise BadRequest(
            f"columns: {choices} choices in all, at most {_MAX_CHOICES}; leave the type a text."
        )
    if not schema.keys:
        raise BadRequest(
            "columns: none is a key; mark as keys those that tell the rows apart, often "
            "the first one."
        )
    seen: dict[str, int] = {}
    for number, column in enumerate(schema.columns):
        where = f"columns[{number}] {column.name!r}"
        if not (name := normal_name(column.name)):
            raise BadRequest(f"columns[{number}] has no name; give it one.")
        if name in seen:
            raise BadRequest(
                f"{where}: columns[{seen[name]}] has this name; case, spaces and signs "
                "make no difference."
            )
        seen[name] = number
        if defect := _defect(column, schema.keys):
            raise BadRequest(f"{where}: {defect}")
    return schema


def _defect(column: Column, keys: Sequence[Column]) -> str:
    """Describe the first defect of a column; empty if it has none."""
    if (column.type == "choice") != bool(column.choices):
        return (
            "choices belong to the type choice, and only to it; list them and set the type, "
            "or do neither."
        )
    if any(map(is_blank, column.choices)):
        return (
            "a choice is empty or means that there is no value; leave it out, as every cell "
            "may be empty."
        )
    if column.key or not column.ask:
        return ""
    return _ask_defect(column.ask, keys)


def _ask_defect(ask: str, keys: Sequence[Column]) -> str:
    """Describe the first defect of a column's question; empty if it has none."""
    usable = {normal_name(key.name): f"{{{key.name}}}" for key in keys}
    placeholders = ", ".join(usable.values())
    named = _PLACEHOLDER.findall(ask)
    if strange := [name for name in named if normal_name(name) not in usable]:
        return f"its ask names {{{strange[0]}}}, which is no key column; use {placeholders}."
    if len(named) > _MAX_PLACES:
        return f"its ask names keys {len(named)} times, at most {_MAX_PLACES}; name each once."
    if not named:
        return f"its ask is the same for every row; name the row in it by {placeholders}."
    return ""


def meaning(column: Column) -> str:
    """Describe a column's values for models; empty if its name is enough."""
    parts = [column.about, column.unit and f"in {column.unit}", " or ".join(column.choices)]
    return "; ".join(filter(None, parts))


def question(
    schema: Schema,
    row: Sequence[str],
    columns: Sequence[str],
    *,
    reworded: bool = False,
) -> str:
    """Return the sub-query for some cells of a row: one question, or a list of several.

    `row`: the key values as models see them. `reworded`: use other words than the first time.
    """
    key = {normal_name(column.name): value for column, value in zip(schema.keys, row, strict=True)}
    asked = [column for column in schema.columns if column.name in columns]
    lines = [_question(column, key, reworded=reworded) for column in asked]
    if len(lines) == 1:
        return lines[0]
    listed = "\n".join(
        f"- {column.name}: {line}" for column, line in zip(asked, lines, strict=True)
    )
    return f"{', '.join(row)}:\n{listed}"


def _question(
    column: Column,
    key: dict[str, str],
    *,
    reworded: bool,
) -> str:
    if column.ask and not reworded:
        return _PLACEHOLDER.sub(lambda place: key[normal_name(place[1])], column.ask)
    about = meaning(column)
    wanted = f"the {column.name}{about and f' ({about})'} of {', '.join(key.values())}"
    return f"Look up {wanted}." if reworded and not column.ask else f"What is {wanted}?"


def checked_rows(schema: Schema, rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return given rows with normalized values, empty if wanted. Raises `BadRequest` for the first
    defect.
    """
    checked: dict[RowKey, tuple[int, tuple[str, ...]]] = {}
    for number, row in enumerate(rows):
        if len(row) != len(schema.columns):
            raise BadRequest(
                f"rows[{number}] has {len(row)} values for {len(schema.columns)} columns; give one "
                "for each, in their order, empty if it is wanted."
            )
        values = tuple(
            "" if is_blank(value, column) else value.strip()
            for column, value in zip(schema.columns, row, strict=True)
        )
        for column, value in zip(schema.columns, values, strict=True):
            if column.key and not value:
                raise BadRequest(
                    f"rows[{number}] has no {column.name!r}, which is a key; give it, or "
                    "drop the row."
                )
        first, _ = checked.setdefault(row_key(schema, values), (number, values))
        if first != number:
            raise BadRequest(
                f"rows[{number}] has the same key as rows[{first}]; give one of the two."
            )
    return tuple(values for _, values in checked.values())
