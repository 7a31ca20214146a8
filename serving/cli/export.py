"""`rolegate runs export`: write runs with their traces into a file that `datasets.load_dataset` reads."""

import argparse
import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, get_args

import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from router.errors import BadConfig, BadRequest
from router.runs.archive import RunFilter
from router.store.archive import SQLArchive
from router.trace.export import ExportRow, export_row
from router.trace.run import RunKind
from serving.cli.options import FORMATS as MOMENTS
from serving.cli.options import add_config, moment
from serving.cli.store import opened_store
from serving.files import replacing
from serving.logs import errors_only

Write = Callable[[ExportRow], None]
_GROUP_CHARS = 32_000_000
"""Of the traces of a row group, which is held in memory."""
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T][\d:.]*(Z|[+-][\d:]+)?)?")


def _opened(path: Path) -> BinaryIO:
    """An empty file, its owner's alone as the store is: it holds the same texts."""
    file = path.open("wb")
    os.fchmod(file.fileno(), 0o600)
    return file


@contextmanager
def _json_lines(path: Path) -> Iterator[Write]:
    with _opened(path) as file:

        def write(row: ExportRow) -> None:
            texts = {name: f"{text} " for name, text in msgspec.structs.asdict(row).items() if _is_moment(text)}
            file.write(msgspec.json.encode(msgspec.structs.replace(row, **texts)) + b"\n")

        yield write


def _is_moment(value: object) -> bool:
    """Whether Arrow would take a text for a time, and a column of such texts for a column of times. A space behind it
    keeps it from that.
    """
    return isinstance(value, str) and _MOMENT.fullmatch(value) is not None


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    types = {str: pa.string(), int: pa.int64(), int | None: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    fields = msgspec.structs.fields(ExportRow)
    schema = pa.schema([pa.field(field.name, types[field.type], field.type == int | None) for field in fields])
    rows: list[dict[str, Any]] = []
    chars = 0
    with _opened(path) as opened, ParquetWriter(opened, schema) as file:

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


FORMATS: dict[str, Callable[[Path], AbstractContextManager[Write]]] = {".jsonl": _json_lines, ".parquet": _parquet}
"""What opens a new file to be written row by row, by the end of its name."""


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
