"""`rolegate check`: see whether a config works and, with --live, what it names, and what a
question will cost.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from router.errors import BadIndex
from router.models.failures import without_userinfo
from router.store.database import sqlite_file, store_problem
from router.trace import RoleName
from serving.cli.options import add_config, chosen_file, json_of, new_parser, timeout
from serving.config.check import problems
from serving.config.config import Config
from serving.config.file import read_config
from serving.config.secrets import missing
from serving.live_check.estimate import TYPICAL
from serving.live_check.live_check import Cell, Found, RoleFound, live_check
from serving.logs import errors_only
from serving.retrieval.gaps import gaps_at
from serving.retrieval.lexical import OUTDATED, has_words
from serving.retrieval.manifest import read_manifest
from serving.retrieval.opening import identity_of

_MARKS = {True: "[green]✓[/green]", False: "[red]✗[/red]", None: "[dim]–[/dim]"}


def check(arguments: Sequence[str]) -> int:
    """Check; status 1 where something that is needed is wrong, or is not there."""
    parser = new_parser(
        "check",
        """Reads a config and tells what is wrong in it. With --live also asks its models, its
        embedder and its index a few small questions, lists the tools of its servers, and estimates
        what answering one question takes.""",
    )
    add_config(parser)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--live",
        action="store_true",
        help="probe what the config names; engines are started for it",
    )
    ways.add_argument(
        "--allow-missing",
        action="store_true",
        help="status 0 also where keys, packages or files lack",
    )
    parser.add_argument(
        "--timeout",
        type=timeout,
        default=60.0,
        metavar="SECONDS",
        help="for one probe (default: 60)",
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    given = parser.parse_args(arguments)
    errors_only()
    file = chosen_file(given)
    config = read_config(file)
    absent = missing(config)
    wrong = problems(config) + (absent if given.live else [])
    if not wrong and not absent:
        wrong += _other_schema(config.server.store, live=given.live)
    warnings = ([] if given.live else absent) + _not_built(config)
    found = asyncio.run(_probed(config, given)) if given.live and not wrong else None
    gaps = gaps_at(Path(config.retrieval.index)) if config.retrieval.index else None
    lacks = bool(warnings) and not given.allow_missing and found is None
    works = not wrong and not lacks and (found is None or found.works)
    if given.json:
        print(
            json_of(
                {
                    "works": works,
                    "problems": wrong,
                    "warnings": warnings,
                    "index": gaps,
                    "found": found,
                }
            )
        )
    elif found is not None:
        _show(Console(), found)
    else:
        _show_file(Console(soft_wrap=True), file, config, wrong, warnings)
    if gaps and not given.json:
        for line in gaps.lines():
            Console(soft_wrap=True).out(f"index: {line}", highlight=False)
    return 0 if works else 1


def _other_schema(store: str, *, live: bool) -> list[str]:
    """Return the problem of a store that another release, or another program, has written. Only a
    `live` check connects to a database server.
    """
    file = sqlite_file(store)
    exists = file.exists() and file.stat().st_size > 0 if file else live
    problem = store_problem(store) if exists else None
    return [problem] if problem else []


def _not_built(config: Config) -> list[str]:
    """Problems of the index; one of documents that the config names is built anew where need be."""
    retrieval = config.retrieval
    if retrieval.index is None or retrieval.documents:
        return []
    try:
        manifest = read_manifest(Path(retrieval.index))
    except BadIndex as error:
        return [f"retrieval.index: {error} Run `rolegate index build`."]
    found: list[str] = []
    if manifest.lexical != retrieval.lexical:
        found.append(
            f"retrieval.lexical: must be {str(manifest.lexical).lower()} for the index "
            f"in {retrieval.index}."
        )
    elif manifest.lexical and not has_words(manifest):
        found.append(f"retrieval.index: {retrieval.index}: {OUTDATED}")
    if manifest.embedder != (named := identity_of(retrieval.embedder)):
        found.append(
            f"retrieval.embedder: the index is of {manifest.embedder}, but {named} is "
            "named; name the former."
        )
    return found


async def _probed(config: Config, given: argparse.Namespace) -> Found:
    progress = Console(stderr=True, quiet=given.json)
    with progress.status("probing") as status:

        def log(step: str) -> None:
            progress.print(f"[dim]{escape(step)}[/dim]", highlight=False)
            status.update(escape(step))

        return await live_check(config, log, given.timeout)


def _show_file(
    console: Console, file: Path, config: Config, wrong: list[str], warnings: list[str]
) -> None:
    for problem in wrong:
        console.out(f"{file}: {problem}", highlight=False)
    if wrong:
        return
    table = Table("role", *(Column(name, overflow="fold") for name in ("model", "where", "prompt")))
    for name, role in config.roles.by_name.items():
        where = (
            f"vLLM engine {role.engine}"
            if role.engine
            else without_userinfo(role.base_url or "LiteLLM")
        )
        table.add_row(name, *map(escape, (role.model, where, role.prompt)))
    console.print(table)
    console.out(f"{file}: {'not ready yet' if warnings else 'fine'}", highlight=False)
    for warning in warnings:
        console.out(f"still missing: {warning}", highlight=False)


def _show(console: Console, found: Found) -> None:
    roles = Table(
        "",
        *(Column(f"{name}\n[dim]{escape(role.model)}[/dim]") for name, role in found.roles.items()),
    )
    for probe in dict.fromkeys(probe for role in found.roles.values() for probe in role.cells):
        roles.add_row(
            probe, *(_marked(role.cells.get(probe, Cell(None))) for role in found.roles.values())
        )
    console.print(roles)
    for name, cells in {**found.retrieval, **found.tools}.items():
        console.print(
            f"{name}: " + " · ".join(f"{probe} {_marked(cell)}" for probe, cell in cells.items())
        )
    advice: dict[str, list[str]] = {}
    for name, cells in found.cells.items():
        for cell in cells.values():
            advice.setdefault(cell.advice, []).append(name)
    advice.pop("", None)
    for text, names in advice.items():
        console.print(f"[bold]{', '.join(names)}:[/bold] {escape(text)}", highlight=False)
    console.print(_costs(found.roles))
    console.print(f"[dim]{TYPICAL}[/dim]", highlight=False)


def _marked(cell: Cell) -> str:
    return f"{_MARKS[cell.good]} {escape(cell.word)}".rstrip()


def _costs(roles: Mapping[RoleName, RoleFound]) -> Table:
    """Calls, tokens and dollars of one question: typically, and at most."""
    table = Table(
        "one question",
        *(Column(name, justify="right") for name in ("calls", "prompt tokens", "written", "price")),
    )
    for name, role in roles.items():
        low = role.typical
        high = role.at_most
        counts = zip(
            (low.calls, low.prompt_tokens, low.completion_tokens),
            (high.calls, high.prompt_tokens, high.completion_tokens),
            strict=True,
        )
        table.add_row(name, *(f"{few:,} – {many:,}" for few, many in counts), _dollars([role]))
    table.add_row("all", "", "", "", _dollars(list(roles.values())))
    return table


def _dollars(roles: Sequence[RoleFound]) -> str:
    prices = [role.dollars for role in roles]
    if None in prices:
        return "unknown"
    low, high = (sum(ends) for ends in zip(*filter(None, prices), strict=True))
    return f"${low:.4f} – ${high:.4f}"
