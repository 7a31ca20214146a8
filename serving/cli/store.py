"""`rolegate store` and `rolegate runs export`: check, upgrade, copy and restore the store, and
export its runs.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Literal

import msgspec
from rich.console import Console
from rolegate.client import AsyncClient

from router.edge.grpc.convert_request import feedback_from_proto
from router.errors import BadConfig, BadRequest
from router.runs import RunFilter
from router.runs.archive import ExportedRun
from router.store import Database, SQLArchive, opened
from router.store.check import Problem, check
from router.store.copies.restore import restore
from router.store.copies.transfer import export_rows, import_rows
from router.store.database import default_log, sqlite_file, upgrade
from router.store.log import RunLog
from router.store.migration import THIS, Release
from router.trace import Run
from router.trace.export import ExportRow, agent_trajectories, export_row
from router.trace.run import RunKind, right_answers
from serving.cli.command import POSITIONAL, parse, run_async, run_subcommand
from serving.cli.grid import counted, print_lines
from serving.cli.options import (
    ConfigOptions,
    File,
    JSONConfigOptions,
    StoreOptions,
    Time,
    check_new_file,
    connection,
    json_of,
)
from serving.config.file import read_config
from serving.files import replacing
from serving.json_lines import Write, json_lines
from serving.logs import errors_only
from serving.terminal import progress_bar


@asynccontextmanager
async def opened_store(
    config: Path,
    *,
    make: bool = False,
    on_missing: Callable[[list[int]], None] = lambda _numbers: None,
) -> AsyncIterator[Database]:
    """Open the store that a config file names, and yield its database. The other settings of the
    config are not checked, so its models and indexes may be missing on this machine.

    `make`: create the store if it does not exist; if False, a missing store raises `BadConfig`.
    `on_missing`: called with the numbers of missing segments (files) of the write-ahead log.
    """
    server = read_config(config).server
    if not make:
        _see_file(server.store)
    async with opened(server.store, on_missing, server.log) as database:
        yield database


class BackupOptions(ConfigOptions):
    """Options of `store backup`."""

    file: Annotated[Path, POSITIONAL]
    """Write the copy to this file, which must not exist yet."""


class RowsOptions(JSONConfigOptions, kw_only=True):
    """Options of `store export` and `store import`."""

    file: Annotated[Path, POSITIONAL]
    """JSON-lines file. `store export` writes this file, which must not exist yet; `store import`
    reads it.
    """


class RestoreOptions(ConfigOptions):
    """Options of `store restore`."""

    file: Annotated[Path, POSITIONAL]
    """Restore this file, which `rolegate store backup` wrote."""
    force: bool = False
    """Replace the config's store if it exists. The old store and its log are kept under another
    name, which is printed.
    """


class UpgradeOptions(JSONConfigOptions):
    """Options of `store upgrade`."""

    check: bool = False
    """Only show the steps of the upgrade; the exit status is 1 if a step is needed."""


def store(arguments: Sequence[str], release: Release = THIS) -> int:
    """Run `rolegate store`; return the exit status, which is 1 if `check` finds a problem, or
    `upgrade --check` finds that an upgrade is needed. `release`: the release to upgrade to.
    """

    async def upgrading(options: UpgradeOptions) -> int:
        """Upgrade the schema of the store to the schema of this release.

        Make a backup first. --check shows whether gateways of earlier releases can use the upgraded
        store. If they cannot, stop them before the upgrade.
        """
        url = read_config(options.config).server.store
        _see_file(url)
        steps = upgrade(url, release, check=options.check)
        if options.json:
            print(json_of({"steps": steps}))
        else:
            for step in steps:
                kind = "earlier releases keep working"
                if step.number:
                    kind = "earlier releases stop working"
                print(f"{step.revision} {step.about} ({kind})")
            print(counted(len(steps), "revision"), "to do" if options.check else "done")
        return int(options.check and bool(steps))

    errors_only()
    return run_subcommand(
        "store",
        "Check, upgrade, copy or restore the store.",
        {
            "upgrade": upgrading,
            "check": _check,
            "backup": _back_up,
            "restore": _restore,
            "export": _export_all,
            "import": _import_all,
        },
        arguments,
        run_async,
    )


def _see_file(url: str) -> None:
    """Raise `BadConfig` if `url` names a SQLite file that is empty or does not exist."""
    if (file := sqlite_file(url)) and not (file.exists() and file.stat().st_size):
        raise BadConfig(
            f"server.store: {file} {'is empty' if file.exists() else 'does not exist'}; correct "
            "the path, or start the gateway, which creates the store (`rolegate serve`)."
        )


async def _check(options: JSONConfigOptions) -> int:
    """Verify the integrity of the store.

    Check the database itself. Then check that the trace of every run can be read, and agrees with
    the stored rows of the run and its model calls. A gateway may continue to write meanwhile.
    """
    missing = list[int]()
    async with opened_store(options.config, on_missing=missing.extend) as database:
        with _progress("checking runs") as on_progress:
            checked = await check(database, on_progress)
    checked.problems[:0] = [
        Problem("log", f"its file {number:08}-….log is missing: runs stored only there are lost")
        for number in missing
    ]
    verdict = "all is well" if checked.runs else "all is well, but nothing is stored yet"
    if checked.problems:
        verdict = f"{counted(len(checked.problems), 'problem')}; to repair, restore a backup"
    lines = [f"{problem.where}: {problem.what}" for problem in checked.problems]
    sums = f"{counted(checked.runs, 'run')}, {counted(checked.calls, 'call')}"
    lines.append(f"schema {checked.schema}, {sums} and their references: {verdict}")
    if options.json:
        print(json_of(checked))
    else:
        print_lines(Console(soft_wrap=True), lines)
    return int(bool(checked.problems))


@contextmanager
def _progress(title: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar, and yield a function that updates the bar. The function's arguments are
    the number of finished items and, if known, the number of all items. After the end of the
    context, the function raises `InterruptedError`, so that a thread that still calls it stops.
    """
    stopped = Event()
    with progress_bar() as bar:
        task = bar.add_task(title, total=None)

        def on_progress(done: int, total: int | None = None) -> None:
            if stopped.is_set():
                raise InterruptedError
            bar.update(task, completed=done, total=total)

        try:
            yield on_progress
        finally:
            stopped.set()


