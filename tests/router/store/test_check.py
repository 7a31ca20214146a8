"""The store check: inconsistencies are found and described."""

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from router.access import Tenant
from router.amount import Amount
from router.ledger import Journal, RunStart
from router.models import Usage
from router.store import Database, LogJournal
from router.store.check import Checked, Problem, check
from router.store.schema import CALLS, RUNS
from router.trace.run import RunStatus
from tests.router.store.entries import change, opened
from tests.router.store.stored import call, put, run

NOW = time.time()


def start(run_id: str, started_at: float, hold: Amount) -> RunStart:
    return RunStart(run_id, "answer", "default", "", "", "?", "", started_at, hold)


async def conduct(
    journal: Journal, run_id: str, started_at: float = NOW, status: RunStatus = "finished"
) -> None:
    """Conduct a run with a hold, calls that end well, and one that is cut."""
    await journal.begin(start(run_id, started_at, Amount(50, 40)))
    calls = [
        call(
            run_id,
            number,
            started_at=started_at + number,
            reserved=Amount(100 + number, 90),
            role=role,
        )
        for number, role in enumerate(("delegation", "execution", "answer"))
    ]
    cut = {"outcome": "cancelled", "usage": Usage(3, 1, lower_bound=True), "nano_usd": None}
    calls[1] = msgspec.structs.replace(calls[1], **cut)
    for made in calls:
        await journal.open(opened(made))
    for made in calls:
        journal.settle(made)
    await journal.reserve_for_answer(run_id, Amount(20, None))
    await journal.finish(run(run_id, started_at, calls, status=status, tenant="default"))


@pytest.fixture
async def journal(database: Database) -> AsyncIterator[LogJournal]:
    await put(database, tenants=[Tenant("default", tokens_per_day=10**9)])
    async with LogJournal.writing(database) as journal:
        yield journal


async def problems_of(database: Database) -> list[Problem]:
    return (await check(database)).problems


async def test_a_store_in_use_is_consistent(database: Database, journal: LogJournal) -> None:
    """Everything is counted, and progress is reported."""
    assert (await check(database)).problems == []
    statuses: tuple[RunStatus, ...] = ("finished", "failed", "cancelled")
    await asyncio.gather(
        *(conduct(journal, f"run-{n:03}", NOW - n * 100, statuses[n % 3]) for n in range(120))
    )
    await journal.begin(start("run-500", NOW, Amount(7, 5)))
    await journal.open(
        opened(call("run-500", started_at=NOW - 86400 * 40, reserved=Amount(100, None)))
    )
    progress = []

    checked = await check(database, lambda done, total: progress.append((done, total)))

    assert (checked.runs, checked.calls, checked.problems) == (121, 360, [])
    assert progress == [(100, 121), (121, 121)]


async def test_checks_of_a_busy_store_raise_no_false_alarm(
    database: Database, journal: LogJournal
) -> None:
    """They run at every moment of a run."""
    ended = asyncio.Event()
    looks = list[Checked]()

    async def look() -> None:
        while not ended.is_set():
            looks.append(await check(database))

    draw = random.Random(0)
    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        rounds = 0
        # On a busy machine, many runs end during one check, so more runs are needed
        while rounds < 25 or (rounds < 500 and len({checked.calls for checked in looks}) <= 2):
            rounds += 1
            first = NOW - draw.randrange(100_000)
            await asyncio.gather(
                *(conduct(journal, f"run-{draw.randbytes(8).hex()}", first + n) for n in range(4))
            )
        ended.set()
    assert [problem for checked in looks for problem in checked.problems] == []
    assert len({checked.calls for checked in looks}) > 2


COPY = (
    "UPDATE runs SET trace = other.trace FROM (SELECT trace FROM runs WHERE run_id = "
    "'run-2') AS other"
)


