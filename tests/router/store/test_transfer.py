"""`rolegate store export` and `rolegate store import`."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from router.access import Tenant
from router.store import Database, LogJournal, SQLArchive
from router.store.check import check
from router.store.copies.transfer import export_rows
from router.store.schema import METADATA, REVISION
from tests.conftest import Ended, Rolegate
from tests.router.store.entries import NOW, change, cut_short, ended, opened, rows, spent, start
from tests.router.store.every_column import contents, fill, rows_of
from tests.router.store.stored import call, put, run
from tests.router.store.test_members import until
from tests.store_config import write_config


class Mover:
    """Runs `rolegate store export` and `import` on stores."""

    def __init__(self, rolegate: Rolegate, folder: Path) -> None:
        self._rolegate = rolegate
        self._folder = folder
        self.file = folder / "store.jsonl"

    async def run(self, command: str, url: str, *options: str) -> Ended:
        """Return how a command on the store at `url` ended."""
        config = write_config(self._folder, url)
        arguments = ("store", command, self.file, "--config", config, *options)
        return await asyncio.to_thread(self._rolegate, *arguments)

    async def move(self, source: str, target: str) -> None:
        """Export one store, and import it into another."""
        for command, url in (("export", source), ("import", target)):
            done = await self.run(command, url)
            assert done.status == 0, done.err


@pytest.fixture
def mover(rolegate: Rolegate, tmp_path: Path) -> Mover:
    return Mover(rolegate, tmp_path)


_ELSE = pytest.mark.postgres


@pytest.fixture(
    params=[
        "sqlite sqlite",
        pytest.param("sqlite postgresql", marks=_ELSE),
        pytest.param("postgresql sqlite", marks=_ELSE),
        pytest.param("postgresql postgresql", marks=_ELSE),
    ]
)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Addresses of two empty databases, of a source and a target."""

    def new(kind: str, name: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path / name}.db"
        new_database: Callable[[], str] = request.getfixturevalue("postgres")
        return new_database()

    source, target = request.param.split()
    return new(source, "source"), new(target, "target")


async def _filled(url: str) -> None:
    database = await Database.open(url)
    await fill(database)
    await database.close()


async def test_every_value_of_every_table_is_moved(both: tuple[str, str], mover: Mover) -> None:
    """But for the places of logs on SQLite, where the target begins a new log. The file holds one
    line a row, and nobody else can read it.
    """
    source, target = both
    await _filled(source)
    await mover.move(source, target)
    expected = await contents(source)
    if target.startswith("sqlite"):
        expected["logs"] = []
    assert await contents(target) == expected

    lines = list(map(json.loads, mover.file.read_bytes().splitlines()))
    count = len(lines) - 2
    assert count == sum(map(len, (await contents(source)).values()))
    assert lines[0] == {"table": "store", "revision": REVISION, "rows": 0}
    assert lines[-1] == {"table": "store", "revision": REVISION, "rows": count}
    assert mover.file.stat().st_mode & 0o777 == 0o600


async def test_a_store_is_moved_there_and_back(tmp_path: Path, mover: Mover) -> None:
    """The files of both exports are the same."""
    first, second = (f"sqlite:///{tmp_path / name}.db" for name in ("first", "second"))
    await _filled(first)
    await mover.move(first, second)
    lines = mover.file.read_bytes().splitlines()
    mover.file.unlink()
    assert (await mover.run("export", second)).status == 0
    assert {*lines} - {*mover.file.read_bytes().splitlines()} <= {
        line for line in lines if b'"table":"logs"' in line or b'"store"' in line
    }


async def test_programs_get_the_number_of_rows(tmp_path: Path, mover: Mover) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("first", "second")]
    database = await Database.open(urls[0])
    await put(database, run("run-1", calls=[call("run-1")]))
    await database.close()
    for command, url in zip(("export", "import"), urls, strict=True):
        done = await mover.run(command, url, "--json")
        assert (done.status, json.loads(done.out)) == (0, {"rows": 4}), done.err
    mover.file.unlink()
    done = await mover.run("export", urls[1])
    assert done.out == f"{mover.file}: 4 rows\n"


async def test_runs_that_only_the_log_has_are_exported(tmp_path: Path, mover: Mover) -> None:
    """As long as a SQLite gateway runs, and after it was killed."""
    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("source", "target"))
    database = await Database.open(source)
    async with cut_short(database) as journal:
        await journal.begin(start("run-1"))
        await journal.finish(run("run-1", NOW))
        done = await mover.run("export", source)
        assert done.status == 0, done.err
        assert b'"run_id":"run-1"' in mover.file.read_bytes()
        mover.file.unlink()
        await journal.begin(start("run-2"))
        await journal.finish(run("run-2", NOW))
    await database.close()

    await mover.move(source, target)
    moved = await Database.open(target)
    assert await rows(moved, "SELECT run_id, status FROM runs ORDER BY 1") == [
        ("run-1", "finished"),
        ("run-2", "finished"),
    ]
    await moved.close()


async def test_an_export_is_one_snapshot(url: str, tmp_path: Path) -> None:
    """What is written meanwhile is not in it."""
    database = await Database.open(url)
    await fill(database)
    writer = await Database.open(url)
    loop = asyncio.get_running_loop()

    def write(count: int) -> None:
        changing = change(writer, f"UPDATE version_trials SET ended_at = {count}")
        asyncio.run_coroutine_threadsafe(changing, loop).result(30)

    file = tmp_path / "store.jsonl"
    await database.read(lambda connection: export_rows(connection, file, write))
    lines = map(json.loads, file.read_bytes().splitlines())
    late = [line for line in lines if line["table"] == "version_trials"]
    expected = {row["ended_at"] for row in rows_of(METADATA.tables["version_trials"])}
    assert {line["ended_at"] for line in late} == expected
    assert not expected & {*await rows(database, "SELECT ended_at FROM version_trials")}
    await writer.close()
    await database.close()


