"""Files of texts, keys and their hashes are readable by their owner alone, under any umask."""

import asyncio
import os
import sqlite3
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_sft.jsonl import JsonlFile
from serving.cli.main import main
from serving.files import private_files, replacing, write_atomically
from tests import embedding, scripted_gateway
from tests.router.store.stored import put, run
from tests.store_config import write_config


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Set a umask that leaves everything readable to all."""
    previous = os.umask(0)
    yield
    os.umask(previous)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def shared(folder: Path) -> list[str]:
    """Return the files and folders below that others may read, write or enter."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if mode(path) & 0o077]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a config and a store of one run."""
    from router.store import Database

    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)

    async def write() -> None:
        database = await Database.open("sqlite:///rolegate.db")
        await put(database, run("run-01", 1.0))
        await database.close()

    asyncio.run(write())
    (tmp_path / "rolegate.toml").chmod(0o600)
    return tmp_path


def test_a_backup_is_private_from_its_first_byte(stored: Path) -> None:
    """Nobody else can open it while it is written: it is created with that mode, which is never
    changed.
    """
    modes = set[int]()

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in ("open", "os.rename", "sqlite3.connect"):
            modes.update(mode(path) for path in stored.glob(".backup.db*"))

    watching = True
    sys.addaudithook(look)
    try:
        assert main(["store", "backup", "backup.db"]) == 0
    finally:
        watching = False
    assert modes == {0o600}
    assert mode(stored / "backup.db") == 0o600
    assert shared(stored) == []


def test_a_restored_backup_stays_private(stored: Path) -> None:
    """The files that SQLite puts next to it are private, too."""
    assert main(["store", "backup", "backup.db"]) == 0
    (stored / "backup.db").replace(stored / "rolegate.db")
    for path in stored.glob("rolegate.db-*"):
        path.unlink()
    assert main(["store", "check"]) == 0
    connection = sqlite3.connect(stored / "rolegate.db")
    connection.execute("PRAGMA user_version=1")
    assert shared(stored) == []
    connection.close()


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.parquet"])
def test_an_export_is_private(stored: Path, name: str) -> None:
    """This holds even if a file that all may read is replaced."""
    (stored / name).touch(0o644)
    assert main(["runs", "export", "--out", name, "--force"]) == 0
    assert shared(stored) == []


def test_an_export_of_the_store_is_private(stored: Path) -> None:
    assert main(["store", "export", "exported"]) == 0
    assert (stored / "exported").exists()
    assert shared(stored) == []


def test_an_index_is_private(stored: Path) -> None:
    (stored / "docs").mkdir(0o700)
    document = stored / "docs/bees.md"
    document.touch(0o600)
    document.write_text("Bees are insects.")
    with embedding.endpoint() as endpoint:
        command = ["index", "build", "docs", "--out", "index", *embedding.options(endpoint)]
        assert main(command) == 0
    assert shared(stored) == []


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.xlsx", "t.md", "t.json"])
def test_a_file_with_a_table_is_private(stored: Path, name: str) -> None:
    with scripted_gateway.running() as address:
        command = ["table", "the cities", "--columns", "city*, founder", "--address", address]
        assert main([*command, "--out", name]) == 0
    assert (stored / name).exists()
    assert shared(stored) == []


def test_a_config_is_private(tmp_path: Path) -> None:
    out = tmp_path / "rolegate.toml"
    assert (
        main(["init", "--preset", "hosted", "--documents", "docs", "--out", str(out), "--yes"]) == 0
    )
    assert shared(tmp_path) == []


@pytest.mark.parametrize(
    "command",
    [
        ["sft", "mini-world", "--questions", "3", "--out", "{}/world"],
        ["bench", "datasets", "{}/q.jsonl", "--out", "{}/kept.jsonl"],
    ],
)
def test_commands_above_write_private_files(tmp_path: Path, command: list[str]) -> None:
    """The rule holds for all libraries that write the files."""
    (tmp_path / "q.jsonl").touch(0o600)
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "answer": "Ana", "id": "1"}\n')
    assert main([part.format(tmp_path) for part in command]) == 0
    assert len(list(tmp_path.rglob("*"))) > 1
    assert shared(tmp_path) == []


def test_lines_are_never_added_to_a_readable_file(tmp_path: Path) -> None:
    """The file becomes private first."""
    file = tmp_path / "calls.jsonl"
    file.touch(0o644)
    JsonlFile(file, dict, "").close()
    assert mode(file) == 0o600


def test_a_replaced_file_is_private(tmp_path: Path) -> None:
    """This holds outside of commands, too."""
    file = tmp_path / "report.md"
    file.touch(0o666)
    with replacing(file) as unfinished:
        assert mode(unfinished) == 0o600
    write_atomically(tmp_path / "other.md", b"text")
    assert shared(tmp_path) == []


def test_the_umask_is_restored(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "one").touch()
    (tmp_path / "other").touch()
    assert (mode(tmp_path / "one"), mode(tmp_path / "other")) == (0o600, 0o666)
