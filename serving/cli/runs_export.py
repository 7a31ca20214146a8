"""`rolegate runs export`: write runs with their traces into a file that `datasets.load_dataset` reads."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from router.errors import BadConfig, BadRequest
from router.runs.archive import RunFilter
from router.store.archive import SQLArchive
from router.trace.export import export_row
from router.trace.run import RunKind
from serving.cli.moment import FORMATS as MOMENTS
from serving.cli.moment import moment
from serving.cli.opened_store import opened_store
from serving.cli.options import add_config
from serving.export_file import FORMATS
from serving.logs import errors_only
from serving.retrieval.atomic_file import replacing


def main(arguments: Sequence[str]) -> int:
    """Export; status 0 where the file is written."""
    parser = argparse.ArgumentParser(prog="rolegate runs export", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.jsonl or FILE.parquet")
    parser.add_argument("--force", action="store_true", help="replace a file that is there already")
    parser.add_argument("--tenant", metavar="NAME", help="one tenant's only")
    parser.add_argument("--training", action="store_true", help="leave out tenants whose runs must not train")
    parser.add_argument("--kind", choices=get_args(RunKind), help="one kind only")
    parser.add_argument("--since", type=moment, metavar="TIME", help=MOMENTS)
    parser.add_argument("--until", type=moment, metavar="TIME", help="runs that started before")
    add_config(parser)
    given = parser.parse_args(arguments)
    errors_only()
    if given.out.suffix not in FORMATS:
        raise BadConfig(f"--out {given.out}: name a file that ends in {' or '.join(FORMATS)}.")
    if not given.out.parent.is_dir():
        raise BadConfig(f"--out {given.out}: the folder {given.out.parent} is not there; make it first.")
    if given.out.is_dir():
        raise BadConfig(f"--out {given.out}: is a folder; name a file.")
    if given.out.exists() and not given.force:
        raise BadConfig(f"--out {given.out}: is there already; --force replaces it.")
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # and leave nothing behind
    try:
        runs = asyncio.run(_export(given))
    except OSError as error:
        raise BadConfig(f"--out {given.out}: cannot be written: {error.strerror or error}.") from error
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{given.out}: {runs} runs")
    return 0


async def _export(given: argparse.Namespace) -> int:
    """How many runs were written."""
    wanted = RunFilter(
        tenant=given.tenant,
        kind=given.kind,
        start=given.since and given.since.timestamp(),
        end=given.until and given.until.timestamp(),
        training=given.training,
    )
    columns = SpinnerColumn(), TextColumn("exporting: {task.completed} runs")
    runs = 0
    async with opened_store(given) as database:
        with (
            replacing(given.out) as unfinished,
            Progress(*columns, console=Console(stderr=True), transient=True) as bar,
            FORMATS[given.out.suffix](unfinished) as write,
        ):
            task = bar.add_task("", total=None)
            async for told in SQLArchive(database).export(wanted):
                write(export_row(told.run, told.feedback))
                runs += 1
                bar.update(task, completed=runs)
            if not runs:  # `load_dataset` cannot read a file without rows
                raise BadRequest(f"--out {given.out}: not written, as there are no such runs.")
    return runs
