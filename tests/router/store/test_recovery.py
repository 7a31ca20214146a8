"""Recovery of logs by the next gateway or a command: every acknowledged record counts once."""

import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.access import Tenant
from router.amount import Amount
from router.errors import StoreInUse
from router.ledger.journal import Admitted, EarlierRun
from router.store import Database, LogJournal, SQLArchive
from router.store import opened as opened_for_command
from router.store.check import check
from router.store.log import LogFrame, RunLog, Segment, read_all, read_segment, segments
from router.store.records import Fold, run_key
from router.trace import Run
from tests.router.store.busy import agree, conduct, plans, stored_runs
from tests.router.store.disks import put as put_content
from tests.router.store.entries import DAY, MONTH, NOW, cut_short, ended, opened, rows, spent, start
from tests.router.store.stored import put, run

_DYING = """
import asyncio, sys
from router.amount import Amount
from router.store import Database, LogJournal
from tests.router.store.entries import NOW, ended, opened, start
from tests.router.store.stored import run

async def main(url, *names):
    database = await Database.open(url)
    async with LogJournal.writing(database) as journal:
        for name in names:
            await journal.begin(start(f"{name}-1", "acme", request_id=name, hold=Amount(5, 5)))
            for number in range(3):
                call = ended(f"{name}-1", number, Amount(50, 60), tenant="acme")
                await journal.open(opened(call))
            journal.settle(ended(f"{name}-1", 0, Amount(50, 60), tenant="acme"))
            await journal.begin(start(f"{name}-2", "acme"))
            await journal.begin(start(f"{name}-3", "acme", request_id=f"{name}-3"))
            await journal.finish(run(f"{name}-3", NOW, tenant="acme", request_id=f"{name}-3"))
        print("ready", flush=True)
        await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


async def _killed(url: str, *names: str) -> None:
    """Start three runs for each name in another process, end one, and kill the gateway."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _DYING, url, *names, stdout=pipe
    )
    assert child.stdout is not None
    # It first reports the runs that it closes
    while (line := await child.stdout.readline()) != b"ready\n":
        assert line, "the gateway ended before it was ready"
    child.send_signal(signal.SIGKILL)
    await child.communicate()


async def test_runs_of_a_killed_gateway_are_closed_at_the_next_start(
    database: Database, url: str
) -> None:
    """Ended calls stay, calls in flight are charged with their worst case, and acknowledged records
    are kept.
    """
    await put(database, tenants=[Tenant("acme", tokens_per_day=1000)])
    await _killed(url, "mine")

    async with LogJournal.writing(database) as journal:
        closed = await SQLArchive(database).load("mine-1")
        assert (closed.status, closed.result, closed.error, closed.request, closed.request_id) == (
            "interrupted",
            None,
            "",
            "Who directed Heat?",
            "mine",
        )
        known = ended("mine-1", 0, Amount(50, 60), tenant="acme")
        unknown = {
            "outcome": "interrupted",
            "usage": None,
            "nano_usd": None,
            "first_token_s": None,
            "duration_s": 0.0,
        }
        cut = [
            ended("mine-1", number, Amount(50, 60), tenant="acme", **unknown) for number in (1, 2)
        ]
        assert closed.calls == (known, *cut)
        assert closed.duration_s == 1.5
        expected = run("mine-3", NOW, tenant="acme", request_id="mine-3")
        assert await SQLArchive(database).load("mine-3") == expected
        assert await spent(database, "acme") == {DAY: (3, 112, 127), MONTH: (3, 112, 127)}
        assert await rows(
            database, "SELECT attempts, attempts_without_usage, prompt_tokens FROM usage_hours"
        ) == [(3, 2, 10)]
        assert (await check(database)).problems == []
        assert await journal.begin(start("run-4", "acme", request_id="mine")) == Admitted(
            limited=True
        )
        again = await journal.begin(start("run-5", "acme", request_id="mine-3"))
        assert again == EarlierRun("mine-3", "finished", True)


async def test_repeated_kills_count_nothing_twice(database: Database, url: str) -> None:
    """Each gateway closes the runs of the one before."""
    for name in ("one", "two"):
        await _killed(url, name)
    for _ in range(2):
        async with cut_short(database):
            pass
    async with LogJournal.writing(database):
        assert await rows(database, "SELECT run_id, status FROM runs ORDER BY run_id") == [
            (f"{name}-{number}", status)
            for name in ("one", "two")
            for number, status in ((1, "interrupted"), (2, "interrupted"), (3, "finished"))
        ]
        assert await spent(database, "acme") == {DAY: (6, 224, 254), MONTH: (6, 224, 254)}
        assert (await check(database)).problems == []


