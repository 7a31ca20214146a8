"""`rolegate store check` and `rolegate store backup`."""

import asyncio
import json
from pathlib import Path

import pytest

from router.store import Database
from serving.cli.main import main
from tests.router.store.stored import call, put, run
from tests.store_config import write_config


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A whole store, with its config in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    url = "sqlite:///rolegate.db"

    async def write() -> None:
        database = await Database.open(url)
        await put(database, run("run-1", calls=[call("run-1")]), run("run-2"))
        await database.close()

    asyncio.run(write())
    return url


def damage(url: str) -> None:
    async def write() -> None:
        database = await Database.open(url)
        await database.write(
            lambda connection: connection.exec_driver_sql("UPDATE calls SET nano_usd = 8")
        )
        await database.close()

    asyncio.run(write())


def check(*options: str) -> int:
    return main(["store", "check", "--config", "rolegate.toml", *options])


def test_a_whole_store_is_reported_with_its_counts(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check() == 0
    output = capsys.readouterr()
    assert output.out.endswith(", 2 runs, 1 call and their references: all is well\n")
    assert output.err == ""


def test_problems_are_named_and_set_the_status(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(store)

    assert check() == 1

    first, last = capsys.readouterr().out.splitlines()
    assert first == "run run-1: call 0: the trace and the table calls differ in nano_usd"
    assert last.endswith(", 1 call and their references: 1 problem; to repair, restore a backup")


def test_json_has_problems_and_counts(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["runs"], report["calls"], report["problems"]) == (2, 1, [])

    damage(store)
    assert check("--json") == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [set(problem) for problem in problems] == [{"where", "what"}]


def test_a_missing_store_is_reported_and_not_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    assert check() == 1
    assert (
        "rolegate.db does not exist; correct the path, or start the gateway"
        in capsys.readouterr().err
    )
    assert [path.name for path in tmp_path.iterdir()] == ["rolegate.toml"]


def test_an_empty_store_is_reported_and_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    (tmp_path / "rolegate.db").touch()
    assert check() == 1
    assert "rolegate.db is empty; correct the path, or start the gateway" in capsys.readouterr().err
    assert (tmp_path / "rolegate.db").stat().st_size == 0

    async def make() -> None:
        await (await Database.open("sqlite:///rolegate.db")).close()

    asyncio.run(make())
    assert check() == 0
    assert capsys.readouterr().out.endswith("all is well, but nothing is stored yet\n")


def test_a_backup_opens_by_itself(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has all runs. It never overwrites a file, and needs an existing folder."""
    assert main(["store", "backup", "copy.db"]) == 0
    assert sorted(path.name for path in tmp_path.glob("copy.db*")) == ["copy.db"]
    (tmp_path / "copy.db").replace(tmp_path / "rolegate.db")
    assert check() == 0 and ", 2 runs, 1 call" in capsys.readouterr().out
    (tmp_path / "copy.db").touch()
    assert main(["store", "backup", "copy.db"]) == 1
    assert "copy.db: the file exists already" in capsys.readouterr().err
    assert main(["store", "backup", "nowhere/copy.db"]) == 1
    assert "nowhere does not exist; create it first" in capsys.readouterr().err
