"""`rolegate check`: find problems of a config; with --live, also probe its models, embedder, index
and tool servers.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.errors import BadDocument, BadIndex
from router.models.failures import without_userinfo
from router.store.database import sqlite_file, store_problem
from router.trace import RoleName
from serving.cli.command import exclusive, parse
from serving.cli.grid import new_table, print_line, print_lines
from serving.cli.options import ConfigOptions, Seconds, json_of
from serving.config.check import problems
from serving.config.config import Config, place_of
from serving.config.file import read_config
from serving.config.secrets import missing
from serving.documents.source import find_sources
from serving.live_check.estimate import TYPICAL
from serving.live_check.live_check import LiveCheck, RoleCheck, live_check
from serving.logs import errors_only
from serving.retrieval.gaps import gaps_at
from serving.retrieval.lexical import OUTDATED, has_words
from serving.retrieval.manifest import manifest_at, read_manifest
from serving.retrieval.opening import identity_of

_MARKS = {True: "[green]✓[/green]", False: "[red]✗[/red]", None: "[dim]–[/dim]"}


class CheckOptions(ConfigOptions):
    """Find problems in a config.

    With --live, also send a few small requests to its models, embedder and index, list the tools of
    its MCP servers, and estimate what one question costs.
    """

    live: Annotated[bool, exclusive("way")] = False
    """Also send a few small requests, which a provider may charge for, to the models of the roles,
    the embedder, the index of [retrieval], the reranker and the tool servers. Before that, start
    the config's vLLM engines.
    """
    allow_missing: Annotated[bool, exclusive("way")] = False
    """Exit with status 0 even if API keys or packages are missing, or an index is not built yet."""
    timeout: Seconds = 60.0
    """Wait at most this many seconds for the result of each request."""
    json: bool = False
    """Print the result as JSON."""
    NEEDS: ClassVar = {"timeout": "live"}


def check(arguments: Sequence[str]) -> int:
    """Run `rolegate check`; return the exit status. It is 1 if the config has a problem, a request
    of --live failed, or an API key, package or index is missing (see --allow-missing).
    """
    options = parse(CheckOptions, "check", arguments)
    errors_only()
    config = read_config(options.config)
    absent = missing(config)
    wrong = problems(config) + (absent if options.live else [])
    if not wrong and not absent:
        wrong += _other_schema(config.server.store, live=options.live)
    warnings = ([] if options.live else absent) + _not_built(config)
    if not wrong:
        warnings += _without_documents(config)
    live = asyncio.run(_probed(config, options)) if options.live and not wrong else None
    gaps = gaps_at(Path(config.retrieval.index)) if config.retrieval.index else None

    incomplete = bool(warnings) and not options.allow_missing and live is None
    works = not wrong and not incomplete and (live is None or live.works)
    if options.json:
        print(
            json_of(
                {
                    "works": works,
                    "problems": wrong,
                    "warnings": warnings,
                    "index": gaps,
                    "live": live,
                }
            )
        )
        return int(not works)

    # First print what is missing in the index, so that errors stay on the screen
    if gaps:
        print_lines(Console(soft_wrap=True), [f"index: {line}" for line in gaps.lines()])
    if live is not None:
        _show(live)
    else:
        _show_file(options.config, config, wrong, warnings)
    return int(not works)


def _other_schema(store: str, *, live: bool) -> list[str]:
    """Return a list with one message if the schema of the database at the URL `store` belongs to
    another release or program; else an empty list. PostgreSQL is checked only if `live`, because
    that needs a connection.
    """
    file = sqlite_file(store)
    exists = file.exists() and file.stat().st_size > 0 if file else live
    problem = store_problem(store) if exists else None
    return [problem] if problem else []


def _not_built(config: Config) -> list[str]:
    """Return a message for each index that is missing or was built with other settings. Indexes
    with `documents` in the config are skipped, because the gateway builds them when it starts.
    """
    problems = []
    for name, retrieval in config.all_indexes.items():
        if retrieval.index is None or retrieval.documents:
            continue
        key = place_of(name)
        try:
            manifest = read_manifest(Path(retrieval.index))
        except BadIndex as error:
            problems.append(f"{key}.index: {error}")
            continue

        if manifest.lexical != retrieval.lexical:
            problems.append(
                f"{key}.lexical: must be {str(manifest.lexical).lower()}, because the index in "
                f"{retrieval.index} was built with this value; change the key, or build again."
            )
        elif manifest.lexical and not has_words(manifest):
            problems.append(f"{key}.index: {retrieval.index}: {OUTDATED}")
        embedder = identity_of(retrieval.embedder)
        if manifest.embedder != embedder:
            problems.append(
                f"retrieval.embedder: is {embedder}, but the index in {retrieval.index} was built "
                f"with {manifest.embedder}; configure that embedder, or build the index again."
            )
    return problems


def _without_documents(config: Config) -> list[str]:
    """Return a message for each index that the gateway cannot build when it starts, because there
    is no document. Indexes that exist are skipped: the gateway would continue to use them.
    """
    problems = []
    for name, retrieval in config.all_indexes.items():
        exists = retrieval.index and manifest_at(Path(retrieval.index))
        if retrieval.documents and not exists:
            try:
                find_sources([Path(place) for place in retrieval.documents])
            except BadDocument as error:
                problems.append(f"{place_of(name)}.documents: {error}")
    return problems


async def _probed(config: Config, options: CheckOptions) -> LiveCheck:
    progress = Console(stderr=True, quiet=options.json)
    with progress.status("probing") as status:

        def log(step: str) -> None:
            progress.print(f"[dim]{escape(step)}[/dim]", highlight=False)
            status.update(escape(step))

        return await live_check(config, log, options.timeout)


def _show_file(file: Path, config: Config, wrong: list[str], warnings: list[str]) -> None:
    console = Console(soft_wrap=True)
    print_lines(console, [f"{file}: {problem}" for problem in wrong])
    if wrong:
        return

    rows = []
    for name, role in config.roles.by_name.items():
        where = without_userinfo(role.base_url or "LiteLLM")
        if role.engine:
            where = f"vLLM engine {role.engine}"
        rows.append((name, role.model, where, role.prompt))
    console.print(new_table(("role", "model", "where", "prompt"), rows, texts=4))
    verdict = "not ready yet" if warnings else "fine"
    print_lines(console, [f"{file}: {verdict}", *(f"still missing: {text}" for text in warnings)])


def _show(live: LiveCheck) -> None:
    console = Console()
    advice = dict[str, list[str]]()
    for role_name, role in live.roles.items():
        print_line(console, f"{role_name}: {role.model}", style="dim")
    for name, results in live.probes.items():
        marks = [
            f"{probe} {_MARKS[result.good]} {escape(result.word)}".rstrip()
            for probe, result in results.items()
        ]
        console.print(f"{name}: {' · '.join(marks)}", highlight=False)
        for result in results.values():
            advice.setdefault(result.advice, []).append(name)
    advice.pop("", None)
    for text, names in advice.items():
        console.print(f"[bold]{', '.join(names)}:[/bold] {escape(text)}", highlight=False)
    if any("protocol" in results for results in live.probes.values()):
        console.print(_costs(live.roles))
        console.print(f"[dim]{TYPICAL}[/dim]", highlight=False)


def _costs(roles: Mapping[RoleName, RoleCheck]) -> Table:
    """Return a table of the calls, tokens and dollars for one question, with a row for each role.
    Each figure is a range, from a typical question to the most expensive question.
    """
    rows = []
    for name, role in roles.items():
        counts = [
            f"{getattr(role.typical, field):,} – {getattr(role.at_most, field):,}"
            for field in ("calls", "prompt_tokens", "completion_tokens")
        ]
        rows.append([name, *counts, _dollars([role])])
    rows.append(["all", " ", " ", " ", _dollars([*roles.values()])])
    return new_table(("one question", "calls", "prompt tokens", "written", "price"), rows)


def _dollars(roles: Sequence[RoleCheck]) -> str:
    """Return the cost of one question over `roles` as text: a range from a typical question to the
    most expensive question, or "unknown" if a model has no known price.
    """
    prices = [role.dollars for role in roles]
    if None in prices:
        return "unknown"
    low, high = (sum(ends) for ends in zip(*filter(None, prices), strict=True))
    return f"${low:.4f} – ${high:.4f}"
