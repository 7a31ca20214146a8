"""Command lines that are defined by msgspec structs: each field of a command's struct is an option.

A field's type determines which values the option accepts, and the docstring under the field is the
option's help text. The docstring of the struct is the command's description. A field named `config`
adds the options `--config` and `--preset`; its value is the config file that they choose.
"""

import argparse
import asyncio
import inspect
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import NODEFAULT, Meta
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
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from router.errors import BadConfig, explained
from serving.config.file import preset
from serving.field_docs import field_docs
from serving.terminal import complain

POSITIONAL = Meta(extra={"positional": True})
"""Mark for a field that is a positional argument, not an option with a name."""
CONFIG = Path("rolegate.toml")
"""Config file that commands use without --config and --preset, if it is in the working directory.
"""
_METAVARS = {IntType: "N", FloatType: "X", CustomType: "PATH"}

Options = TypeVar("Options", bound=msgspec.Struct)
_Groups: TypeAlias = "defaultdict[str, argparse._MutuallyExclusiveGroup]"


def exclusive(group: str) -> Meta:
    """Return a mark (metadata for `Annotated`) for mutually exclusive options. A command line may
    contain at most one option of each `group`.
    """
    return Meta(extra={"group": group})


def reads(read: Callable[[str], object], metavar: str) -> Meta:
    """Return a mark for an option whose text `read` converts to a value. For invalid text, `read`
    raises `argparse.ArgumentTypeError` or `BadConfig`. `metavar`: name of the value in the help.
    """
    return Meta(extra={"type": read, "metavar": metavar})


def shown_as(metavar: str) -> Meta:
    """Return a mark for an option whose value is called `metavar` in the help."""
    return Meta(extra={"metavar": metavar})


def run_subcommand(
    group: str,
    about: str | None,
    commands: Mapping[str, Callable[..., Any] | str],
    arguments: Sequence[str],
    run: Callable[[Callable[..., Any], Any], int | None] = lambda work, options: work(options),
) -> int:
    """Run a subcommand of `rolegate GROUP`; return its exit status. `arguments[0]` is its name.

    `about`: description of the group. `commands`: functions by the name of their subcommand. The
    docstring of a function is the help of its subcommand, and the type of its parameter `options`
    defines the options. A text instead of a function is the summary of a subcommand that the caller
    runs itself. `run`: called with the function and its options; by default it calls the function
    with the options.
    """
    summaries = {name: _summary(command) for name, command in commands.items()}
    chosen = chosen_command(group, about, summaries, arguments)
    work = commands[chosen]
    assert callable(work)
    options = inspect.signature(work).parameters["options"].annotation
    return run(work, parse(options, f"{group} {chosen}", arguments[1:], work.__doc__)) or 0


def run_async(work: Callable[[Any], Coroutine[Any, Any, Any]], options: Any) -> Any:
    """Run the coroutine function `work` with `options` in a new event loop; return its result."""
    return asyncio.run(work(options))


def chosen_command(
    group: str, about: str | None, summaries: Mapping[str, str], arguments: Sequence[str]
) -> str:
    """Return `arguments[0]`, the name of a subcommand of `rolegate GROUP`. `summaries`: the line
    about each subcommand in `--help`, by the subcommand's name. Exits the process after `--help`,
    and for an unknown subcommand.
    """
    parser = new_parser(group, about)
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in summaries.items():
        choices.add_parser(name, help=summary, add_help=False)
    chosen: str = parser.parse_args(arguments[:1]).command
    return chosen


def _summary(command: Callable[..., Any] | str) -> str:
    if isinstance(command, str):
        return command
    first_line = (command.__doc__ or "").partition("\n")[0].rstrip(".:")
    return first_line[:1].lower() + first_line[1:]