async def _back_up(options: BackupOptions) -> None:
    """Copy a SQLite store into one file.

    The copy contains every answer that clients have received so far, and can be restored without
    any other file. A gateway may continue to write meanwhile. For PostgreSQL use pg_dump.
    """
    await _copied(options, "copying", lambda database, file, _: database.copy(file))
    print(f"{options.file}: {options.file.stat().st_size:,} bytes")


async def _export_all(options: RowsOptions) -> None:
    """Write the whole store into a file of JSON lines, which any empty store can import.

    The file contains every answer that clients have received so far. A gateway may continue to
    write meanwhile.
    """
    rows = await _copied(
        options,
        "exporting rows",
        lambda database, *to: database.read(lambda connection: export_rows(connection, *to)),
    )
    _show_rows(rows, options)


async def _copied(
    options: BackupOptions | RowsOptions, title: str, copy: Callable[..., Awaitable[Any]]
) -> Any:
    """Let `copy` write the store to the new file `options.file`, and return the result of `copy`.
    `title`: label of the progress bar. Raises `BadConfig` if the file exists or cannot be written.
    """
    file = options.file
    if file.exists():
        raise BadConfig(f"{file}: the file exists already; name another one.")
    check_new_file("FILE", file)
    async with opened_store(options.config) as database:
        with replacing(file) as unfinished, _progress(title) as on_progress:
            return await copy(database, unfinished, on_progress)


async def _import_all(options: RowsOptions) -> None:
    """Fill an empty store from a file that `rolegate store export` wrote.

    Either all rows of the file are imported, or none.
    """
    async with opened_store(options.config, make=True) as database:
        with _progress("importing rows") as on_progress:
            rows = await database.write(
                lambda connection: import_rows(connection, options.file, on_progress)
            )
    _show_rows(rows, options)


def _show_rows(rows: int, options: RowsOptions) -> None:
    print(json_of({"rows": rows}) if options.json else f"{options.file}: {counted(rows, 'row')}")


async def _restore(options: RestoreOptions) -> None:
    """Replace a SQLite store by a backup.

    No gateway may be running. For PostgreSQL use pg_restore.
    """
    server = read_config(options.config).server
    file = sqlite_file(server.store)
    if file is None:
        raise BadConfig("server.store: is not a SQLite file; use pg_restore for PostgreSQL.")
    file = file.resolve()
    log = Path(server.log or default_log(file))
    # `replacing` is closed first, so the copy has its final name before the log is unlocked
    with RunLog.open(log), replacing(file) as unfinished:
        end = await restore(options.file, unfinished, file, log, force=options.force)
    print(f"{file}: restored from {options.file}")
    if end:
        print(f"{file}{end}: the previous store")


