"""Read a configuration file or a shipped preset. Errors say which key is wrong, and what to do."""

import difflib
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.inspect import (
    DictType,
    LiteralType,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from router.errors import JSON_ERRORS, BadConfig, explained, plain_words
from serving.config.check import problems
from serving.config.config import Config, visit_texts

_PACKAGE = Path(__file__).resolve().parents[1]
_PRESETS = _PACKAGE / "presets"
_SHIPPED = "shipped:"
_PATHS = ("path", "file", "source", "version")
_ALIKE = 0.75
"""Min similarity (`difflib` ratio) at which an unknown key counts as a misspelling of a known key.
`kynd` counts as a misspelling of `kind`, but `max_turns` does not count as one of `max_tokens`.
"""


def load_config(path: Path) -> Config:
    """Read and check a configuration file. Return the config with absolute paths. Raises
    `BadConfig` if the file cannot be used. The message names the file, the first problem with its
    key, and what to do.
    """
    config = read_config(path)
    for problem in problems(config):
        raise BadConfig(f"{path}: {problem}")
    return config


def read_config(path: Path) -> Config:
    """Read a configuration file, and return the config with absolute paths. Raises `BadConfig` if
    the file cannot be read, or if a key is unknown or has a wrong type. Other problems are not
    searched for; to find them, call `problems`.
    """
    try:
        return parse_config(path.read_bytes(), path)
    except OSError as error:
        raise BadConfig(
            f"{path}: cannot be read ({error.strerror}); name a TOML file, or use --preset."
        ) from None


def parse_config(raw: bytes, path: Path) -> Config:
    """Return the config in `raw`, the content of a configuration file. The file `path` need not
    exist; it is named in errors, and relative paths are relative to its folder. Raises `BadConfig`.
    """
    try:
        tables = msgspec.toml.decode(raw)
        config = msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {plain_error(str(error), tables)}") from None
    except JSON_ERRORS as error:
        raise BadConfig(
            f"{path}: is not valid TOML ({explained(error)}); correct the file."
        ) from None
    folder = path.resolve().parent
    try:
        return visit_texts(config, partial(_resolved, Path.cwd() if folder == _PRESETS else folder))
    except ValueError:
        raise BadConfig(
            f"{path}: contains a path with the character \\u0000; remove this character."
        ) from None


def preset(name: str) -> Path:
    """Return the file of a shipped preset. Raises `BadConfig` if there is no preset `name`."""
    path = _PRESETS / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in _PRESETS.glob("*.toml")))
        raise BadConfig(f"preset {name!r}: unknown; the presets are: {known}.")
    return path


def located(base: Path, path: str) -> str:
    """Return the absolute form of `path`, a path in a config. `base`: folder to which a relative
    path is relative.
    """
    if path.startswith(_SHIPPED):
        return str(_PACKAGE / path.removeprefix(_SHIPPED))
    try:
        expanded = Path(path).expanduser()
    except RuntimeError:  # `~NAME` for a user who does not exist
        expanded = Path(path)
    return str((base / expanded).resolve())


def _resolved(
    base: Path,
    _key: str,
    mark: str,
    text: str,
) -> str:
    """Return `text` with its path made absolute. `mark`: mark of the text's type. A text with the
    mark "store" is a URL that may contain the path of a SQLite file; a text with the mark "model"
    is a folder or a name. A text without a path is returned unchanged.
    """
    if mark == "store":
        scheme, separator, file = text.partition(":///")
        return (
            f"sqlite:///{located(base, file)}"
            if separator and file and scheme == "sqlite"
            else text
        )
    if mark == "model":
        here = text.startswith((".", "/", "~", _SHIPPED)) or (base / text / "config.json").is_file()
        return located(base, text) if here else text
    return located(base, text) if mark in _PATHS else text


def plain_error(message: str, tables: dict[str, Any]) -> str:
    """Return msgspec's error message in plain words, with the key first, such as
    `roles.execution.max_turn: unknown key; did you mean search.max_turns?`. `tables`: the parsed
    TOML file.
    """
    text, _, where = message.partition(" - at `$")
    place = where.strip("`").lstrip(".")
    key = place
    section, named, rest = place.partition("[...]")
    if named and isinstance(kind := _kind(f"{section}["), StructType):
        key = f"{section}.{_bad_entry(tables[section], kind.cls)}{rest}"
    if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", text):
        return f"{_joined(key, unknown[1])}: unknown key; {_instead(unknown[1], place, key)}"
    if missing := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"{_joined(key, missing[1])}: missing; add it to the file"
    if text.startswith("Invalid enum value") and isinstance(kind := _kind(place), LiteralType):
        return f"{key}: {text[13:]} is not possible; use {', '.join(map(str, kind.values))}"
    problem = plain_words(text).replace("an object", "a table")
    if re.match("must be (at|more|less) ", problem) and (value := _value(tables, key)) is not None:
        problem += f", got {value}"
    return f"{key or 'the file'}: {problem}"


def _value(tables: dict[str, Any], key: str) -> Any:
    """Return the value of a key such as `engines.b.health_timeout_s`; None if it is not found.
    `tables`: the parsed TOML file, or a table in it.
    """
    if key in tables:
        return tables[key]
    for name, table in tables.items():
        if isinstance(table, dict) and key.startswith(f"{name}."):
            value = _value(table, key.removeprefix(f"{name}."))
            if value is not None:
                return value
    return None


def _joined(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


def _instead(unknown: str, place: str, table: str) -> str:
    """Return a hint about an unknown key of a table. The hint is the most similar known key of any
    table. If no known key is similar, the hint lists all keys of the table. `unknown`: the unknown
    key. `place`: the table, written as in msgspec's message. `table`: the table's key in the file.
    """
    here = {key: _joined(table, key) for key in _keys(place)}
    others = {key: f"{section}.{key}" for section in _keys("") for key in _keys(section)}
    meant = difflib.get_close_matches(unknown, others | here, 1, _ALIKE)
    return f"did you mean {(others | here)[meant[0]]}?" if meant else f"use {', '.join(here)}"


def _keys(place: str) -> list[str]:
    kind = _kind(place)
    return [field.encode_name for field in kind.fields] if isinstance(kind, StructType) else []


def _kind(place: str) -> Type:
    """Return the type of the key `place`, written as in msgspec's messages, such as
    `engines[...].path` or `roles.answer.fallbacks[0]`.
    """
    kind = type_info(Config)
    for step in re.findall(r"\[|[a-z_]\w*", place):
        match kind:
            case StructType(fields=fields):
                kind = next(field.type for field in fields if field.encode_name == step)
            case DictType(value_type=inner) | VarTupleType(item_type=inner):
                kind = inner
        if isinstance(kind, UnionType):  # a union with None, for a key that may be absent
            kind = kind.types[0]
    return kind


def _bad_entry(entries: dict[str, Any], section: type) -> str:
    """Return the name of the first invalid entry of a table such as `[engines]`; `*` if all entries
    are valid. msgspec's message does not contain this name. `entries`: the tables `[engines.NAME]`,
    by NAME. `section`: type of an entry.
    """
    for name, entry in entries.items():
        try:
            msgspec.convert(entry, section)
        except msgspec.ValidationError:
            return name
    return "*"
