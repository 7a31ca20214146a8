"""Command lines of the distillation: options are the fields of a struct, figures are printed as
tables or as JSON.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.errors import BadRequest

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
