"""`rolegate store restore`."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from router.store import Database, LogJournal
from router.store.log import segments
from tests.conftest import Ended, Rolegate
from tests.router.store.entries import NOW, change, cut_short, rows, start
from tests.router.store.stored import put, run
from tests.store_config import write_config

Store = Callable[..., Ended]
"""Function that runs a command of `rolegate store`."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rolegate: Rolegate) -> Store:
    """Run commands on a config in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    return lambda *arguments: rolegate("store", *arguments, "--config", "rolegate.toml")


async def _write(name: str, *run_ids: str) -> None:
    """Write runs to a SQLite store."""
    database = await Database.open(f"sqlite:///{name}")
    await put(database, *(run(run_id) for run_id in run_ids))
    await database.close()


async def _answer_and_die(name: str, run_id: str) -> None:
    """Answer in a gateway that is killed, so that only its log has the run."""
    database = await Database.open(f"sqlite:///{name}")
    async with cut_short(database) as journal:
        await journal.begin(start(run_id))
        await journal.finish(run(run_id, NOW))
    await database.close()


async def _runs(name: str) -> list[str]:
    """Return the runs of a SQLite store, as its next gateway has them."""
    database = await Database.open(f"sqlite:///{name}")
    async with LogJournal.writing(database):
        run_ids = [run_id for (run_id,) in await rows(database, "SELECT run_id FROM runs")]
    await database.close()
    return sorted(run_ids)


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder with their contents. Those that a reader of the database
    creates, and the lock of the log, are left out.
    """
    files = (path for path in folder.rglob("*") if path.is_file())
    skipped = ("owner", "rolegate.db-shm", "rolegate.db-wal")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in skipped
    }


async def test_a_backup_takes_the_place_of_a_lost_store(store: Store, tmp_path: Path) -> None:
    await _write("rolegate.db", "run-1", "run-2")
    assert (await asyncio.to_thread(store, "backup", "copy.db")).status == 0
    (tmp_path / "rolegate.db").unlink()
    restored = await asyncio.to_thread(store, "restore", "copy.db")
    assert restored.status == 0, restored.err
    assert restored.out == f"{tmp_path}/rolegate.db: restored from copy.db\n"
    assert (tmp_path / "rolegate.db").stat().st_mode & 0o777 == 0o600
    checked = await asyncio.to_thread(store, "check")
    assert "2 runs" in checked.out and "all is well" in checked.out
    assert await _runs("rolegate.db") == ["run-1", "run-2"]


@pytest.mark.parametrize("server", ["", 'log = "elsewhere"'])
async def test_a_present_store_is_only_renamed_and_only_with_force(
    store: Store, tmp_path: Path, server: str
) -> None:
    """Its log goes with it, so that no run is lost, and none of its runs gets into the restored
    store.
    """
    await _write("rolegate.db", "run-1")
    assert (await asyncio.to_thread(store, "backup", "copy.db")).status == 0
    await _answer_and_die("rolegate.db", "run-2")
    if server:
        (tmp_path / "rolegate.db.log").rename(tmp_path / "elsewhere")
        write_config(tmp_path, server=server)
    before = _files(tmp_path)
    refused = await asyncio.to_thread(store, "restore", "copy.db")
    assert refused.status == 1
    assert "exists; move it aside with --force" in refused.err
    assert _files(tmp_path) == before

    restored = await asyncio.to_thread(store, "restore", "copy.db", "--force")
    assert restored.status == 0, restored.err
    old = restored.out.splitlines()[-1].removesuffix(": the previous store")
    if server:
        (log,) = tmp_path.glob("elsewhere.replaced-*")
        log.rename(f"{old}.log")
    assert await _runs("rolegate.db") == ["run-1"]
    assert await _runs(old) == ["run-1", "run-2"]


async def test_a_store_with_a_gateway_is_not_replaced(store: Store, tmp_path: Path) -> None:
    await _write("rolegate.db", "run-1")
    assert (await asyncio.to_thread(store, "backup", "copy.db")).status == 0
    database = await Database.open("sqlite:///rolegate.db")
    async with LogJournal.writing(database) as journal:
        refused = await asyncio.to_thread(store, "restore", "copy.db", "--force")
        assert refused.status == 1 and "is in use by process" in refused.err
        await journal.begin(start("run-2"))
        await journal.finish(run("run-2", NOW))
    await database.close()
    assert await _runs("rolegate.db") == ["run-1", "run-2"]


async def _later(file: Path) -> None:
    await _write(str(file), "run-1")
    database = await Database.open(f"sqlite:///{file}")
    await change(database, "UPDATE rolegate_schema SET number = 999")
    await database.close()


async def _damaged(file: Path) -> None:
    await _write(str(file), *(f"run-{number}" for number in range(50)))
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8192] = b"\xff" * 8192
    file.write_bytes(content)


async def _another_program(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE notes (text VARCHAR)")


async def _with_log(file: Path) -> None:
    await _answer_and_die(str(file), "run-1")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda file: asyncio.to_thread(file.write_bytes, b"no database" * 500), "not a database"),
        (lambda file: asyncio.to_thread(file.touch), "it has no tables"),
        (lambda file: asyncio.sleep(0), "No such file"),
        (_another_program, "it has the tables notes"),
        (_later, "a later release of rolegate"),
        (_damaged, "malformed|it is damaged"),
        (_with_log, "some of its runs are only in its log; make a backup of it with"),
    ],
    ids=["text", "empty", "missing", "program", "later", "damaged", "log"],
)
async def test_what_is_no_whole_backup_is_refused(
    store: Store, tmp_path: Path, made: Callable[[Path], object], message: str
) -> None:
    """Nothing is changed, and the message names the file."""
    await _write("rolegate.db", "run-1")
    await made(tmp_path / "copy.db")  # type: ignore[misc]
    before = _files(tmp_path)
    refused = await asyncio.to_thread(store, "restore", "copy.db", "--force")
    assert refused.status == 1
    assert any(part in refused.err for part in message.split("|")), refused.err
    assert "copy.db" in refused.err
    assert "server.store" not in refused.err
    after = {name: content for name, content in _files(tmp_path).items() if "copy.db-" not in name}
    assert after == before
    assert await _runs("rolegate.db") == ["run-1"]


async def test_the_backup_stays_as_it_is(store: Store, tmp_path: Path) -> None:
    await _write("rolegate.db", "run-1")
    assert (await asyncio.to_thread(store, "backup", "copy.db")).status == 0
    shutil.copy("copy.db", "original.db")
    assert (await asyncio.to_thread(store, "restore", "copy.db", "--force")).status == 0
    assert (tmp_path / "copy.db").read_bytes() == (tmp_path / "original.db").read_bytes()
    assert segments(tmp_path / "rolegate.db.log") == []


def test_postgresql_is_restored_by_its_own_program(store: Store, tmp_path: Path) -> None:
    write_config(tmp_path, "postgresql://rolegate@127.0.0.1:1/none")
    refused = store("restore", "copy.db")
    assert refused.status == 1 and "pg_restore" in refused.err
