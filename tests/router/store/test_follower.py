"""The follower, which writes the log to the database: each run counts once, despite failures and
kills.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine

from router.store import Database, LogJournal, SQLArchive
from router.store.check import check
from router.store.database import Args, Value
from router.store.log import RunLog, segments
from tests.router.store.entries import (
    DAY,
    MONTH,
    NOW,
    change,
    cut_short,
    ended,
    opened,
    rows,
    spent,
    start,
)
from tests.router.store.stored import run


class Counted(Database):
    """A database that counts its writes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.begun = self.done = 0
        self.on_disk: list[bool] = []
        self._news = asyncio.Condition()

    async def write(
        self,
        change: Callable[[Connection, *Args], Value],
        *args: *Args,
        on_disk: bool = True,
        behind: bool = False,
    ) -> Value:
        self.begun += 1
        self.on_disk.append(on_disk)
        async with self._news:
            self._news.notify_all()
        try:
            return await super().write(change, *args, on_disk=on_disk, behind=behind)
        finally:
            self.done += 1
            async with self._news:
                self._news.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until the condition holds, and test it after each write."""
        async with asyncio.timeout(10), self._news:
            await self._news.wait_for(reached)

    async def more(self, count: int) -> None:
        """Wait for this many more writes."""
        wanted = self.done + count
        await self.until(lambda: self.done >= wanted)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a SQLite address, as PostgreSQL has the end of a run before it is acknowledged."""
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
async def counted(url: str) -> AsyncIterator[Counted]:
    database = await Counted.open(url)
    assert isinstance(database, Counted)
    yield database
    await database.close()


async def behind(database: Database, statement: str) -> None:
    """Change a table now, before the changes that wait."""
    await database.write(lambda connection: connection.exec_driver_sql(statement), behind=True)


async def test_a_repeatedly_failing_change_does_not_repeat_the_ones_before(
    counted: Counted,
) -> None:
    """Changes are written singly, as the last one cannot be written."""
    async with LogJournal.writing(counted) as journal:
        await change(counted, "ALTER TABLE calls RENAME TO elsewhere")
        for number in range(3):
            await journal.begin(start(f"run-{number}", key_id=None if number == 1 else "key"))
        await journal.open(opened(ended("run-2")))
        for number in range(3):
            await journal.finish(run(f"run-{number}", NOW))
        await counted.more(8)
        await behind(counted, "ALTER TABLE elsewhere RENAME TO calls")
        assert await rows(counted, "SELECT run_id, status FROM runs ORDER BY run_id") == [
            ("run-0", "finished"),
            ("run-2", "finished"),
        ]
        assert await spent(counted) == {DAY: (2, 0, 0), MONTH: (2, 0, 0)}
        assert (await check(counted)).problems == []


async def test_the_lag_is_the_age_of_the_oldest_change_that_waits(counted: Counted) -> None:
    may = threading.Event()
    async with LogJournal.writing(counted) as journal:
        assert journal.lag_s == 0
        held = asyncio.create_task(counted.write(lambda _connection: may.wait(10), behind=True))
        begun = time.monotonic()
        await journal.begin(start("run-1"))
        assert 0 < journal.lag_s <= time.monotonic() - begun
        may.set()
        await held
        await counted.read(lambda _connection: None)  # waits until nothing is left in the log
        assert journal.lag_s == 0
        journal.forget("run-1")


async def test_the_log_position_never_falls_behind_the_written_records(counted: Counted) -> None:
    """So nothing counts twice after a kill."""
    may = threading.Event()
    async with cut_short(counted) as journal:
        await journal.begin(start("run-1"))
        await counted.read(lambda _connection: None)
        await counted.more(1)  # the position is noted at intervals, and was noted just now
        before = counted.begun
        held = asyncio.create_task(counted.write(lambda _connection: may.wait(10), behind=True))
        await journal.finish(run("run-1", NOW))
        await counted.until(lambda: counted.begun >= before + 3)  # the run and the position
        may.set()
        await held
        await counted.until(lambda: counted.done >= before + 3)
    async with LogJournal.writing(counted):
        assert await spent(counted) == {DAY: (1, 0, 0), MONTH: (1, 0, 0)}
        assert (await check(counted)).problems == []


async def test_segments_in_use_stay_and_others_are_deleted(counted: Counted) -> None:
    """Segments of runs in progress, and of runs whose end is not in the database yet, are in
    use.
    """
    folder = counted.log_folder
    log = RunLog.open(folder)
    call = ended("run-1")
    async with cut_short(counted, log) as journal:
        first = segments(folder)
        await journal.begin(start("run-1"))
        await journal.open(opened(call))
        journal.settle(call)
        log.start()
        await journal.begin(start("run-2"))
        await counted.read(lambda _connection: None)
        await counted.more(2)
        assert segments(folder)[:1] == first
        await behind(counted, "ALTER TABLE spending RENAME TO elsewhere")
        await journal.finish(run("run-1", NOW, [call]))
        await journal.begin(start("run-3"))
        await counted.more(8)
        assert segments(folder)[:1] == first
    await behind(counted, "ALTER TABLE elsewhere RENAME TO spending")

    async with LogJournal.writing(counted):
        assert (await SQLArchive(counted).load("run-1")).calls == (call,)
        assert first[0] not in segments(folder)
        assert await spent(counted) == {DAY: (3, 12, 7), MONTH: (3, 12, 7)}
        assert (await check(counted)).problems == []


async def test_unused_segments_are_deleted_while_the_gateway_runs(counted: Counted) -> None:
    folder = counted.log_folder
    log = RunLog.open(folder)
    async with LogJournal.writing(counted, log) as journal:
        first = segments(folder)
        await journal.begin(start("run-1"))
        await journal.finish(run("run-1", NOW))
        log.start()
        await journal.begin(start("run-2"))
        await counted.until(lambda: first[0] not in segments(folder))
        assert len(segments(folder)) == 1


async def test_the_rest_of_a_log_is_synced_before_any_answer_from_it(counted: Counted) -> None:
    """This holds too if segments stay for a run that can be resumed."""
    async with cut_short(counted) as journal:
        await journal.begin(start("run-1", started_at=time.time()))
        await journal.finish(run("run-1", NOW))
        await journal.begin(start("run-2", started_at=time.time()))
    counted.on_disk.clear()
    async with LogJournal.writing(counted) as journal:
        assert journal.unfinished("run-2")
        assert any(counted.on_disk)


async def test_reading_a_run_in_progress_does_not_wait(counted: Counted) -> None:
    """The database has the run, however far it lags. The end of the run is seen immediately."""

    async def wait() -> None:
        pytest.fail("waits for the database")

    async with LogJournal.writing(counted) as journal:
        archive = SQLArchive(counted, journal.calls)
        await journal.begin(start("run-1"))
        assert (await archive.load("run-1")).status == "running"
        await journal.begin(start("run-2"))
        usual = counted.caught_up
        counted.caught_up = wait
        assert (await archive.load("run-1")).status == "running"
        counted.caught_up = usual
        assert (await archive.load("run-2")).status == "running"
        for run_id in ("run-1", "run-2"):
            await journal.finish(run(run_id, NOW))
            assert (await archive.load(run_id)).status == "finished"