async def test_a_redacted_run_stays_redacted_when_it_is_closed(
    database: Database, url: str
) -> None:
    await put(database, tenants=[Tenant("acme", redact=True)])
    await _killed(url, "mine")
    async with LogJournal.writing(database):
        closed = await SQLArchive(database).load("mine-1")
    assert (closed.status, closed.request, closed.redacted) == ("interrupted", "", True)


async def test_runs_in_progress_when_a_journal_ends_are_closed_by_the_next(
    database: Database,
) -> None:
    """Their spending is known."""
    async with LogJournal.writing(database) as journal:
        await journal.begin(start("run-1", hold=Amount(5, 5)))
        await journal.open(opened(ended("run-1", 0, Amount(50, 60))))
    async with LogJournal.writing(database):
        assert await rows(database, "SELECT status FROM runs") == [("interrupted",)]
        assert await spent(database) == {DAY: (1, 50, 60), MONTH: (1, 50, 60)}
    async with LogJournal.writing(database):
        assert await spent(database) == {DAY: (1, 50, 60), MONTH: (1, 50, 60)}
    assert (await check(database)).problems == []


@pytest.fixture
async def url_here(tmp_path: Path) -> str:
    """Return a SQLite file's address, as these tests are about its log."""
    return f"sqlite:///{tmp_path / 'runs.db'}"


@asynccontextmanager
async def at(url: str) -> AsyncIterator[Database]:
    """Open a database while the context is open."""
    database = await Database.open(url)
    yield database
    await database.close()


async def everything(database: Database) -> dict[str, Sequence[tuple[Any, ...]]]:
    """Return all rows that a journal writes."""
    orders = {
        "runs": "run_id",
        "calls": "run_id, number",
        "usage_hours": "hour, role",
        "spending": "tenant, period",
    }
    return {
        table: await rows(database, f"SELECT * FROM {table} ORDER BY {order}")
        for table, order in orders.items()
    }


async def _finish(journal: LogJournal, run_id: str, count: int = 1) -> Run:
    """Conduct a run of some calls from beginning to end."""
    calls = [ended(run_id, number, Amount(50, 60)) for number in range(count)]
    await journal.begin(start(run_id, request_id=run_id))
    for call in calls:
        await journal.open(opened(call))
        journal.settle(call)
    over = run(run_id, NOW, calls, request_id=run_id)
    await journal.finish(over)
    return over


async def test_a_second_gateway_on_the_same_file_is_refused_and_changes_nothing(
    url_here: str,
) -> None:
    async with (
        at(url_here) as database,
        at(url_here) as again,
        LogJournal.writing(database) as journal,
    ):
        await journal.begin(start("run-1"))
        with pytest.raises(StoreInUse, match="in use by process"):
            async with LogJournal.writing(again):
                pass
        await journal.finish(run("run-1", NOW))
        assert (await SQLArchive(database).load("run-1")).status == "finished"


@pytest.mark.parametrize("damage", ["deleted", "replaced by an earlier copy", "none"])
async def test_a_database_behind_its_log_gets_each_missing_run_once(
    url_here: str, tmp_path: Path, damage: str
) -> None:
    async with at(url_here) as database, cut_short(database) as journal:
        for number in range(3):
            await _finish(journal, f"run-{number}", number)
        await database.read(lambda _connection: None)  # wait for the follower
        await database.copy(tmp_path / "copy.db")
        for number in range(3, 6):
            await _finish(journal, f"run-{number}", number)
        await journal.begin(start("run-6"))
        await journal.open(opened(ended("run-6", 0, Amount(50, 60))))
        expected = await everything(database)
    assert len(expected["runs"]) == 7
    if damage != "none":
        for path in tmp_path.glob("runs.db*"):
            if path.is_file():
                path.unlink()
    if damage == "replaced by an earlier copy":
        (tmp_path / "copy.db").rename(tmp_path / "runs.db")
    for _ in range(2):
        async with at(url_here) as database, LogJournal.writing(database):
            tables = await everything(database)
            assert [row for row in tables["runs"] if "interrupted" not in row] == [
                row for row in expected["runs"] if "running" not in row
            ]
            assert [row for row in tables["calls"] if row[0] != "run-6"] == expected["calls"]
            assert await spent(database) == {
                DAY: (7, 15 * 12 + 50, 15 * 7 + 60),
                MONTH: (7, 230, 165),
            }
            assert (await check(database)).problems == []


async def test_without_a_log_running_runs_of_the_database_are_closed(url_here: str) -> None:
    """Spending and runs of later gateways add to those of the database."""
    async with at(url_here) as database:
        async with cut_short(database) as journal:
            await _finish(journal, "run-1")
            await journal.begin(start("run-2", request_id="mine"))
            await journal.open(opened(ended("run-2", 0, Amount(50, 60))))
            assert await rows(database, "SELECT status FROM runs ORDER BY run_id") == [
                ("finished",),
                ("running",),
            ]
        shutil.rmtree(database.log_folder)
        async with cut_short(database):
            closed = await SQLArchive(database).load("run-2")
            assert (closed.status, closed.calls, closed.request_id) == ("interrupted", (), "mine")
        async with LogJournal.writing(database) as journal:
            await _finish(journal, "run-3")
            assert await spent(database) == {DAY: (3, 24, 14), MONTH: (3, 24, 14)}
            assert await journal.begin(start("run-4", request_id="mine")) == Admitted()
            assert (await check(database)).problems == []


