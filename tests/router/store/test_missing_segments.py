"""Log folders changed by hand: foreign files, and missing segments."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from router.store import Database, LogJournal, SQLArchive
from router.store.log import RunLog, segments
from serving.cli.main import main
from serving.config.file import preset
from tests.conftest import Rolegate
from tests.router.store.disks import no_file_beyond
from tests.router.store.entries import NOW, cut_short, ended, opened, start
from tests.router.store.stored import run
from tests.serving.test_health import NOT_SERVING, SERVING, config_of, searching, watched


async def _answer(journal: LogJournal, run_id: str) -> None:
    call = ended(run_id)
    await journal.begin(start(run_id))
    await journal.open(opened(call))
    journal.settle(call)
    await journal.finish(run(run_id, NOW, [call]))


async def _killed_with_three_segments(url: str) -> Path:
    """Answer in three segments of a gateway's log, kill it, and return the folder of the log."""
    database = await Database.open(url)
    log = RunLog.open(database.log_folder)
    async with cut_short(database, log) as journal:
        await _answer(journal, "run-1")
        await SQLArchive(database).load("run-1")
        log.start()
        await _answer(journal, "run-2")
        log.start()
        await _answer(journal, "run-3")
    await database.close()
    return log.folder


@pytest.fixture
def config(tmp_path: Path) -> str:
    """The file of a config with a store in a temporary folder."""
    return _config_in(tmp_path)


def _config_in(folder: Path) -> str:
    text = preset("mini").read_text("utf-8")
    file = folder / "rolegate.toml"
    file.write_text(
        re.sub(r"(?m)^store = .*$", f'store = "sqlite:///{folder}/runs.db"', text), "utf-8"
    )
    return str(file)


def _url(config: str) -> str:
    return f"sqlite:///{Path(config).parent}/runs.db"


async def _checked(config: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the output of `rolegate store check` about the log."""
    capsys.readouterr()
    code = await asyncio.to_thread(main, ["store", "check", "--config", config, "--json"])
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert code == bool(problems)
    return [problem["what"].partition(":")[0] for problem in problems if problem["where"] == "log"]


STRAYS: dict[str, Callable[[Path], object]] = {
    "notes-2026.log": lambda path: path.write_text("a note"),
    "00000001-deadbeef.log.bak": lambda path: path.write_bytes(b"copy"),
    "00000009-zzzzzzzz.log": lambda path: path.write_bytes(b""),
    "x-00000001.log": lambda path: path.write_bytes(b""),
    "00000002-0a0b0c0d.log": lambda path: path.mkdir(),
    "lost+found": lambda path: path.mkdir(),
    ".nfs000001": lambda path: path.write_bytes(b""),
    "-.log": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("name", STRAYS)
async def test_a_stray_file_is_ignored_with_a_warning(tmp_path: Path, name: str) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/runs.db")
    async with cut_short(database) as journal:
        await _answer(journal, "run-1")
    STRAYS[name](database.log_folder / name)
    with capture_logs() as log:
        async with LogJournal.writing(database) as journal:
            await _answer(journal, "run-2")
            assert (await SQLArchive(database).load("run-1")).status == "finished"
    assert [entry["ignored"] for entry in log if entry["event"] == "log.stray_files"] == [[name]]
    assert (database.log_folder / name).exists()
    await database.close()


@pytest.mark.parametrize(
    ("deleted", "missing"), [([0], [1]), ([1], [2]), ([0, 1], [1, 2]), ([0, 1, 2], [1]), ([], [])]
)
async def test_a_missing_segment_is_found_at_the_next_start(
    config: str, deleted: list[int], missing: list[int]
) -> None:
    folder = await _killed_with_three_segments(_url(config))
    present = segments(folder)
    assert len(present) == 3
    for index in deleted:
        present[index].unlink()
    database = await Database.open(_url(config))
    with capture_logs() as log:
        async with LogJournal.writing(database):
            pass
    assert [entry["numbers"] for entry in log if entry["event"] == "log.segments_missing"] == [
        missing
    ] * bool(missing)
    with capture_logs() as log:
        async with LogJournal.writing(database):
            pass
    assert log == []
    await database.close()


@pytest.mark.parametrize("deleted", [0, 1])
async def test_store_check_names_a_missing_segment(
    config: str, deleted: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = await _killed_with_three_segments(_url(config))
    segments(folder)[deleted].unlink()
    assert await _checked(config, capsys) == [f"its file {deleted + 1:08}-….log is missing"]


async def test_a_log_that_was_closed_or_moved_with_its_store_is_whole(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a clean end the folder is empty, and a backup needs no log."""
    folder = await _killed_with_three_segments(_url(config))
    backup = tmp_path / "other" / "runs.db"
    backup.parent.mkdir()
    assert await asyncio.to_thread(main, ["store", "backup", str(backup), "--config", config]) == 0
    assert await _checked(_config_in(backup.parent), capsys) == []
    assert await _checked(config, capsys) == []

    database = await Database.open(_url(config))
    async with LogJournal.writing(database) as journal:
        await _answer(journal, "run-4")
    await database.close()
    assert segments(folder) == []
    assert await _checked(config, capsys) == []
    shutil.rmtree(folder)
    assert await _checked(config, capsys) == []


async def test_commands_read_the_log_where_the_config_has_it(
    config: str, tmp_path: Path, rolegate: Rolegate
) -> None:
    """Of a killed gateway with `server.log`, the last runs are only in that folder."""
    shutil.move(await _killed_with_three_segments(_url(config)), tmp_path / "elsewhere")
    text = Path(config).read_text("utf-8")
    Path(config).write_text(text.replace("[server]", '[server]\nlog = "elsewhere"'), "utf-8")
    checked = await asyncio.to_thread(rolegate, "store", "check", "--config", config, "--json")
    assert json.loads(checked.out)["runs"] == 3
    assert json.loads(checked.out)["problems"] == []


async def test_health_reports_that_files_cannot_grow(tmp_path: Path) -> None:
    """A limit on the size of files (`ulimit -f`) prevents all writes, so no service may report
    itself ready.
    """
    async with searching() as retrieval:
        config = config_of(
            tmp_path, f"sqlite:///{tmp_path}/runs.db", "http://127.0.0.1:9/v1", retrieval
        )
        async with watched(config, "") as (_, watch):
            await watch.all_say(SERVING)
            with no_file_beyond(1 << 20):
                await watch.all_say(NOT_SERVING)
            await watch.all_say(SERVING)