@pytest.mark.parametrize(
    ("statement", "where", "what"),
    [
        (
            "UPDATE runs SET trace = NULL WHERE run_id = 'run-1'",
            "run run-1",
            "is finished, but its trace (texts and calls) is missing",
        ),
        (
            f"{COPY} WHERE run_id = 'run-1'",
            "run run-1",
            "its trace and its row in the table runs differ in id",
        ),
        (
            "UPDATE runs SET status = 'failed', duration_s = 9.5 WHERE run_id = 'run-1'",
            "run run-1",
            "its trace and its row in the table runs differ in status, duration_s",
        ),
        (
            (
                "UPDATE calls SET deployment = 'b', max_tokens = 7 WHERE run_id = 'run-1' "
                "AND number = 1"
            ),
            "run run-1",
            "call 1: the trace and the table calls differ in deployment, max_tokens",
        ),
        (
            "UPDATE calls SET counted = 'estimated' WHERE run_id = 'run-1' AND number = 1",
            "run run-1",
            "call 1: the trace and the table calls differ in counted",
        ),
        (
            "UPDATE calls SET wasted_tokens = 5 WHERE run_id = 'run-1' AND number = 1",
            "run run-1",
            "call 1: the trace and the table calls differ in wasted_tokens",
        ),
        (
            "DELETE FROM calls WHERE run_id = 'run-1' AND number = 0",
            "run run-1",
            "call 0 is in its trace, but not in the table calls",
        ),
        (
            "UPDATE calls SET number = 7 WHERE run_id = 'run-1' AND number = 0",
            "run run-1",
            "call 7 is in the table calls, but not in its trace",
        ),
        ("DROP INDEX calls_by_tenant", "table calls", "has no column or index calls_by_tenant"),
        ("DROP TABLE feedback", "table feedback", "is missing"),
    ],
)
async def test_an_inconsistency_is_described_with_its_place(
    database: Database, journal: LogJournal, statement: str, where: str, what: str
) -> None:
    for number in range(3):
        await conduct(journal, f"run-{number}")
    await change(database, statement)
    assert Problem(where, what) in await problems_of(database)


@pytest.mark.parametrize("trace", [b"\xa3Heat", b"x\x01Heat"])
async def test_a_damaged_trace_is_reported_and_the_other_runs_are_checked(
    database: Database, journal: LogJournal, trace: bytes
) -> None:
    for number in range(3):
        await conduct(journal, f"run-{number}")
    damage = RUNS.update().where(RUNS.c.run_id == "run-1").values(trace=trace)
    await database.write(lambda connection: connection.execute(damage))

    checked = await check(database)
    assert (checked.runs, checked.problems) == (
        3,
        [
            Problem(
                "run run-1", "the trace is damaged, so the run's result and texts cannot be read"
            )
        ],
    )


async def test_rows_of_missing_runs_are_reported(
    database: Database, journal: LogJournal, url: str
) -> None:
    """The database admitted them without a foreign key."""
    await conduct(journal, "run-1")
    assert await problems_of(database) == []  # wait for the database
    orphan = "UPDATE calls SET run_id = 'run-0' WHERE number = 0"
    if url.startswith("sqlite"):
        # Without foreign keys
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as careless, careless:
            careless.execute(orphan)
    else:
        await change(database, "ALTER TABLE calls DROP CONSTRAINT calls_run_id_fkey")
        await change(database, orphan)

    assert await problems_of(database) == [
        Problem("table calls", "1 rows refer to missing rows of runs"),
        Problem("run run-1", "call 0 is in its trace, but not in the table calls"),
    ]


async def test_an_unreadable_table_ends_the_check_with_the_findings_so_far(
    database: Database, journal: LogJournal
) -> None:
    await conduct(journal, "run-1")
    await database.write(CALLS.drop)
    problems = await problems_of(database)
    assert Problem("table calls", "is missing") in problems
    assert problems[-1].where == "database"
    assert problems[-1].what.startswith("cannot be read any further: ")


async def test_a_damaged_file_is_reported_in_the_words_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    database = await Database.open(f"sqlite:///{path}")
    async with LogJournal.writing(database) as journal:
        for number in range(60):
            await conduct(journal, f"run-{number}", NOW + number * 3600)
    await database.close()
    whole = path.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    path.write_bytes(whole[:middle] + b"\xff" * 4096 * 3 + whole[middle + 4096 * 3 :])
    database = await Database.open(f"sqlite:///{path}")
    assert "database" in {problem.where for problem in await problems_of(database)}
    await database.close()
