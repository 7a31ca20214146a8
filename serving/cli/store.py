"""`rolegate store` and `rolegate runs export`: see whether the store is whole, and write its runs
into a file that `datasets.load_dataset` reads.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from threading import Event
from typing import Any, get_args

import msgspec
from rich.console import Console
from rich.progress import SpinnerColumn, TextColumn

from router.errors import BadConfig, BadRequest
from router.runs import RunFilter
from router.store import Database, SQLArchive, opened
from router.store.check import Checked, Problem, check
from router.store.database import sqlite_file
from router.trace.export import ExportRow, agent_trajectories, export_row
from router.trace.run import RunKind, right_answers
from serving.cli.options import (
    FORMATS,
    add_command,
    add_config,
    chosen_file,
    json_of,
    new_parser,
    time_argument,
)
from serving.config.file import read_config
from serving.files import replacing
from serving.json_lines import Write, json_lines
from serving.logs import errors_only
from serving.terminal import progress_bar


@asynccontextmanager
async def opened_store(
    given: argparse.Namespace,
    *,
    make: bool = False,
    on_missing: Callable[[list[int]], None] = lambda _numbers: None,
) -> AsyncIterator[Database]:
    """Open the store of the config that the options name, whatever else is wrong in the config.
    `on_missing`: as for `opened`. Raises `BadConfig`, also where there is no store yet, unless
    `make` allows to create it.
    """
    url = read_config(chosen_file(given)).server.store
    if not make and (file := sqlite_file(url)) and not (file.exists() and file.stat().st_size):
        raise BadConfig(
            f"server.store: {file} is {'empty' if file.exists() else 'not there'}; "
            "`rolegate serve` makes it."
        )
    async with opened(url, on_missing) as database:
        yield database


_CHECK = """Looks at everything that is stored: whether the database is whole, and every trace can
be read and says the same as the run and the calls that are booked. A gateway may go on writing
meanwhile."""


_BACKUP = """Copies a SQLite store, with everything that was acknowledged by now, into one file that
opens by itself. A gateway may go on writing meanwhile. PostgreSQL has pg_dump."""


def store(arguments: Sequence[str]) -> int:
    """`rolegate store check` and `backup`; 1 where something is wrong."""
    parser = new_parser("store", "Sees whether the store is whole.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checking = add_command(commands, "check", "verify integrity", _CHECK)
    add_config(checking)
    checking.add_argument("--json", action="store_true", help="print what was found as JSON")
    backing = add_command(commands, "backup", "copy it into one file", _BACKUP)
    backing.add_argument("file", type=Path, metavar="FILE", help="which is not there yet")
    add_config(backing)
    given = parser.parse_args(arguments)
    errors_only()
    if given.command == "backup":
        asyncio.run(_back_up(given))
        return 0
    checked = asyncio.run(_checked(given))
    if given.json:
        print(json_of(checked))
    else:
        _show_checked(checked, Console(soft_wrap=True))
    return 1 if checked.problems else 0


async def _checked(given: argparse.Namespace) -> Checked:
    stopped = Event()
    missing = list[int]()
    async with opened_store(given, on_missing=missing.extend) as database:
        with progress_bar() as bar:
            task = bar.add_task("checking runs", total=None)

            def on_progress(done: int, total: int) -> None:
                if stopped.is_set():
                    raise InterruptedError
                bar.update(task, completed=done, total=total)

            try:
                checked = await check(database, on_progress)
            finally:
                stopped.set()
    lost = [
        Problem("log", f"segment {number} is missing: the runs that only it held are lost")
        for number in missing
    ]
    checked.problems[:0] = lost
    return checked


async def _back_up(given: argparse.Namespace) -> None:
    if given.file.exists():
        raise BadConfig(f"{given.file}: is there already; name another file.")
    if not given.file.parent.is_dir():
        raise BadConfig(f"{given.file}: {given.file.parent} is no folder; make it first.")
    async with opened_store(given) as database:
        with (
            replacing(given.file) as unfinished,
            progress_bar(SpinnerColumn(), TextColumn("copying")) as bar,
        ):
            bar.add_task("", total=None)
            await database.copy(unfinished)
    print(f"{given.file}: {given.file.stat().st_size:,} bytes")


def _show_checked(checked: Checked, console: Console) -> None:
    for problem in checked.problems:
        console.out(f"{problem.where}: {problem.what}", highlight=False)
    looked_at = (
        f"schema {checked.schema}, {checked.runs} runs, {checked.calls} calls and their references"
    )
    count = len(checked.problems)
    well = "all is well" if checked.runs else "all is well, but nothing is stored yet"
    found = f"{count} problem{'s' * (count != 1)}" if count else well
    console.out(f"{looked_at}: {found}", highlight=False)


_GROUP_CHARS = 32_000_000
"""Of the traces of a row group, which is held in memory."""


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    types = {
        str: pa.string(),
        int: pa.int64(),
        int | None: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
    }
    fields = msgspec.structs.fields(ExportRow)
    schema = pa.schema(
        [pa.field(field.name, types[field.type], field.type == int | None) for field in fields]
    )
    rows: list[dict[str, Any]] = []
    chars = 0
    with path.open("wb") as opened, ParquetWriter(opened, schema) as file:

        def write_group() -> None:
            nonlocal chars
            file.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()
            chars = 0

        def write(row: ExportRow) -> None:
            nonlocal chars
            rows.append(msgspec.structs.asdict(row))
            chars += len(row.trace)
            if chars > _GROUP_CHARS:
                write_group()

        yield write
        if rows:
            write_group()


EXPORTS: dict[str, Callable[[Path], AbstractContextManager[Write]]] = {
    ".jsonl": json_lines,
    ".parquet": _parquet,
}
"""What opens a new file to be written row by row, by the end of its name."""


def export(arguments: Sequence[str]) -> int:
    """Export; status 0 where the file is written."""
    parser = new_parser(
        "runs export",
        "Writes runs with their traces into a file that `datasets.load_dataset` reads.",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="FILE.jsonl or FILE.parquet"
    )
    what = (
        "rl: answers only, a line for each agent, with the run's reward; of no tenant whose "
        "runs must not train"
    )
    parser.add_argument("--for", dest="purpose", choices=("rl",), help=what)
    parser.add_argument("--force", action="store_true", help="replace a file that is there already")
    parser.add_argument("--tenant", metavar="NAME", help="one tenant's only")
    parser.add_argument(
        "--training", action="store_true", help="leave out tenants whose runs must not train"
    )
    parser.add_argument("--kind", choices=get_args(RunKind), help="one kind only")
    parser.add_argument("--since", type=time_argument, metavar="TIME", help=FORMATS)
    parser.add_argument(
        "--until", type=time_argument, metavar="TIME", help="runs that started before"
    )
    add_config(parser)
    given = parser.parse_args(arguments)
    errors_only()
    endings = [".jsonl"] if given.purpose else list(EXPORTS)
    if given.out.suffix not in endings:
        raise BadConfig(f"--out {given.out}: name a file that ends in {' or '.join(endings)}.")
    if not given.out.parent.is_dir():
        raise BadConfig(
            f"--out {given.out}: the folder {given.out.parent} is not there; make it first."
        )
    if given.out.is_dir():
        raise BadConfig(f"--out {given.out}: is a folder; name a file.")
    if given.out.exists() and not given.force:
        raise BadConfig(f"--out {given.out}: is there already; --force replaces it.")
    # And leave nothing behind
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        runs = asyncio.run(_export(given))
    except OSError as error:
        raise BadConfig(
            f"--out {given.out}: cannot be written: {error.strerror or error}."
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{given.out}: {runs} runs")
    return 0


async def _export(given: argparse.Namespace) -> int:
    """Write the runs; the number of them."""
    wanted = RunFilter(
        tenant=given.tenant,
        kind="answer" if given.purpose else given.kind,
        start=given.since and given.since.timestamp(),
        end=given.until and given.until.timestamp(),
        training=given.training or given.purpose is not None,
    )
    columns = SpinnerColumn(), TextColumn("exporting: {task.completed} runs")
    runs = 0
    async with opened_store(given) as database:
        with (
            replacing(given.out) as unfinished,
            progress_bar(*columns) as bar,
            EXPORTS[given.out.suffix](unfinished) as write,
        ):
            task = bar.add_task("", total=None)
            async for told in SQLArchive(database).export(wanted):
                rows: list[msgspec.Struct] = [export_row(told.run, told.feedback)]
                if given.purpose:
                    rows[:] = agent_trajectories(told.run, right_answers(told.feedback))
                for row in rows:
                    write(row)
                runs += bool(rows)
                bar.update(task, completed=runs)
            if not runs:  # `load_dataset` cannot read a file without rows
                raise BadRequest(f"--out {given.out}: not written, as there are no such runs.")
    return runs
