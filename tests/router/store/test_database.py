"""Opening of databases, and the errors where they cannot be opened."""

import asyncio
import sqlite3
import sys
import tomllib
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, TextClause, inspect, text

import serving
from router.errors import BadConfig, StoreFailed
from router.store import Database
from router.store.check import check
from router.store.database import WRITES, engine_of
from router.store.schema import SCHEMA_NUMBER
from tests.router.store.entries import rows


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:///{folder}/missing/runs.db", "unable to open"),
        ("sqlite:///{folder}", "unable to open"),
        ("sqlite:////proc/runs.db", "unable to open"),
        ("sqlite://", "must have the form postgresql://… or sqlite:///FILE"),
        ("sqlite:///:memory:", "must have the form postgresql://… or sqlite:///FILE"),
        ("nonsense", "write sqlite:///FILE or postgresql://…"),
        ("mysql://host/runs", "must have the form postgresql://… or sqlite:///FILE"),
        ("postgresql://u:secret@host:port/runs", "write sqlite:///FILE or postgresql://…"),
        ("postgresql://u:secret@127.0.0.1:1/runs?application_name=secret", r"u:\*\*\*@127.0.0.1:1"),
    ],
)
async def test_an_invalid_or_unreachable_address_is_a_config_error(
    url: str, message: str, tmp_path: Path
) -> None:
    """The message hides the password."""
    with pytest.raises(BadConfig, match=rf"^server\.store: cannot open.*{message}") as caught:
        await Database.open(url.format(folder=tmp_path))
    assert "secret" not in str(caught.value).replace("application_name=secret", "")


async def test_a_file_that_is_no_database_is_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(BadConfig, match="not a database"):
        await Database.open(f"sqlite:///{path}")
    assert path.read_bytes() == b"not a database at all" * 100


@pytest.mark.parametrize(
    ("statements", "contents", "writer"),
    [
        (
            ["CREATE TABLE runs (name VARCHAR)"],
            "it has the tables runs, but no schema number",
            "another program",
        ),
        (
            ["CREATE TABLE rolegate_schema (number INTEGER)"],
            "it has schema None",
            "another program",
        ),
        (
            [
                "CREATE TABLE rolegate_schema (number INTEGER)",
                "INSERT INTO rolegate_schema VALUES (7)",
            ],
            "it has schema 7",
            "a release that `rolegate store upgrade` does not know",
        ),
    ],
)
async def test_tables_of_another_release_or_program_are_refused(
    url: str, statements: list[str], contents: str, writer: str
) -> None:
    """The message says what is there, what is needed and what to do. Nothing changes."""
    engine = engine_of(url)
    with engine.execution_options(**WRITES).begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    advice = "name another file or an empty database"
    needs = f"needs schema {SCHEMA_NUMBER}, so "
    with pytest.raises(
        BadConfig, match=rf"^server\.store: .*{contents}.*{needs}{writer}.*{advice}"
    ):
        await Database.open(url)
    assert len(inspect(engine).get_table_names()) == 1
    engine.dispose()


def test_the_demo_s_file_has_the_number_of_the_schema_in_its_name() -> None:
    """The demo begins a new file when its old one shuts out this release."""
    preset = tomllib.loads(
        Path(serving.__file__).with_name("presets").joinpath("mini.toml").read_text("utf-8")
    )
    assert preset["server"]["store"].endswith(f"/mini-{SCHEMA_NUMBER}.db")


async def test_writes_are_durable(tmp_path: Path) -> None:
    """Every connection uses the write-ahead log and waits for the disk, so acknowledged writes
    survive a power cut.
    """
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10000}
    for run in (database.read, database.write, database.read):
        for name, value in wanted.items():
            assert (
                await run(
                    lambda connection, name=name: connection.execute(  # type: ignore[misc]
                        text(f"PRAGMA {name}")
                    ).scalar()
                )
                == value
            )
    await database.close()


async def test_a_note_does_not_wait_for_the_disk(url: str) -> None:
    """The next write does."""
    database = await Database.open(url)
    setting, noted, waiting = (
        ("PRAGMA synchronous", 1, 2)
        if "sqlite" in url
        else ("SHOW synchronous_commit", "off", "on")
    )

    def read(connection: Connection) -> object:
        return connection.execute(text(setting)).scalar()

    assert [
        await database.write(read, on_disk=on_disk) for on_disk in (True, False, True, False)
    ] == [
        waiting,
        noted,
        waiting,
        noted,
    ]
    await database.close()