@pytest.mark.parametrize("lives", [True, False])
async def test_a_command_sees_every_acknowledged_record(url_here: str, lives: bool) -> None:
    """The gateway may be alive or not. Runs in progress are left to it, or to the next."""
    async with at(url_here) as database:
        journal_of = LogJournal.writing(database) if lives else cut_short(database)
        async with journal_of as journal:
            finished = await _finish(journal, "run-1")
            await journal.begin(start("run-2"))
            if lives:
                async with opened_for_command(url_here) as beside:
                    assert await SQLArchive(beside).load("run-1") == finished
        for _ in range(2):
            async with opened_for_command(url_here) as beside:
                assert await SQLArchive(beside).load("run-1") == finished
                assert (await SQLArchive(beside).load("run-2")).status == "running"
                assert (await check(beside)).problems == []
        async with LogJournal.writing(database):
            assert (await SQLArchive(database).load("run-2")).status == "interrupted"
            assert await spent(database) == {DAY: (2, 12, 7), MONTH: (2, 12, 7)}
        assert segments(database.log_folder) == []
        async with opened_for_command(url_here) as beside:
            assert await SQLArchive(beside).load("run-1") == finished


@pytest.mark.parametrize("cut_off", [b"", b"?"])
async def test_space_reserved_by_a_killed_gateway_is_freed_when_its_log_is_read(
    url_here: str, cut_off: bytes
) -> None:
    """A possibly cut record stays."""
    async with at(url_here) as database:
        async with cut_short(database) as journal:
            finished = await _finish(journal, "run-1")
        (path,) = segments(database.log_folder)
        ((end, size),) = read_segment(path).holes
        with path.open("r+b") as file:
            file.seek(end + 100)
            file.write(cut_off)
        for _ in range(2):
            async with opened_for_command(url_here):
                assert path.stat().st_size == (size if cut_off else end)
        async with LogJournal.writing(database):
            assert await SQLArchive(database).load("run-1") == finished


