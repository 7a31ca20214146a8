"""Upgrades of a store under load, gateway by gateway, from earlier releases to this one."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

from benchmarks.gateway import canned_config, played
from router.store import Database
from router.store.check import check
from router.store.database import WRITES, engine_of
from router.store.schema import REVISION, SCHEMA_NUMBER
from tests.router.store.entries import rows
from tests.router.store.every_column import contents
from tests.router.store.releases import EARLIER, ROOT, Callers, gateway, release
from tests.store_config import write_config

_RUNS = int(os.environ.get("ROLEGATE_RUNS", "40"))
_CALLERS = 8
_MAIN = """
import sys
from pathlib import Path
from serving.cli.main import main

status = main(sys.argv[1:])
print(Path("/proc/self/status").read_text(), file=sys.stderr)
sys.exit(status)
"""
"""A program that runs a command, and prints the most memory that it has used."""
_SOME = 10
"""Answers that each gateway must give before the next one is stopped."""
_LIMITED = """
INSERT INTO tenants (name, tokens_per_day, redact, training, indexes)
VALUES ('default', 1000000000, false, true, 'default')
"""


def _execute(url: str, statement: str) -> None:
    """Change a database without the code of this release."""
    engine = engine_of(url)
    with engine.execution_options(**WRITES).begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def _tables(url: str) -> list[str]:
    engine = engine_of(url)
    names = inspect(engine).get_table_names()
    engine.dispose()
    return names


async def upgraded(url: str, source: Path, config: Path, answers: int) -> Callers:
    """Let callers ask gateways of the release in `source`, one on SQLite and two on PostgreSQL,
    until each has given so many answers. Then replace one after the other by this release, and
    start the earlier one again. Return the callers.
    """
    callers = Callers()
    async with AsyncExitStack() as running:

        async def start(release: Path) -> tuple[str, AsyncExitStack]:
            stack = await running.enter_async_context(AsyncExitStack())
            return await stack.enter_async_context(callers.served_by(release, config)), stack

        async with callers.asking(_CALLERS):
            gateways = [await start(source) for _ in range(1 if url.startswith("sqlite") else 2)]
            _execute(url, _LIMITED)
            await callers.until(answers, *(address for address, _ in gateways))
            for release in (*(ROOT for _ in gateways), source):
                _, stack = gateways.pop(0)
                await stack.aclose()
                gateways.append(await start(release))
                await callers.until(_SOME, *(address for address, _ in gateways))
    return callers


async def see_whole(url: str, callers: Callers) -> None:
    """Check that the store has each acknowledged run, and no other, that the rows agree with each
    other, and that all tokens are booked.
    """
    database = await Database.open(url)
    stored = dict(await rows(database, "SELECT run_id, answer FROM runs WHERE status = 'finished'"))
    assert stored == callers.answers
    assert await rows(database, "SELECT count(*) FROM runs") == [(len(stored),)]
    assert (await check(database)).problems == []
    booked = "SELECT sum(requests), sum(tokens) FROM spending WHERE length(period) = 7"
    spent = "SELECT sum(prompt_tokens + completion_tokens) FROM calls"
    assert await rows(database, f"SELECT {len(stored)}, ({spent})") == await rows(database, booked)
    assert await rows(database, "SELECT number FROM rolegate_schema") == [(SCHEMA_NUMBER,)]
    assert await rows(database, "SELECT version_num FROM alembic_version") == [(REVISION,)]
    assert await rows(database, "SELECT * FROM leases") == []
    await database.close()


def _store(url: str, folder: Path, *arguments: object) -> None:
    """Run a command of `rolegate store` in a process, and print what it took."""
    config = write_config(folder, url)
    words = ["store", *map(str, arguments), "--config", str(config)]
    begun = time.perf_counter()
    command = [sys.executable, "-c", _MAIN, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    took_s = time.perf_counter() - begun
    assert done.returncode == 0, done.stderr
    (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", done.stderr)
    kind = url.partition(":")[0]
    print(f"{kind} store {arguments[0]}: {took_s:.1f} s, peak {int(peak) >> 10} MiB", end="")
    if (file := Path(str(arguments[1]))).exists():
        print(f", {file.stat().st_size / 1e6:.1f} MB", end="")
    print()


async def _see_equal(url: str, original: dict[str, list[tuple[Any, ...]]]) -> None:
    """Check that a database has the rows of the original. An import into SQLite has no places of
    logs, and a restored backup has one more.
    """
    copied = await contents(url)
    if url.startswith("sqlite"):
        copied["logs"] = original["logs"]
    assert copied == original
    print(f"{url.partition(':')[0]} copy: {sum(map(len, copied.values())):,} equal rows")


async def see_copied(url: str, folder: Path, new: Callable[[], str]) -> None:
    """Copy a store in every way, and compare the copies row by row. `new`: creates an empty
    database on PostgreSQL.
    """
    original = await contents(url)
    file = folder / "store.jsonl"
    other = f"sqlite:///{folder}/imported.db"
    await asyncio.to_thread(_store, url, folder, "export", file)
    await asyncio.to_thread(_store, other, folder, "import", file)
    await _see_equal(other, original)
    if url.startswith("sqlite"):
        restored = f"sqlite:///{folder}/restored.db"
        await asyncio.to_thread(_store, url, folder, "backup", folder / "backup.db")
        await asyncio.to_thread(_store, restored, folder, "restore", folder / "backup.db")
        await _see_equal(restored, original)
        return

    back = new()
    await asyncio.to_thread(_store, other, folder, "export", folder / "back.jsonl")
    await asyncio.to_thread(_store, back, folder, "import", folder / "back.jsonl")
    await _see_equal(back, {**original, "logs": []})
    dump = folder / "dump"
    restored = new()
    for command in (
        ("pg_dump", "--format", "custom", "--file", dump, url),
        ("pg_restore", "--exit-on-error", "--dbname", restored, dump),
    ):
        await asyncio.to_thread(subprocess.run, command, check=True)
    await _see_equal(restored, original)


@pytest.mark.slow
@pytest.mark.parametrize("earlier", EARLIER)
async def test_an_upgrade_under_load_fails_no_request_and_loses_no_run(
    url: str, tmp_path: Path, earlier: str, request: pytest.FixtureRequest
) -> None:
    """Afterwards, copies of the store are whole. `ROLEGATE_RUNS=10000 pytest -s` tries that with
    more runs, and prints figures.
    """
    source = release(EARLIER[earlier], tmp_path / "earlier")
    sqlite = url.startswith("sqlite")
    async with played() as (models, retrieval):
        server = {"store": url, "log": f"{tmp_path}/logs"}
        config = canned_config(tmp_path, [models.base_url], retrieval, server=server)
        answers = _RUNS if sqlite else _RUNS // 2
        callers = await upgraded(url, source, config, answers)
        assert callers.failed == []
        assert len(callers.answered) == (3 if sqlite else 5)
        await see_whole(url, callers)
        print(
            f"\n{url.partition(':')[0]} upgrade from {earlier}: {len(callers.answers):,} requests, "
            f"{len(callers.failed)} failed, 0 runs lost, attempts at stopping gateways "
            f"{dict(callers.retried)}, slowest {callers.slowest_s:.1f} s"
        )
        new = str if sqlite else request.getfixturevalue("postgres")
        (tmp_path / "copies").mkdir()
        await see_copied(url, tmp_path / "copies", new)

        # A contraction shuts the earlier release out.
        _execute(url, f"UPDATE rolegate_schema SET number = {SCHEMA_NUMBER + 1}")
        with pytest.raises(ChildProcessError, match=f"schema {SCHEMA_NUMBER + 1}.*Nothing was"):
            async with gateway(source, config):
                pass