def _both(insert: TextClause, statement: TextClause, connection: Connection) -> None:
    connection.execute(insert)
    connection.execute(statement)


async def test_a_write_that_fails_changes_nothing(database: Database) -> None:
    """The error does not show the values."""
    insert = text(
        "INSERT INTO tenants (name, redact, training, indexes) VALUES ('secret', false, false, '')"
    )

    for statement in (insert, text("INSERT INTO tenants (name) VALUES ('secret')")):
        with pytest.raises(StoreFailed) as caught:
            await database.write(partial(_both, insert, statement))
        assert "secret" not in str(caught.value)
    assert await rows(database, "SELECT name FROM tenants") == []


_OPENING = """
import asyncio, sys
from router.store import Database
asyncio.run(asyncio.wait_for(Database.open(sys.argv[1]), 60))
"""


async def test_several_processes_may_open_an_empty_database_together(url: str) -> None:
    """One of them creates the tables, and the others find them."""
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", _OPENING, url, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(4)
    ]
    ends = await asyncio.gather(*(child.communicate() for child in children))
    assert [
        (child.returncode, output) for child, (_, output) in zip(children, ends, strict=True)
    ] == [(0, b"")] * 4


async def test_a_file_that_another_process_is_creating_is_waited_for(tmp_path: Path) -> None:
    """SQLite refuses to switch such a file to its write-ahead log, without waiting."""
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
        other.execute("PRAGMA user_version=1")
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(Database.open(f"sqlite:///{tmp_path / 'runs.db'}"))
        await asyncio.sleep(0.2)
        assert not opening.done()
        other.execute("COMMIT")
    await (await opening).close()


async def test_writers_of_several_processes_wait_for_each_other(tmp_path: Path) -> None:
    """A write waits until the write of another process has ended."""
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(
            database.write(
                lambda connection: (
                    connection.execute(text("INSERT INTO logs VALUES ('one', 1, 1)")).rowcount
                )
            )
        )
        other.execute("INSERT INTO logs VALUES ('other', 1, 1)")
        assert not writing.done()
        other.execute("COMMIT")
    assert await writing == 1
    assert await rows(database, "SELECT count(*) FROM logs") == [(2,)]
    await database.close()


async def test_the_folder_of_a_preset_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demo that is started for the first time has a new home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    database = await Database.open(f"sqlite:///{tmp_path}/.cache/rolegate/mini-1.db")
    await database.close()
    assert (tmp_path / ".cache" / "rolegate" / "mini-1.db").exists()


def modes(folder: Path) -> dict[str, int]:
    """Return the permissions of the files in a folder."""
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}


@pytest.mark.usefixtures("_open_to_all")
@pytest.mark.parametrize("before", [None, 0o644, 0o666])
async def test_only_the_owner_may_read_the_files(tmp_path: Path, before: int | None) -> None:
    """New files have these permissions from the start.

    Files that others could read get them when the database is opened.
    """
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    assert modes(tmp_path) == dict.fromkeys(("runs.db", "runs.db-wal", "runs.db-shm"), 0o600)
    if before is not None:
        for file in tmp_path.iterdir():
            file.chmod(before)
        again = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
        assert set(modes(tmp_path).values()) == {0o600}
        await again.close()
    await database.close()


async def test_concurrent_tools_leave_the_files_in_place(tmp_path: Path) -> None:
    """Other processes may open, check, clean up, shrink and close a database in use."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    database = await Database.open(url)
    insert = text(
        "INSERT INTO tenants (name, redact, training, indexes) VALUES (:name, false, false, '')"
    )
    for name in ("check", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
        if name == "check":
            beside = await Database.open(url)
            assert (await check(beside)).problems == []
            await beside.close()
        else:
            with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
                other.execute(name)
        await database.write(
            lambda connection, name=name: connection.execute(insert, {"name": name})  # type: ignore[misc]
        )
        assert (name,) in await rows(database, "SELECT name FROM tenants")
    await database.close()