MIDNIGHT = (time.time() // 86400 + 1) * 86400


@settings(max_examples=30)
@given(data=st.data(), seed=st.integers())
async def test_acknowledged_records_survive_any_fault_before_a_kill(
    data: st.DataObject, seed: int
) -> None:
    """Segments end at any moment, and the database fails now and then."""
    luck = random.Random(seed)
    planned = data.draw(plans("acme", MIDNIGHT))
    with tempfile.TemporaryDirectory() as folder:
        async with at(f"sqlite:///{folder}/runs.db") as database:
            log = RunLog.open(database.log_folder)
            names = ("spending", "elsewhere")

            async def rename() -> None:
                nonlocal names
                statement = "ALTER TABLE {} RENAME TO {}".format(*names)
                names = names[::-1]
                await database.write(
                    lambda connection: connection.exec_driver_sql(statement), behind=True
                )

            async def trouble() -> None:
                for _ in range(luck.randrange(8)):
                    match luck.randrange(3):
                        case 0:
                            log.start()
                        case 1:
                            await rename()
                        case _ if names[0] == "spending":
                            await database.read(lambda _connection: None)
                    for _ in range(luck.randrange(5)):
                        await asyncio.sleep(0)

            async with cut_short(database, log) as journal:
                conducted, _ = await asyncio.gather(
                    asyncio.gather(*(conduct(journal, plan, luck, ends=False) for plan in planned)),
                    trouble(),
                )
            if names[0] != "spending":
                await rename()
            for _ in range(2):
                async with LogJournal.writing(database):
                    runs = await stored_runs(database, "acme")
                    await agree(database, "acme", runs, [run for run in conducted if run])


class Small:
    """A log of two acknowledged small runs and two in progress, and the records of it."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self.content = content
        self._runs: dict[tuple[object, ...], dict[str, Run]] = {}
        self.whole, self.runs = self.read(content)

    def read(self, content: bytes) -> tuple[Segment, dict[str, Run]]:
        """Read the log with this content, and return all runs, including those to be closed."""
        put_content(self.path, content)
        (segment,) = read_all(self.path.parent)
        read = *segment.frames, *segment.holes, segment.synced
        if read not in self._runs:
            self._runs[read] = self._folded(segment)
        return segment, self._runs[read]

    def _folded(self, segment: Segment) -> dict[str, Run]:
        fold = Fold()
        runs = {made.start.id: made.run for made in fold.read(segment) if made.run}
        return runs | {left.start.id: left.interrupted() for left in fold.left().values()}

    def frame_at(self, byte: int) -> LogFrame | None:
        """Return the record that holds a byte, or None for a record about the log."""
        starts = (
            (frame.end.offset - len(frame.payload) - 24, frame) for frame in self.whole.frames
        )
        return next((frame for begins, frame in starts if begins <= byte < frame.end.offset), None)


@pytest.fixture
async def small(tmp_path: Path) -> Small:
    """A log made by a journal."""
    folder = tmp_path / "small"
    folder.mkdir()
    async with at(f"sqlite:///{tmp_path / 'runs.db'}") as database:
        async with cut_short(database) as journal:
            calls = {name: ended(f"run-{name}", 0, Amount(50, 60)) for name in "abd"}
            over = {
                name: run(f"run-{name}", NOW, [calls[name]], result=None, events=(), request="?")
                for name in "ab"
            }
            for name in "ab":
                await journal.begin(start(f"run-{name}", request="?"))
                await journal.open(opened(calls[name]))
            journal.settle(calls["a"])
            await journal.finish(over["a"])
            journal.settle(calls["b"])
            await journal.finish(over["b"])
            await asyncio.sleep(0)  # writes the synced length
            for name in "cd":
                await journal.begin(start(f"run-{name}", request="?"))
            await journal.open(opened(calls["d"]))
            size = journal._log.end.offset
        (path,) = segments(database.log_folder)
    small = Small(folder / path.name, path.read_bytes()[:size])
    assert {name: (made.status, made.error) for name, made in small.runs.items()} == {
        "run-a": ("finished", ""),
        "run-b": ("finished", ""),
        "run-c": ("interrupted", ""),
        "run-d": ("interrupted", ""),
    }
    assert (len(small.whole.frames), small.whole.holes, 0 < small.whole.synced < size) == (
        11,
        [],
        True,
    )
    return small


async def test_a_flipped_bit_damages_only_its_own_run(small: Small) -> None:
    """Reading never fails.

    The run is reported as damaged, or, if it was not known to be on disk, ends before the record.
    """
    for bit in range(len(small.content) * 8):
        flipped = bytearray(small.content)
        flipped[bit // 8] ^= 1 << bit % 8
        _, runs = small.read(bytes(flipped))
        hit = small.frame_at(bit // 8)
        names = {name for name in small.runs if hit and run_key(name) == hit.run}
        assert {name: made for name, made in runs.items() if name not in names} == {
            name: made for name, made in small.runs.items() if name not in names
        }
        for name in names:
            if bit // 8 < small.whole.synced:
                assert runs[name].error.startswith("damaged")
            elif name in runs and not runs[name].error.startswith("damaged"):
                assert runs[name] == msgspec.structs.replace(
                    small.runs[name], calls=(), duration_s=0.0
                )


async def test_a_cut_after_the_synced_part_is_no_damage(small: Small) -> None:
    """It costs no acknowledged record."""
    for size in range(len(small.content)):
        segment, runs = small.read(small.content[:size])
        if size >= small.whole.synced:
            assert {name: runs[name] for name in ("run-a", "run-b")} == {
                name: small.runs[name] for name in ("run-a", "run-b")
            }
        assert segment.damaged == 0
        assert {made.error for made in runs.values()} <= {""}
        assert all(
            made.status in ("interrupted", small.runs[name].status) for name, made in runs.items()
        )


@pytest.mark.parametrize(
    "known", [False, True], ids=["the log alone has it", "the database has it"]
)
@pytest.mark.parametrize("hit", range(11))
async def test_a_damaged_record_leaves_a_consistent_store(
    tmp_path: Path, hit: int, known: bool, small: Small
) -> None:
    """Rows that the database already has stay unchanged."""
    flipped = bytearray(small.content)
    flipped[small.whole.frames[hit].end.offset - 1] ^= 1
    async with at(f"sqlite:///{tmp_path / 'other.db'}") as database:
        database.log_folder.mkdir()
        placed = database.log_folder / small.path.name
        placed.write_bytes(small.content)
        if known:
            async with opened_for_command(f"sqlite:///{tmp_path / 'other.db'}"):
                before = await everything(database)
        placed.write_bytes(flipped)
        for _ in range(2):
            async with cut_short(database):
                tables = await everything(database)
                assert (await check(database)).problems == []
                runs = [await SQLArchive(database).load(row[0]) for row in tables["runs"]]
                tokens = sum(call.charged.tokens for run in runs for call in run.calls)
                assert (await spent(database))[DAY][:2] == (len(runs), tokens)
                if known:
                    assert [row for row in tables["runs"] if "finished" in row] == [
                        row for row in before["runs"] if "finished" in row
                    ]
                    assert len(runs) == 4
