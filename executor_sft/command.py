"""Command lines of the distillation: options are the fields of a struct, figures are printed as
tables or as JSON.
"""

import argparse
import ast
import inspect
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.inspect import (
    BoolType,
    CustomType,
    Field,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StructType,
    UnionType,
    VarTupleType,
    type_info,
)
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.errors import BadConfig, BadRequest
from serving.cli.options import add_config, chosen_file

POSITIONAL = Meta(extra={"positional": True})
"""Marks an option that is a positional argument."""
Count = Annotated[int, Meta(ge=1)]
_METAVARS = {IntType: "N", FloatType: "X", CustomType: "PATH"}


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every step."""

    out: Path
    """folder of the step; the same command resumes it"""
    json: bool = False
    """print the figures as JSON"""

    def settings(self, *names: str) -> dict[str, Any]:
        """Return the options of these names."""
        return {name: getattr(self, name) for name in names}


_Options = TypeVar("_Options", bound=msgspec.Struct)


def parse(
    options: type[_Options],
    command: str,
    description: str,
    arguments: Sequence[str],
    *,
    group: str = "sft",
) -> _Options:
    """Read a command's arguments into its struct.

    Each field is an option: its annotation gives range and choices, its docstring (or
    `Meta(description=…)`) the help. The field `config` is the file that `--config` or `--preset`
    names, or the default config.

    Raises `BadConfig` for a value that its field does not accept. Exits where argparse does.
    """
    parser = argparse.ArgumentParser(
        prog=f"rolegate {group} {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    shape = type_info(options)
    assert isinstance(shape, StructType)
    helps = _docstrings(options)
    for field in shape.fields:
        if field.name == "config":
            add_config(parser)
        else:
            _add(parser, field, helps.get(field.name, ""))

    given = parser.parse_args(arguments, argparse.Namespace(config=None, preset=None))
    values = vars(given)
    if "config" in options.__struct_fields__:
        values["config"] = chosen_file(given)
    try:
        return msgspec.convert(
            values, options, strict=False, dec_hook=lambda kind, value: kind(value)
        )
    except msgspec.ValidationError as error:
        why, _, name = str(error).partition(" - at `$.")
        name = name.rstrip("`").partition("[")[0]
        raise BadConfig(f"--{name.replace('_', '-')} {values[name]}: {why}.") from None


def _docstrings(options: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring of each field, by its name; base classes included."""
    texts: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        if cls in msgspec.Struct.__mro__:
            continue
        (definition,) = ast.parse(dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in pairwise(definition.body):
            match statement, following:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def _add(parser: argparse.ArgumentParser, field: Field, text: str) -> None:
    """Add the option of a field. `text`: its help."""
    kind = field.type
    if isinstance(kind, UnionType):
        (kind,) = (member for member in kind.types if not isinstance(member, NoneType))
    positional = False
    if isinstance(kind, Metadata):
        text = text or (kind.extra_json_schema or {}).get("description", "")
        positional = "positional" in (kind.extra or {})
        kind = kind.type
    assert text, f"{field.name} has no description"

    settings: dict[str, Any] = {} if positional else {"required": field.required}
    if isinstance(kind, BoolType) and field.default is False:
        settings["action"] = "store_true"
    elif isinstance(kind, LiteralType):
        settings["choices"] = kind.values
    else:
        if isinstance(kind, VarTupleType):
            settings |= {"nargs": "+", "action": "extend"}
            kind = kind.item_type
        settings["metavar"] = _METAVARS.get(type(kind), "TEXT")

    if not (field.required or field.default in (None, False, ())):
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        text += f" (default: {' '.join(map(str, values))})"
    name = field.name if positional else f"--{field.encode_name.replace('_', '-')}"
    parser.add_argument(name, help=text.replace("%", "%%"), **settings)


def agreed(question: str, more: str = "") -> bool:
    """Ask at the terminal whether money may be spent. Without a terminal, raise `BadRequest` with
    `more` at its end.
    """
    if not sys.stdin.isatty():
        raise BadRequest(f"no terminal to confirm the cost; pass --yes.{more}")
    return input(f"{question} [y/N] ").strip().casefold() in ("y", "yes")


def show(figures: Mapping[str, Any], *, as_json: bool = False, stderr: bool = False) -> None:
    """Print figures: the plain ones in one table, then a table for each group and each list of
    rows, also for lists inside a group.
    """
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
        return
    plain = {
        name: value for name, value in figures.items() if not isinstance(value, dict | list | tuple)
    }
    groups: dict[str, Any] = {"figure": plain, **figures}
    for name, group in figures.items():
        if isinstance(group, dict):
            groups |= {f"{name}, {key}": item for key, item in group.items() if _is_rows(item)}

    console = Console(stderr=stderr)
    for name, group in groups.items():
        if isinstance(group, dict):
            rows = [
                {name: key, **_columns(item)} for key, item in group.items() if not _is_rows(item)
            ]
        elif isinstance(group, list | tuple):
            rows = [_columns(item) for item in group]
        else:
            continue
        if not rows:
            continue
        if not isinstance(group, dict):
            console.print(name.replace("_", " "))
        console.print(_table(rows))


def _is_rows(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value)


def _columns(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"": value}


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(rows[0]):
        table.add_column(
            name.replace("_", " "), justify="right" if number else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    return table


def _cell(value: object) -> str:
    match value:
        case None | "" | []:
            return "–"
        case {"mean": mean, "low": low, "high": high}:
            return f"{mean:+.4g} ({low:+.4g} to {high:+.4g})"
        case int():
            return str(value) if isinstance(value, bool) else f"{value:,}"
        case float():
            return f"{value:,.4f}" if abs(value) < 100 else f"{value:,.0f}"
        case dict():
            return ", ".join(f"{escape(str(name))}: {_cell(item)}" for name, item in value.items())
        case list() | tuple():
            value = ", ".join(map(str, value))
    return escape(str(value))
