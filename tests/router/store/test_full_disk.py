"""Disks that become full: no run is admitted, running ones may end, and nothing is half written."""

import asyncio
from pathlib import Path

import pytest

from router.errors import StoreFailed
from router.models import Completion, Message
from router.store import Database, LogJournal, SQLArchive
from router.store.check import check
from router.store.log import RunLog
from router.trace import Run
from router.trace.turns import AgentId
from tests.router.store.disks import filled, no_file_beyond, small_disk
from tests.router.store.entries import DAY, MONTH, NOW, cut_short, ended, opened, rows, spent, start
from tests.router.store.stored import run


async def _refused(journal: LogJournal) -> str:
    """Return the reason of the first refused run, and withdraw the ones before."""
    with pytest.raises(StoreFailed) as caught:
        async with asyncio.timeout(10):
            while True:
                await journal.begin(start("run-0"))
                journal.forget("run-0")
                await asyncio.sleep(0.02)
    return str(caught.value)


async def _admitted(journal: LogJournal, run_id: str) -> None:
    """Wait until a run may begin."""
    async with asyncio.timeout(10):
        while True:
            try:
                await journal.begin(start(run_id))
            except StoreFailed:
                await asyncio.sleep(0.02)
            else:
                return


async def _be_longest(journal: LogJournal, database: Database) -> None:
    """Make the log longer than all other files that are written to."""
    journal.turn(
        "run-1", AgentId("delegation"), (Message("user", "?" * 2_000_000),), Completion("", "stop")
    )
    await database.read(lambda _connection: None)


async def _load_ended(database: Database, run_id: str) -> Run:
    """Load a run as soon as it has ended."""
    async with asyncio.timeout(10):
        while True:
            stored = await SQLArchive(database).load(run_id)
            if stored.status != "running":
                return stored
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("killed", [False, True])
async def test_with_full_log_and_database_running_runs_end(tmp_path: Path, killed: bool) -> None:
    """They are acknowledged. With room again, other runs begin, and the database catches up."""
    disk = tmp_path / "disk"
    with small_disk(disk, "96m"):
        database = await Database.open(f"sqlite:///{disk / 'runs.db'}")
        health = list[str | None]()
        calls = [ended("run-1", number) for number in range(30)]
        finished = run("run-1", NOW, calls)
        writing = (
            cut_short(database) if killed else LogJournal.writing(database, on_health=health.append)
        )
        async with writing as journal:
            await journal.begin(start("run-1"))
            await journal.open(opened(calls[0]))
            with filled(disk):
                assert "is full" in await _refused(journal)
                journal.settle(calls[0])
                for call in calls[1:]:
                    await journal.open(opened(call))
                    journal.settle(call)
                await journal.finish(finished)
                assert killed or "is full" in str(health[-1])
            if not killed:
                await _admitted(journal, "run-2")
                assert await SQLArchive(database).load("run-1") == finished
                assert health[-1] is None
                journal.forget("run-2")
        async with LogJournal.writing(database):
            assert await SQLArchive(database).load("run-1") == finished
            assert await spent(database) == {DAY: (1, 360, 210), MONTH: (1, 360, 210)}
            assert await rows(database, "SELECT run_id FROM runs") == [("run-1",)]
            assert (await check(database)).problems == []
        await database.close()


async def test_an_end_that_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    """The run is recorded as failed as soon as possible, with its spending."""
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    log = RunLog.open(database.log_folder)
    call = ended("run-1")
    async with LogJournal.writing(database, log) as journal:
        await journal.begin(start("run-1"))
        await journal.open(opened(call))
        await _be_longest(journal, database)
        with no_file_beyond(log.end.offset), pytest.raises(StoreFailed, match="cannot be written"):
            await journal.finish(run("run-1", NOW, [call]))
        stored = await _load_ended(database, "run-1")
        assert (stored.status, stored.error, stored.result, stored.calls) == (
            "failed",
            "StoreFailed",
            None,
            (call,),
        )
        assert await spent(database) == {DAY: (1, 12, 7), MONTH: (1, 12, 7)}
        await _admitted(journal, "run-2")
        await journal.finish(run("run-2", NOW))
    assert (await check(database)).problems == []
    await database.close()


async def test_a_call_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    """It reserves nothing, and its run may continue as soon as there is room."""
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    log = RunLog.open(database.log_folder)
    call = ended("run-1")
    async with LogJournal.writing(database, log) as journal:
        await journal.begin(start("run-1"))
        await _be_longest(journal, database)
        with no_file_beyond(log.end.offset + 20):
            for attempt in (
                journal.open(opened(call)),
                journal.begin(start("run-2", request_id="mine")),
            ):
                with pytest.raises(StoreFailed, match=r"cannot be written|is full"):
                    await attempt
        assert journal.under_way() == ([], [])
        await journal.begin(start("run-2", request_id="mine"))
        await journal.open(opened(call))
        await journal.finish(run("run-1", NOW, [call]))
        await journal.finish(run("run-2", NOW, request_id="mine"))
        assert await spent(database) == {DAY: (2, 12, 7), MONTH: (2, 12, 7)}
    assert (await check(database)).problems == []
    await database.close()