async def test_a_file_that_was_cut_off_or_changed_is_refused(tmp_path: Path, mover: Mover) -> None:
    """At any place, and nothing of it is imported."""
    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("source", "target"))
    await _filled(source)
    assert (await mover.run("export", source)).status == 0
    whole = mover.file.read_bytes()
    lines = whole.splitlines(keepends=True)
    places = [0, 1, len(lines[0]), len(lines[0]) + 7, len(whole) // 2, len(whole) - len(lines[-1])]
    files = [whole[:place] for place in (*places, len(whole) - 3)]
    files += [
        whole.replace(lines[5], b"", 1),
        whole.replace(lines[5], lines[5] * 2, 1),
        b"".join(lines[1:]),
        whole + b"more\n",
        whole + whole,
        whole.replace(b'"tenant":', b'"tenant_":', 1),
        b"\x00\xff" * 100,
        b"[" * 100_000,
    ]
    await (await Database.open(target)).close()
    empty = await contents(target)
    for content in files:
        mover.file.write_bytes(content)
        done = await mover.run("import", target)
        assert done.status == 1, content[-60:]
        assert "rolegate store export" in done.err and str(mover.file) in done.err
        assert await contents(target) == empty


async def test_a_store_with_rows_takes_no_import(url: str, mover: Mover) -> None:
    database = await Database.open(url)
    await put(database, tenants=[Tenant("acme")])
    await database.close()
    assert (await mover.run("export", url)).status == 0
    done = await mover.run("import", url)
    assert done.status == 1
    assert "the table tenants has rows" in done.err
    assert "name another file or an empty database" in done.err


async def test_an_export_of_another_revision_is_refused(tmp_path: Path, mover: Mover) -> None:
    """In both directions, with what to do."""
    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("source", "target"))
    await (await Database.open(source)).close()
    assert (await mover.run("export", source)).status == 0
    text = mover.file.read_text("utf-8").replace(f'"{REVISION}"', '"another"')
    mover.file.write_text(text)
    done = await mover.run("import", target)
    assert done.status == 1
    assert "has the schema another" in done.err
    assert "import it with the release that exported it" in done.err

    database = await Database.open(source)
    await change(database, "UPDATE alembic_version SET version_num = 'later'")
    await database.close()
    mover.file.unlink()
    done = await mover.run("export", source)
    assert done.status == 1
    assert "has the schema later" in done.err and "rolegate store upgrade" in done.err
    assert not mover.file.exists()


async def test_no_file_is_replaced_by_an_export_and_none_is_left_half_written(
    tmp_path: Path, mover: Mover
) -> None:
    url = f"sqlite:///{tmp_path / 'source.db'}"
    await (await Database.open(url)).close()
    mover.file.write_text("mine")
    done = await mover.run("export", url)
    assert done.status == 1 and "exists already" in done.err
    assert mover.file.read_text() == "mine"
    mover.file.unlink()
    assert "does not exist" in (await mover.run("export", "sqlite:///nowhere.db")).err


async def test_a_gateway_goes_on_with_an_imported_store(
    both: tuple[str, str], mover: Mover
) -> None:
    """Runs that were running at the time of the export are closed as interrupted. Keys, quotas and
    answers are those of the source.
    """
    source, target = both
    database = await Database.open(source)
    await put(database, tenants=[Tenant("acme", tokens_per_day=1000)])
    known = ended("run-1", tenant="acme")
    async with LogJournal.writing(database) as journal:
        await journal.begin(start("run-1", "acme", request_id="mine"))
        await journal.open(opened(known))
        journal.settle(known)
        await journal.finish(run("run-1", NOW, [known], tenant="acme"))
        await journal.begin(start("run-2", "acme"))
        await SQLArchive(database).load("run-1")
        await mover.move(source, target)
        await journal.finish(run("run-2", NOW, tenant="acme"))
    await database.close()

    moved = await Database.open(target)
    before = await spent(moved, "acme")
    async with LogJournal.writing(moved) as journal:
        await until(moved, "SELECT status FROM runs WHERE run_id = 'run-2'", [("interrupted",)])
        await journal.begin(start("run-3", "acme"))
        await journal.finish(run("run-3", NOW, tenant="acme"))
        assert (await SQLArchive(moved).load("run-1")).calls == (known,)
        (after,) = {tokens for _, tokens, _ in (await spent(moved, "acme")).values()}
        assert after == 12 and before
    assert (await check(moved)).problems == []
    await moved.close()

    mover.file.unlink()
    checked = await mover.run("export", target)
    assert checked.status == 0, checked.err


async def test_a_gateway_that_runs_on_the_target_is_not_disturbed(
    url: str, tmp_path: Path, mover: Mover
) -> None:
    """Its store has a log, so it is not empty."""
    source = f"sqlite:///{tmp_path / 'source.db'}"
    await _filled(source)
    assert (await mover.run("export", source)).status == 0
    database = await Database.open(url)
    async with LogJournal.writing(database) as journal:
        done = await mover.run("import", url)
        assert done.status == 1 and "has rows" in done.err
        await journal.begin(start("run-1"))
        await journal.finish(run("run-1", NOW))
    await database.close()
