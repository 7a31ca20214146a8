"""What is asked to fill a table: the order of asks, and the words of those that fill cells."""

from collections.abc import Sequence
from typing import Any, get_args

from router.table.schema import PLACEHOLDER, normal_name
from router.trace.table import Ask, AskKind, Column, Schema

_KINDS: tuple[AskKind, ...] = get_args(AskKind)


def rank(ask: Ask) -> tuple[Any, ...]:
    """The place of an ask among all, which depends on nothing but itself: discoveries as they were written, each with
    all of its attempts; fills, settling, first attempts before others.
    """
    return _KINDS.index(ask.kind), ask.discovery, ask.attempt, ask.row or (), ask.columns, ask.manager


def question(schema: Schema, row: Sequence[str], columns: Sequence[str], *, anew: bool = False) -> str:
    """The sub-query for some cells of a row: that of its column, or a line for each of several.

    `row`: the values of its key columns, as they are shown. `anew`: in other words.
    """
    key = {normal_name(column.name): value for column, value in zip(schema.keys, row, strict=True)}
    asked = [column for column in schema.columns if column.name in columns]
    lines = [_question(column, key, anew=anew) for column in asked]
    if len(lines) == 1:
        return lines[0]
    listed = "\n".join(f"- {column.name}: {line}" for column, line in zip(asked, lines, strict=True))
    return f"{', '.join(row)}:\n{listed}"


def _question(column: Column, key: dict[str, str], *, anew: bool) -> str:
    if column.ask and not anew:
        return PLACEHOLDER.sub(lambda place: key[normal_name(place[1])], column.ask)
    about = "; ".join(filter(None, [column.about, column.unit and f"in {column.unit}", " or ".join(column.choices)]))
    wanted = f"the {column.name}{about and f' ({about})'} of {', '.join(key.values())}"
    return f"Look up {wanted}." if anew and not column.ask else f"What is {wanted}?"
