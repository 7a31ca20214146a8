"""Checks of a table's requested columns and given rows, before any model is called; and the wording
of questions for cells.
"""

import re
from collections.abc import Iterable, Sequence, Sized
from functools import lru_cache

from router.errors import BadRequest
from router.table.cell_value import is_blank, row_key
from router.table.plain_text import folded
from router.trace.table import Column, Condition, RowKey, Schema

MAX_COLUMNS = 64
MAX_CHOICES = 1024
"""Max choices of all columns together. The limit bounds the time for reading a value, because the
value is searched for each choice.
"""
_MAX_PLACES = 8
"""Max placeholders in one question template. The limit bounds the length of questions, because each
placeholder is replaced by a key value of any length.
"""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
"""Matches a placeholder such as `{city}` in the question template `Column.ask`. It stands for the
row's value in a key column.
"""


@lru_cache(1024)
def normal_name(name: str) -> str:
    """Return the name of a column in the form in which names are compared: case-folded, and with
    letters and digits only.
    """
    form = folded(name)
    return "".join(filter(str.isalnum, form)) or "".join(form.split())


def check_number(columns: Sized) -> None:
    """Raise `BadRequest` if there are more than `MAX_COLUMNS` columns."""
    if len(columns) > MAX_COLUMNS:
        raise BadRequest(
            f"columns: {len(columns)} columns given, at most {MAX_COLUMNS} are allowed; request "
            "fewer columns, or split them into two tables."
        )


def checked_schema(columns: Iterable[Column], conditions: tuple[Condition, ...] = ()) -> Schema:
    """Return the schema with these columns and conditions. Raises `BadRequest` for the first defect
    of the columns.
    """
    schema = Schema(tuple(columns), conditions)
    check_number(schema.shown)
    if (choices := sum(len(column.choices) for column in schema.columns)) > MAX_CHOICES:
        raise BadRequest(
            f"columns: {choices} choices given in all columns together, at most {MAX_CHOICES} are "
            "allowed; use the type text for columns with many choices."
        )
    if not schema.keys:
        raise BadRequest(
            "columns: no key column given; mark as keys the columns whose values identify a row, "
            "often the first column."
        )
    seen = dict[str, int]()
    for number, column in enumerate(schema.columns):
        where = f"columns[{number}] {column.name!r}"
        if not (name := normal_name(column.name)):
            raise BadRequest(f"columns[{number}] has no name; give it one.")
        if name in seen:
            raise BadRequest(
                f"{where}: columns[{seen[name]}] has the same name (case, spaces and punctuation "
                "are ignored); rename one of the two."
            )
        seen[name] = number
        if defect := _defect(column, schema.keys):
            raise BadRequest(f"{where}: {defect}")
    return schema


def _defect(column: Column, keys: Sequence[Column]) -> str:
    """Describe the first defect of a column. Return an empty string if it has none."""
    if (column.type == "choice") != bool(column.choices):
        return (
            f"its type is {column.type}, and it has {len(column.choices)} choices; a column of "
            "the type choice needs choices, and all others must have none."
        )
    if any(map(is_blank, column.choices)):
        return 'a choice is empty or means "no value"; leave it out, as every cell may be empty.'
    if column.key or not column.ask:
        return ""
    return _ask_defect(column.ask, keys)


def _ask_defect(ask: str, keys: Sequence[Column]) -> str:
    """Describe the first defect of a column's question template. Return an empty string if it has
    none.
    """
    usable = {normal_name(key.name): f"{{{key.name}}}" for key in keys}
    placeholders = ", ".join(usable.values())
    named = _PLACEHOLDER.findall(ask)
    if strange := [name for name in named if normal_name(name) not in usable]:
        return f"ask contains {{{strange[0]}}}, which is not a key column; use {placeholders}."
    if len(named) > _MAX_PLACES:
        return (
            f"ask has {len(named)} placeholders (limit: {_MAX_PLACES}); use each key column once."
        )
    if not named:
        return f"ask is the same for every row; name the row in it with {placeholders}."
    return ""


def meaning(column: Column) -> str:
    """Describe a column's values for models. Return an empty string if the column has no
    description, unit or choices.
    """
    parts = [column.about, column.unit and f"in {column.unit}", " or ".join(column.choices)]
    return "; ".join(filter(None, parts))


def question(
    schema: Schema,
    row: Sequence[str],
    columns: Sequence[str],
    *,
    reworded: bool = False,
) -> str:
    """Return the sub-query that asks for cells of a row: one question, or a list of questions.

    `row`: the row's key values, as models see them. `columns`: names of the wanted columns.
    `reworded`: True if the question was asked before, so that it must be worded differently.
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
    if column.ask and (column.hidden or not reworded):
        asked = _PLACEHOLDER.sub(lambda place: key[normal_name(place[1])], column.ask)
        return f"Look up again: {asked}" if reworded else asked
    about = meaning(column)
    wanted = f"the {column.name}{about and f' ({about})'} of {', '.join(key.values())}"
    return f"Look up {wanted}." if reworded and not column.ask else f"What is {wanted}?"


def checked_rows(schema: Schema, rows: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the given rows, with spaces around values removed, and with values such as "n/a"
    emptied. Raises `BadRequest` for the first defect.
    """
    checked = dict[RowKey, tuple[int, tuple[str, ...]]]()
    for number, row in enumerate(rows):
        if len(row) != len(schema.columns):
            raise BadRequest(
                f"rows[{number}]: must have {len(schema.columns)} values, one for each column in "
                f"order (an empty value is looked up), got {len(row)}."
            )
        values = tuple(
            "" if is_blank(value, column) else value.strip()
            for column, value in zip(schema.columns, row, strict=True)
        )
        for column, value in zip(schema.columns, values, strict=True):
            if column.key and not value:
                raise BadRequest(
                    f"rows[{number}]: the key column {column.name!r} is empty; fill it, or leave "
                    "out the row."
                )
        first, _ = checked.setdefault(row_key(schema, values), (number, values))
        if first != number:
            raise BadRequest(
                f"rows[{number}] has the same key as rows[{first}]; leave out one of the two."
            )
    return tuple(values for _, values in checked.values())