_GROUP_CHARS = 32_000_000
"""Size of a row group of a Parquet file, in characters of its traces. Rows are held in memory until
they reach this size, and are then written as one row group.
"""


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    """Open a new Parquet file, and yield a function that writes one `ExportRow` into it."""
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
    rows = list[dict[str, Any]]()
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
"""Functions that open a new file for writing rows, by the suffix of the file."""


class ExportOptions(StoreOptions, kw_only=True):
    """Write runs with their traces into a file that Hugging Face's `load_dataset` can read."""

    out: File
    """Write to this file, which ends in .jsonl or .parquet. For .parquet, install the extra
    `datasets`.
    """
    purpose: Literal["rl"] | None = msgspec.field(default=None, name="for")
    """Purpose of the file, which determines its rows (default: one row per run). rl (reinforcement
    learning): one row per agent of a run (delegator, manager, executor or answerer), with the
    reward of the run. rl needs a .jsonl file, and implies --training.
    """
    force: bool = False
    """Replace the file if it exists."""
    tenant: str | None = None
    """Write only runs of this tenant (default: all tenants)."""
    training: bool = False
    """Leave out runs of tenants that do not allow training on them (`rolegate tenants set NAME
    --no-training`).
    """
    kind: RunKind | None = None
    """Write only runs of this kind: answer (a question), table (a table), execute (one sub-query,
    by API), complete (one model call, by API), or shadow (a finished run that a version on trial
    repeated).
    """
    since: Time | None = None
    """Write only runs that started at this time or later: 2026-11-21, 2026-11-21T10:00 (UTC), 7d (7
    days ago) or 12h (12 hours ago).
    """
    until: Time | None = None
    """Write only runs that started before this time; same forms as --since."""


def export(arguments: Sequence[str]) -> int:
    """Run `rolegate runs export`; return the exit status."""
    options = parse(ExportOptions, "runs export", arguments)
    errors_only()
    suffixes = [".jsonl"] if options.purpose else list(EXPORTS)
    check_new_file("--out", options.out, suffixes, force=options.force)
    # On SIGTERM, raise SystemExit, so that the unfinished file is removed
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        asyncio.run(_export(options))
        return 0
    except OSError as error:
        raise BadConfig(
            f"--out {options.out}: not written ({error.strerror or error}); name another file."
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)


async def _export(options: ExportOptions) -> None:
    """Write runs to the file `options.out`, and print how many. Raises `BadRequest` if no run
    matches.
    """
    runs = 0
    async with aclosing(_records(options)) as records:
        with (
            replacing(options.out) as unfinished,
            _progress("exporting runs") as on_progress,
            EXPORTS[options.out.suffix](unfinished) as write,
        ):
            async for record in records:
                rows: list[msgspec.Struct] = [export_row(record.run, record.feedback)]
                if options.purpose:
                    rows[:] = agent_trajectories(record.run, right_answers(record.feedback))
                for row in rows:
                    write(row)
                runs += bool(rows)
                on_progress(runs)
            if not runs:  # `load_dataset` fails on a file without rows
                raise BadRequest(
                    f"--out {options.out}: not written, because no run matches; export more with "
                    "fewer filters (--tenant, --training, --kind, --since, --until)."
                )
    print(f"{options.out}: {counted(runs, 'run')}")


async def _records(options: ExportOptions) -> AsyncGenerator[ExportedRun, None]:
    """Yield the runs to export, from a gateway or from the config's store."""
    training = options.training or options.purpose is not None
    if options.address is None:
        assert options.config is not None
        wanted = RunFilter(
            tenant=options.tenant,
            kind=options.kind,
            start=options.since.timestamp() if options.since else None,
            end=options.until.timestamp() if options.until else None,
            training=training,
        )
        async with opened_store(options.config) as database:
            async for record in SQLArchive(database).export(wanted):
                yield record
        return
    async with AsyncClient(connection(options, options.address)) as client:
        exported = client.export(
            tenant=options.tenant or "",
            kind=options.kind,
            start=options.since,
            end=options.until,
            for_training=training,
        )
        async for message in exported:
            run = msgspec.json.decode(message.trace_json, type=Run)
            feedback = [feedback_from_proto(each, run_id=run.id) for each in message.feedback]
            yield ExportedRun(run, tuple(feedback))
