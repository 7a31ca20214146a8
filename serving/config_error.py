"""What is wrong with a configuration's keys and types, in plain words."""

import difflib
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.inspect import DictType, StructType, Type, UnionType, type_info

from serving.config import Config, EngineConfig

_ALIKE = 0.75
"""The least `difflib` ratio of a key and its misspelling: `kynd` and `kind`, but not `max_turns` and `max_tokens`."""


def plainly(message: str, tables: dict[str, Any]) -> str:
    """msgspec's message with the key first: `roles.execution.max_turn: unknown field; …`."""
    text, _, where = message.partition(" - at `$")
    key = place = where.strip("`").lstrip(".")
    if key.startswith("engines[...]"):
        key = key.replace("[...]", f".{_bad_engine(tables['engines'])}", 1)
    if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", text):
        return f"{'.'.join(filter(None, (key, unknown[1])))}: unknown field; {_instead(unknown[1], place, key)}"
    if missing := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"{'.'.join(filter(None, (key, missing[1])))}: missing"
    return f"{key or 'the file'}: {text}"


def _instead(unknown: str, place: str, table: str) -> str:
    """What may have been meant in `table`, or else its keys. `place`: what msgspec calls it, such as `engines[...]`."""
    inside = place.replace("[...]", ".NAME") + "." if place else ""
    every = list(_keys(type_info(Config)))
    here = [key.removeprefix(inside) for key in every if key.startswith(inside) and "." not in key.removeprefix(inside)]
    others = {key.partition(".")[2]: key for key in every if key.count(".") == 1}  # of sections; deeper ones are far
    close_by, far = (difflib.get_close_matches(unknown, keys, 1, _ALIKE) for keys in (here, others))
    if unknown not in others and close_by:
        return f"did you mean {'.'.join(filter(None, (table, close_by[0])))}?"
    return f"did you mean {others[far[0]]}?" if far else f"there are: {', '.join(here)}"


def _keys(kind: Type, table: str = "") -> Iterator[str]:
    """All keys below a table, with the tables that they are in; `NAME` stands for one that the user chooses."""
    if isinstance(kind, UnionType):  # with None, for a table that may be left out
        for one in kind.types:
            yield from _keys(one, table)
    elif isinstance(kind, DictType):
        yield from _keys(kind.value_type, f"{table}NAME.")
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield table + field.encode_name
            yield from _keys(field.type, f"{table}{field.encode_name}.")


def _bad_engine(engines: dict[str, Any]) -> str:
    """The name of the first engine that cannot be read; msgspec does not tell it."""
    for name, engine in engines.items():
        try:
            msgspec.convert(engine, EngineConfig)
        except msgspec.ValidationError:
            return name
    return "*"