def parse(
    options: type[Options],
    command: str,
    arguments: Sequence[str],
    about: str | None = None,
) -> Options:
    """Return the arguments of `rolegate COMMAND` as a struct of type `options`. `about`: the
    command's description (default: the struct's docstring).

    The struct may have a class variable `NEEDS`. It maps the name of an option to the name of
    another option. Without the other option, the first option has no effect and is refused.

    Raises `BadConfig` for a value that its field does not accept. Exits the process, as argparse
    does, after `--help` and for unknown, missing or badly written options.
    """
    parser = new_parser(command, about or options.__doc__)
    shape = type_info(options)
    assert isinstance(shape, StructType)
    docs = field_docs(options)
    groups: _Groups = defaultdict(parser.add_mutually_exclusive_group)
    for field in shape.fields:
        if field.name == "config":
            _add_config(groups["config"])
        else:
            _add_option(parser, groups, field, docs.get(field.name, ""))

    values = vars(parser.parse_args(arguments))
    for option, needed in getattr(options, "NEEDS", {}).items():
        if values.get(option) and not values.get(needed):
            # A positional argument is shown by its metavar, as in the help
            shown = {each.dest: (*each.option_strings, each.metavar) for each in parser._actions}
            parser.error(f"{shown[option][0]} has no effect without {shown[needed][0]}; give both")
    if "config" in groups:
        preset_name = values.pop("preset", None)
        if not any(option.dest in values for option in groups["config"]._group_actions):
            values["config"] = _default_config(preset_name)
    try:
        return msgspec.convert(
            values, options, strict=False, dec_hook=lambda kind, value: kind(value)
        )
    except msgspec.ValidationError as error:
        name, _, reason = explained(error).partition(": ")
        name = name.partition("[")[0]
        must = reason.partition(", got")[0]
        raise BadConfig(f"--{name.replace('_', '-')}: {must}, got {values[name]!r}.") from None


def new_parser(command: str, about: str | None) -> argparse.ArgumentParser:
    """Return the parser of `rolegate COMMAND`. The parsed namespace contains only the options that
    the command line gives, so that the struct's defaults apply to the others.
    """
    return argparse.ArgumentParser(
        prog=f"rolegate {command}",
        description=inspect.cleandoc(about or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )


def _add_config(group: argparse._MutuallyExclusiveGroup) -> None:
    group.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"read this config, a TOML file (default: ./{CONFIG}, or else the preset mini)",
    )
    group.add_argument(
        "--preset",
        metavar="NAME",
        help="use the config of this name that ships with rolegate, such as mini",
    )


def _default_config(name: str | None) -> Path:
    """Return the config file to use without --config: the file of the preset `name`. If `name` is
    None, return `rolegate.toml` in the working directory, or if that does not exist, the file of
    the preset `mini`; print on standard error which file is used. Raises `BadConfig` for an unknown
    preset.
    """
    if name is None and CONFIG.is_file():
        complain(f"rolegate: the config is {CONFIG.resolve()}")
        return CONFIG
    if name is None:
        complain(f"rolegate: there is no {CONFIG} in this folder; using the demo's config")
    return preset(name or "mini")


def _add_option(
    parser: argparse.ArgumentParser,
    groups: _Groups,
    field: Field,
    doc: str,
) -> None:
    kind = field.type
    if isinstance(kind, UnionType):
        (kind,) = (member for member in kind.types if not isinstance(member, NoneType))
    extra = dict[str, Any]()
    if isinstance(kind, Metadata):
        extra = kind.extra or {}
        kind = kind.type
    assert doc, f"{field.name} has no description"
    doc = doc.removesuffix(".")
    if not doc[1:2].isupper():  # an acronym keeps its case
        doc = doc[:1].lower() + doc[1:]

    settings = _value_settings(kind, field.default)
    settings |= {name: extra[name] for name in ("type", "metavar") if name in extra}
    if field.default not in (None, False, "", (), NODEFAULT) and "(default" not in doc:
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        shown = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        doc += f" (default: {' '.join(shown)})"
    doc = doc.replace("%", "%%")

    if "positional" in extra:
        settings.pop("action", None)
        if not field.required:
            settings["nargs"] = "*" if "nargs" in settings else "?"
        settings["metavar"] = field.name.upper()
        parser.add_argument(field.name, help=doc, **settings)
    else:
        target = groups[extra["group"]] if "group" in extra else parser
        option = f"--{field.encode_name.replace('_', '-')}"
        target.add_argument(option, required=field.required, help=doc, **settings)


def _value_settings(kind: Type, default: object) -> dict[str, Any]:
    """Return arguments of `add_argument`, such as `choices`, for an option with a value of type
    `kind`. `default`: default of the option.
    """
    if isinstance(kind, BoolType) and default is False:
        return {"action": "store_true"}
    if isinstance(kind, BoolType) and default is NODEFAULT:
        return {"action": argparse.BooleanOptionalAction}

    settings = dict[str, Any]()
    if isinstance(kind, VarTupleType):
        settings = {"nargs": "+", "action": "extend"}
        kind = kind.item_type
    if isinstance(kind, LiteralType):
        settings["choices"] = kind.values
    else:
        settings["metavar"] = _METAVARS.get(type(kind), "TEXT")
    return settings
