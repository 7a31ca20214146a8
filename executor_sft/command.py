"""Command lines of the distillation: options are the fields of a struct, figures are printed as
tables or as JSON.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from rich.console import Console

from router.errors import BadRequest
from serving.cli.grid import new_table

Count = Annotated[int, Meta(ge=1)]


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every step."""

    out: Path
    """folder of the step; the same command resumes it"""
    json: bool = False
    """print the figures as JSON"""

    def settings(self, *names: str) -> dict[str, Any]:
        """Return the options of these names."""
        return {name: getattr(self, name) for name in names}


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
        names = [name.replace("_", " ") for name in rows[0]]
        console.print(new_table(names, [row.values() for row in rows]))


def _is_rows(value: object) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value)


def _columns(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"": value}
