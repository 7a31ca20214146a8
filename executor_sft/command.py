"""Commands of the distillation: options are the fields of a struct, figures are printed as
tables or as JSON.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
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
"""Marks an option that is given by its place, and not by its name."""
_METAVARS = {IntType: "N", FloatType: "X", CustomType: "PATH"}


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every step."""

    out: Annotated[Path, Meta(description="folder of the step; the same command goes on in it")]
    json: Annotated[bool, Meta(description="print the figures as JSON")] = False


_Options = TypeVar("_Options", bound=msgspec.Struct)


def parse(
    options: type[_Options],
    command: str,
    description: str,
    arguments: Sequence[str],
    *,
    group: str = "sft",
) -> _Options:
    """Read a command's arguments into its struct: fields are options, whose annotations give their
    help, ranges and choices; `config` is the file that `--config` or `--preset` names, or that is
    found without them.

    Raises `BadConfig` for a value that its field does not take; exits where argparse does.
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
    for field in shape.fields:
        if field.name == "config":
            add_config(parser)
        else:
            _add(parser, field)
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


def _add(parser: argparse.ArgumentParser, field: Field) -> None:
    """Add the option of a field."""
    kinds = field.type.types if isinstance(field.type, UnionType) else (field.type,)
    (annotated,) = (kind for kind in kinds if not isinstance(kind, NoneType))
    assert isinstance(annotated, Metadata), f"{field.name} has no description"
    kind = annotated.type
    text = (annotated.extra_json_schema or {}).get("description", "")
    positional = "positional" in (annotated.extra or {})
    how: dict[str, Any] = {} if positional else {"required": field.required}
    if isinstance(kind, BoolType) and field.default is False:
        how["action"] = "store_true"
    elif isinstance(kind, LiteralType):
        how["choices"] = kind.values
    elif isinstance(kind, VarTupleType):
        how |= {
            "nargs": "+",
            "action": "extend",
            "metavar": _METAVARS.get(type(kind.item_type), "TEXT"),
        }
    else:
        how["metavar"] = _METAVARS.get(type(kind), "TEXT")
    if not (field.required or field.default in (None, False, ())):
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        text += f" (default: {' '.join(map(str, values))})"
    text = text.replace("%", "%%")
    parser.add_argument(
        field.name if positional else f"--{field.encode_name.replace('_', '-')}", help=text, **how
    )


def agreed(question: str, more: str = "") -> bool:
    """Ask at the terminal whether money may be spent. Raises `BadRequest`, which says `more`,
    where there is none.
    """
    if not sys.stdin.isatty():
        raise BadRequest(f"there is nobody to ask whether that may be spent; --yes says so.{more}")
    return input(f"{question} [y/N] ").strip().casefold() in ("y", "yes")


def show(figures: Mapping[str, Any], *, as_json: bool = False, stderr: bool = False) -> None:
    """Print figures: single ones in one table, each group of them in one of its own, and so the
    rows inside a group.
    """
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(figures), indent=2).decode())
        return
    console = Console(stderr=stderr)
    single = {
        name: value for name, value in figures.items() if not isinstance(value, dict | list | tuple)
    }
    groups = {"figure": single, **figures}
    for name, value in figures.items():
        if isinstance(value, dict):
            groups |= {f"{name}, {key}": of for key, of in value.items() if _is_rows(of)}
    for name, value in groups.items():
        if isinstance(value, dict):
            items = [(key, of) for key, of in value.items() if not _is_rows(of)]
            if items:
                console.print(
                    _table(
                        [
                            {name: key, **(of if isinstance(of, dict) else {"": of})}
                            for key, of in items
                        ]
                    )
                )
        elif isinstance(value, list | tuple) and value:
            rows = value if _is_rows(value) else [{"": one} for one in value]
            console.print(name.replace("_", " "), _table(rows), sep="\n")


def _is_rows(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, dict) for one in value)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for number, name in enumerate(rows[0]):
        table.add_column(
            name.replace("_", " "), justify="right" if number else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
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
            return ", ".join(f"{escape(str(name))}: {_cell(one)}" for name, one in value.items())
        case list() | tuple():
            value = ", ".join(map(str, value))
    return escape(str(value))
