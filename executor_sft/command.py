"""Shared code of the `rolegate sft` commands: common options, the confirmation of a cost, and the
printing of figures as tables or as JSON.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from rich.console import Console

from router.errors import BadRequest
from router.frozen import Frozen
from serving.cli.grid import new_table

Count = Annotated[int, Meta(ge=1)]


class StepOptions(Frozen, kw_only=True):
    """Options of every step."""

    out: Path
    """folder for this step's results; if the step was interrupted, the same command resumes it"""
    json: bool = False
    """print the step's figures as JSON (default: as tables)"""

    def settings(self, *names: str) -> dict[str, Any]:
        """Return the values of the options `names`, by name."""
        return {name: getattr(self, name) for name in names}


def agreed(question: str) -> bool:
    """Ask `question` at the terminal, and return True if the user answers yes.

    Raises `BadRequest` if there is no terminal.
    """
    if not sys.stdin.isatty():
        raise BadRequest("There is no terminal to confirm the cost; pass --yes to confirm it.")
    return input(f"{question} [y/N] ").strip().casefold() in ("y", "yes")


def show(figures: Mapping[str, Any], *, as_json: bool = False, stderr: bool = False) -> None:
    """Print figures as tables, or as one JSON object if `as_json`. `stderr`: print the tables to
    standard error.

    Single values come first, in one table. Each dict and each list of rows, also a list inside a
    dict, follows in a separate table.
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
        names = [name.replace("_", " ") for name in rows[0]]
        console.print(new_table(names, [row.values() for row in rows]))


def _is_rows(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value)


def _columns(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"": value}
