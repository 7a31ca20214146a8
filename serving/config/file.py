"""Reading a configuration file, and the shipped ones."""

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

from router.errors import BadConfig
from serving.config.check import problems
from serving.config.config import (
    Config,
    visit_texts,
)

_PACKAGE = Path(__file__).resolve().parents[1]
_PRESETS = _PACKAGE / "presets"
_SHIPPED = "shipped:"
_PATHS = ("path", "file", "source", "version")
_ALIKE = 0.75
"""The least `difflib` ratio of a key and its misspelling: `kynd` and `kind`, but not
`max_turns` and `max_tokens`.
"""
_RANGES = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}


def load_config(path: Path) -> Config:
    """Read and check a file; paths in it come back absolute. Raises `BadConfig` saying what,
    where and what to do.
    """
    config = read_config(path)
    for problem in problems(config):
        raise BadConfig(f"{path}: {problem}")
    return config


def read_config(path: Path) -> Config:
    """Read as `load_config` does, but what `problems` finds in it is left to the caller. Raises
    `BadConfig`.
    """
    try:
        return parse_config(path.read_bytes(), path)
    except OSError as error:
        raise BadConfig(
            f"{path}: cannot be read ({error.strerror}); name a TOML file, or a preset."
        ) from None


def parse_config(raw: bytes, path: Path) -> Config:
    """Read, as `read_config` does, a file that has this content or will have it."""
    try:
        tables = msgspec.toml.decode(raw)
        config = msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {plain_error(str(error), tables)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    folder = path.resolve().parent
    try:
        return visit_texts(config, partial(_resolved, Path.cwd() if folder == _PRESETS else folder))
    except ValueError:
        raise BadConfig(
            f"{path}: a path in it holds the character \\u0000, which no file's name can."
        ) from None


def preset(name: str) -> Path:
    """The file of a shipped preset. Raises `BadConfig` for an unknown name."""
    path = _PRESETS / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in _PRESETS.glob("*.toml")))
        raise BadConfig(f"preset {name!r}: unknown; there are: {known}.")
    return path


def located(base: Path, path: str) -> str:
    """A file that a config in the folder `base` names, as an absolute path."""
    if path.startswith(_SHIPPED):
        return str(_PACKAGE / path.removeprefix(_SHIPPED))
    try:
        expanded = Path(path).expanduser()
    except RuntimeError:  # `~` with a user who is not there
        expanded = Path(path)
    return str((base / expanded).resolve())


def _resolved(
    base: Path,
    _key: str,
    mark: str,
    text: str,
) -> str:
    """Make paths absolute; a model's where it is one, and that of SQLite's file."""
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
    """msgspec's message with the key first: `roles.execution.max_turn: unknown field; …`."""
    text, _, where = message.partition(" - at `$")
    place = where.strip("`").lstrip(".")
    key = place
    section, named, rest = place.partition("[...]")
    if named and isinstance(kind := _kind(f"{section}["), StructType):
        key = f"{section}.{_bad_entry(tables[section], kind.cls)}{rest}"
    if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", text):
        return f"{_joined(key, unknown[1])}: unknown field; {_instead(unknown[1], place, key)}"
    if missing := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"{_joined(key, missing[1])}: missing"
    if text.startswith("Invalid enum value") and isinstance(kind := _kind(place), LiteralType):
        return f"{key}: {text.lower()}; there are: {', '.join(map(str, kind.values))}"
    return f"{key or 'the file'}: {plain_words(text)}"


def plain_words(message: str) -> str:
    """Return a message of msgspec in plain words, such as "must be a whole number, got text"."""
    if limit := re.fullmatch(r"Expected `\w+` ([<>]=?) (\S+?)(\.0)?", message):
        return f"must be {_RANGES[limit[1]]} {limit[2]}"
    if kinds := re.fullmatch(r"Expected `(.+)`, got `(.+)`", message):
        wanted, given = (
            " or ".join(
                _KINDS.get(kind, kind) for kind in kind_names.split(" | ") if kind != "null"
            )
            for kind_names in kinds.groups()
        )
        return f"must be {wanted}, got {given or 'nothing'}"
    return message


def _joined(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


def _instead(unknown: str, place: str, table: str) -> str:
    """The key that may have been meant in `table`, or in another section, or else its keys."""
    here = {key: _joined(table, key) for key in _keys(place)}
    others = {key: f"{section}.{key}" for section in _keys("") for key in _keys(section)}
    meant = difflib.get_close_matches(unknown, others | here, 1, _ALIKE)
    return (
        f"did you mean {(others | here)[meant[0]]}?" if meant else f"there are: {', '.join(here)}"
    )


def _keys(place: str) -> list[str]:
    kind = _kind(place)
    return [field.encode_name for field in kind.fields] if isinstance(kind, StructType) else []


def _kind(place: str) -> Type:
    """The type of a key, which msgspec names as in `engines[...].path` and
    `roles.answer.fallbacks[0]`.
    """
    kind = type_info(Config)
    for step in re.findall(r"\[|[a-z_]\w*", place):
        match kind:
            case StructType(fields=fields):
                kind = next(field.type for field in fields if field.encode_name == step)
            case DictType(value_type=inner) | VarTupleType(item_type=inner):
                kind = inner
        if isinstance(kind, UnionType):  # with None, for what may be left out
            kind = kind.types[0]
    return kind


def _bad_entry(entries: dict[str, Any], section: type) -> str:
    """The name of the first entry of a table of sections that cannot be read; msgspec does not
    tell it.
    """
    for name, entry in entries.items():
        try:
            msgspec.convert(entry, section)
        except msgspec.ValidationError:
            return name
    return "*"
