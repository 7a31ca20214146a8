"""`rolegate store`: see whether the store is whole."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from router.errors import BadConfig
from router.store.check import Checked, check
from router.store.database import Database
from serving.cli.options import add_config, chosen_file
from serving.config.file import read_config
from serving.logs import errors_only


@asynccontextmanager
async def opened_store(given: argparse.Namespace, *, make: bool = False) -> AsyncIterator[Database]:
    """That of the config that the options name, whatever else is wrong in it. Raises `BadConfig`, also where there is
    none yet, unless one is to be made.
    """
    url = read_config(chosen_file(given)).server.store
    if not make and (file := _file(url)) and not (file.exists() and file.stat().st_size):
        raise BadConfig(
            f"server.store: {file} is {'empty' if file.exists() else 'not there'}; `rolegate serve` makes it."
        )
    database = await Database.open(url)
    try:
        yield database
    finally:
        await database.close()


def _file(url: str) -> Path | None:
    """Where SQLite keeps it; None for other databases, and for what is no address."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return None
    return Path(address.database) if address.get_backend_name() == "sqlite" and address.database else None


_CHECK = """Looks at everything that is stored: whether the database is whole, every trace can be read and says the
same as the calls that are booked, sums and reservations are those of the calls, and no run is left over from a gateway
that is gone. A gateway may go on writing meanwhile."""


def main(arguments: Sequence[str]) -> int:
    """`rolegate store check`; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="rolegate store", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checking = commands.add_parser("check", help="verify integrity", description=_CHECK)
    add_config(checking)
    checking.add_argument("--json", action="store_true", help="print what was found as JSON")
    given = parser.parse_args(arguments)
    errors_only()
    checked = asyncio.run(_checked(given))
    if given.json:
        print(msgspec.json.encode(checked).decode())
    else:
        _show(checked, Console(soft_wrap=True))
    return 1 if checked.problems else 0


async def _checked(given: argparse.Namespace) -> Checked:
    columns = TextColumn("checking runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    stopped = Event()
    async with opened_store(given) as database:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)

            def tell(done: int, total: int) -> None:
                if stopped.is_set():
                    raise InterruptedError
                bar.update(task, completed=done, total=total)

            try:
                return await check(database, tell)
            finally:
                stopped.set()


def _show(checked: Checked, console: Console) -> None:
    for problem in checked.problems:
        console.out(f"{problem.where}: {problem.what}", highlight=False)
    looked_at = f"schema {checked.schema}, {checked.runs} runs, {checked.calls} calls, their sums and references"
    count = len(checked.problems)
    well = "all is well" if checked.runs else "all is well, but nothing is stored yet"
    found = f"{count} problem{'s' * (count != 1)}" if count else well
    console.out(f"{looked_at}: {found}", highlight=False)
