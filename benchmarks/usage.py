"""How long the sums over very many calls take, and whether they are exact."""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sqlalchemy import Connection, Integer, literal_column, select

from benchmarks.postgres import running_postgres
from benchmarks.query_plan import explained
from benchmarks.usage_filling import BEGIN, DAYS, fill, hour_of
from router.errors import BadRequest
from router.ledger.usage import UsageQuery, UsageReport
from router.store.database import Database
from router.store.schema import CALLS, RUNS
from router.store.usage import HOUR_S, sums_of_calls, usage_in
from router.trace.call import SUMS
from serving.files import write_atomically

_DAY_S = 24 * HOUR_S
_TIMES = 5
_MIDDLE = BEGIN + DAYS // 2 * _DAY_S
QUERIES = {
    "all, by tenant": UsageQuery(by=("tenant",)),
    "all, by role and model": UsageQuery(),
    "all, by executor version": UsageQuery(by=("executor_version",)),
    "all, by model and day": UsageQuery(by=("model",), bucket="day"),
    "all, by hour": UsageQuery(by=(), bucket="hour"),
    "one day, by role and hour": UsageQuery(_MIDDLE, _MIDDLE + _DAY_S, by=("role",), bucket="hour"),
    "30 days and some minutes, by tenant": UsageQuery(_MIDDLE - 1234.5, _MIDDLE + 30 * _DAY_S + 987.6, by=("tenant",)),
    "the same of one tenant, by model": UsageQuery(
        _MIDDLE - 1234.5, _MIDDLE + 30 * _DAY_S + 987.6, "tenant-7", ("model",)
    ),
    "ten minutes, by model": UsageQuery(_MIDDLE + 600.5, _MIDDLE + 1200.5, by=("model",)),
}


class Figure(msgspec.Struct, frozen=True):
    """One query."""

    query: str
    rows: int
    """Of the answer."""
    median_ms: float
    naive_ms: float
    """The same sums by one query over all calls of the span, without `usage_hours`."""
    exact: bool
    """Whether both are the same."""
    plans: tuple[str, ...]
    """Of all queries that it takes, as the database words them."""


class Figures(msgspec.Struct, frozen=True):
    """What one run measured."""

    database: str
    calls: int
    fill_s: float
    queries: tuple[Figure, ...]


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; 1 where a sum is not exact. Raises `RolegateError`."""
    parser = argparse.ArgumentParser("rolegate bench usage", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, metavar="N", help="calls (default: 10,000,000)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--store", metavar="URL", help="an empty database (default: a SQLite file that is deleted)")
    place.add_argument("--postgres", action="store_true", help="a PostgreSQL server that is started for it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch, running_postgres() if given.postgres else nullcontext() as url:
        figures = asyncio.run(measure(url or given.store or f"sqlite:///{scratch}/usage.db", given.rows))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    _show(figures, Console())
    return 0 if all(figure.exact for figure in figures.queries) else 1


async def measure(url: str, calls: int) -> Figures:
    """Fill the database and ask it. Raises `BadRequest` for one with runs in it, and `BadConfig`."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    database = await Database.open(url)
    try:
        if await database.read(lambda connection: connection.scalar(select(RUNS.c.run_id).limit(1))):
            raise BadRequest("--store: has runs in it; name an empty database.")
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task, started = bar.add_task("filling", total=calls), time.perf_counter()
            await fill(database, calls, lambda done: bar.update(task, completed=done))
            fill_s = time.perf_counter() - started
            task = bar.add_task("asking", total=len(QUERIES))
            figures = []
            for name, query in QUERIES.items():
                figures.append(await database.read(partial(_asked, name=name, query=query)))
                bar.advance(task)
        return Figures(await database.read(lambda connection: connection.dialect.name), calls, fill_s, tuple(figures))
    finally:
        await database.close()


def _asked(connection: Connection, name: str, query: UsageQuery) -> Figure:
    with explained(connection) as plans:
        report = usage_in(connection, query)
    connection.rollback()
    times = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        usage_in(connection, query)
        times.append(time.perf_counter() - started)
        connection.rollback()  # the snapshot ends
    started = time.perf_counter()
    naive = _naive(connection, query)
    naive_ms = (time.perf_counter() - started) * 1000
    exact = _rows(report, query) == naive
    return Figure(name, len(report.rows), sorted(times)[_TIMES // 2] * 1000, naive_ms, exact, tuple(plans))


def _naive(connection: Connection, query: UsageQuery) -> set[tuple[Any, ...]]:
    """The sums over all calls of the span, in rows as `_rows` gives them."""
    calls, hours = CALLS.c, {"hour": "1", "day": "24"}[query.bucket or "hour"]
    bucket = [(hour_of(connection) // literal_column(hours, Integer)).label("bucket")] if query.bucket else []
    groups = [*bucket, *(calls[name] for name in query.by)]
    wanted = select(*groups, *sums_of_calls()).where(calls.outcome != "open").group_by(*groups)
    if query.start is not None and query.end is not None:
        wanted = wanted.where(calls.started_at >= query.start, calls.started_at < query.end)
    if query.tenant is not None:
        wanted = wanted.where(calls.tenant == query.tenant)
    length_s = int(hours) * HOUR_S
    return {(row[0] * length_s if bucket else None, *row[len(bucket) :]) for row in connection.execute(wanted)}


def _rows(report: UsageReport, query: UsageQuery) -> set[tuple[Any, ...]]:
    names = (*query.by, *SUMS)
    return {(row.bucket_start, *(getattr(row, name) for name in names)) for row in report.rows}


def _show(figures: Figures, console: Console) -> None:
    title = f"{figures.calls:,} calls in {figures.database}, filled in {figures.fill_s:.0f} s"
    table = Table("sums", title=title, title_justify="left")
    for column in ("rows", "median ms", "over all calls, ms", "exact"):
        table.add_column(column, justify="right")
    for figure in figures.queries:
        cells = str(figure.rows), f"{figure.median_ms:.1f}", f"{figure.naive_ms:.0f}", "yes" if figure.exact else "NO"
        table.add_row(figure.query, *cells)
    console.print(table)
    for figure in figures.queries:
        console.out(f"{figure.query}:", highlight=False)
        for plan in figure.plans:
            console.out("  " + plan.replace("\n", "\n  "), highlight=False)
