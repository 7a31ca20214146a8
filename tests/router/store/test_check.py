"""A store is looked through for what does not agree."""

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, text

from router.access import Tenant
from router.amount import Amount
from router.ledger.journal import Journal, RunStart
from router.models.model import Usage
from router.store.check import Checked, Problem, check
from router.store.database import Database
from router.store.journal import SQLJournal
from router.store.schema import CALLS, RUNS, SPENDING, USAGE_HOURS
from router.trace.call import Call, OpenedCall
from router.trace.run import RunStatus
from tests.router.store.stored import call, put, run

NOW = time.time()
ANSWERED = "{hour} (answer small executor-000001 at engine)"


def opened(call: Call) -> OpenedCall:
    return OpenedCall(**{name: getattr(call, name) for name in OpenedCall.__struct_fields__})


async def conduct(journal: Journal, run_id: str, started_at: float = NOW, status: RunStatus = "finished") -> None:
    """A run with all that there is in one: a hold, calls that end well, one that is cut, and one that is discarded."""
    await journal.begin(RunStart(run_id, "answer", "default", "", "", "?", "", started_at, Amount(50, 40)))
    calls = [
        call(run_id, number, started_at=started_at + number, reserved=Amount(100 + number, 90), role=role)
        for number, role in enumerate(("delegation", "execution", "answer", "execution"))
    ]
    cut = {"outcome": "cancelled", "usage": Usage(3, 1, lower_bound=True), "nano_usd": None}
    calls[1] = msgspec.structs.replace(calls[1], **cut)
    for each in calls:
        await journal.open(opened(each))
    for each in calls[:3]:
        journal.settle(each)
    journal.discard(opened(calls[3]))
    await journal.hold(run_id, Amount(20, None))
    await journal.finish(run(run_id, started_at, calls[:3], status=status, tenant="default"))


@pytest.fixture
async def journal(database: Database) -> AsyncIterator[SQLJournal]:
    await put(database, tenants=[Tenant("default", tokens_per_day=10**9)])
    async with SQLJournal.writing(database) as journal:
        yield journal


async def found(database: Database) -> list[Problem]:
    return (await check(database)).problems


async def change(database: Database, statement: str) -> None:
    await database.write(lambda connection: connection.execute(text(statement)))


async def test_an_empty_store(database: Database) -> None:
    """Is whole."""
    checked = await check(database)
    assert (checked.runs, checked.calls, checked.problems) == (0, 0, [])
    assert checked.schema


async def test_a_store_in_use(database: Database, journal: SQLJournal) -> None:
    """Is whole while runs are under way; everything is counted, and progress is told."""
    statuses: tuple[RunStatus, ...] = ("finished", "failed", "cancelled")
    await asyncio.gather(*(conduct(journal, f"run-{n:03}", NOW - n * 100, statuses[n % 3]) for n in range(120)))
    await journal.begin(RunStart("run-500", "answer", "default", "", "", "?", "", NOW, Amount(7, 5)))
    await journal.open(opened(call("run-500", started_at=NOW - 86400 * 40, reserved=Amount(100, None))))
    told = []

    checked = await check(database, lambda done, total: told.append((done, total)))

    assert (checked.runs, checked.calls, checked.problems) == (121, 361, [])
    assert told == [(100, 121), (121, 121)]


async def test_checks_beside_a_busy_gateway(database: Database, journal: SQLJournal) -> None:
    """Never raise a false alarm, at whatever moment of a run they look."""
    ended = asyncio.Event()

    async def look() -> list[Checked]:
        looks = []
        while not ended.is_set():
            looks.append(await check(database))
        return looks

    looking = asyncio.create_task(look())
    draw = random.Random(0)
    for _ in range(25):
        start = NOW - draw.randrange(100_000)
        await asyncio.gather(*(conduct(journal, f"run-{draw.randbytes(8).hex()}", start + n) for n in range(4)))
    ended.set()

    looks = await looking
    assert [problem for checked in looks for problem in checked.problems] == []
    assert len({checked.calls for checked in looks}) > 2


async def test_a_gateway_that_was_killed(database: Database, journal: SQLJournal) -> None:
    """Leaves runs behind; they are named once it has been silent for a minute, and not while it may only be slow."""
    await conduct(journal, "run-1")
    await put(database, run("run-2", status="running"), run("run-3", status="running"))
    seen = "INSERT INTO gateways (gateway_id, host, pid, seen_at) VALUES ('gateway-1', 'elsewhere', 1, {})"
    await change(database, seen.format(time.time() - 30))
    assert await found(database) == []

    await change(database, f"UPDATE gateways SET seen_at = {time.time() - 100} WHERE gateway_id = 'gateway-1'")

    silent = "is running, but its gateway is silent; the next one to start will close it"
    assert await found(database) == [Problem("run run-2", silent), Problem("run run-3", silent)]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (
            "UPDATE runs SET trace = NULL WHERE run_id = 'run-1'",
            Problem("run run-1", "is finished, but has no trace"),
        ),
        (
            "UPDATE runs SET trace = gateway_bytes.bytes FROM (SELECT trace AS bytes FROM runs WHERE run_id = 'run-2')"
            " AS gateway_bytes WHERE run_id = 'run-1'",
            Problem("run run-1", "its trace and its row differ in id"),
        ),
        (
            "UPDATE runs SET status = 'failed', duration_s = 9.5 WHERE run_id = 'run-1'",
            Problem("run run-1", "its trace and its row differ in status, duration_s"),
        ),
        (
            "UPDATE calls SET deployment = 'b', max_tokens = 7 WHERE run_id = 'run-1' AND number = 1",
            Problem("run run-1", "call 1 is booked otherwise than its trace says: deployment, max_tokens"),
        ),
        (
            "UPDATE calls SET counted = 'estimated' WHERE run_id = 'run-1' AND number = 1",
            Problem("run run-1", "call 1 is booked otherwise than its trace says: usage"),
        ),
        (
            "UPDATE calls SET wasted_tokens = 5 WHERE run_id = 'run-1' AND number = 1",
            Problem("run run-1", "call 1 has wasted 4 tokens, but 5 are booked"),
        ),
        (
            "DELETE FROM calls WHERE run_id = 'run-1' AND number = 0",
            Problem("run run-1", "its trace has calls that are not booked: 0"),
        ),
        (
            "UPDATE calls SET number = 7 WHERE run_id = 'run-1' AND number = 0",
            Problem("run run-1", "calls are booked that its trace does not have: 7"),
        ),
        (
            "UPDATE calls SET outcome = 'open', counted = '' WHERE run_id = 'run-1' AND number = 2",
            Problem("run run-1", "has ended, but its call 2 is still open"),
        ),
        (
            "UPDATE usage_hours SET attempts = attempts - 1, cached_tokens = 5 WHERE role = 'answer'",
            Problem(ANSWERED, "is not what the calls add up to: attempts, cached_tokens"),
        ),
        (
            "DELETE FROM usage_hours WHERE role = 'answer'",
            Problem(ANSWERED, "is missing, though there are calls of that hour"),
        ),
        (
            "UPDATE spending SET reserved_tokens = 9 WHERE length(period) = 10",
            Problem(
                "spending of default, {day}",
                "9 tokens and 0 nano-dollars are reserved, but open calls and answers to come reserve 0 and 0",
            ),
        ),
        (
            "UPDATE calls SET prompt_tokens = NULL WHERE run_id = 'run-1' AND number = 0",
            Problem(
                "run run-1",
                "The row of call run-1-0 is damaged: Expected `int`, got `null` - at `$.usage.prompt_tokens`.",
            ),
        ),
    ],
)
async def test_what_does_not_agree(database: Database, journal: SQLJournal, statement: str, problem: Problem) -> None:
    """Is told in plain words, with where it is."""
    start = NOW // 3600 * 3600
    for number, at in enumerate((start - 80_000, start, start)):
        await conduct(journal, f"run-{number}", at)
    await change(database, statement)

    problems = await found(database)

    hour = f"usage of default in the hour {int(start // 3600)}"
    day = time.strftime("%Y-%m-%d", time.gmtime(start))
    assert Problem(problem.where.format(hour=hour, day=day), problem.what) in problems


async def test_less_spent_than_was_spent(database: Database, journal: SQLJournal) -> None:
    """A limit that was used up is not fresh again without a word; more is what was deleted since."""
    await conduct(journal, "run-1")
    await change(database, "UPDATE spending SET tokens = tokens + 1, requests = 5")
    assert await found(database) == []
    await change(database, "DELETE FROM spending")

    counts = {"tokens": 28, "nano_usd": 14, "requests": 1}
    day = time.strftime("%Y-%m-%d", time.gmtime(NOW))
    assert await found(database) == [
        Problem(f"spending of default, {period}", f"{name} is 0, less than the {count} of its runs and calls")
        for period in (day[:7], day)
        for name, count in counts.items()
    ]


async def test_open_calls_and_holds_are_reserved(database: Database, journal: SQLJournal) -> None:
    """What is reserved of neither is told, for the day and for the month."""
    await journal.begin(RunStart("run-1", "answer", "default", "", "", "?", "", NOW, Amount(7, 5)))
    await journal.open(opened(call("run-1", started_at=NOW, reserved=Amount(100, 90))))
    await change(database, "UPDATE runs SET held_tokens = 8")
    await change(database, "UPDATE calls SET reserved_nano_usd = NULL")

    what = "107 tokens and 95 nano-dollars are reserved, but open calls and answers to come reserve 108 and 5"
    day = time.strftime("%Y-%m-%d", time.gmtime(NOW))
    places = [f"spending of default, {period}" for period in (day[:7], day)]
    assert await found(database) == [Problem(where, what) for where in places]


async def test_a_trace_that_is_damaged(database: Database, journal: SQLJournal) -> None:
    """Is told; the other runs are looked at all the same."""
    for number in range(3):
        await conduct(journal, f"run-{number}")
    await database.write(
        lambda connection: connection.execute(RUNS.update().where(RUNS.c.run_id == "run-1").values(trace=b"\xa3Heat"))
    )

    checked = await check(database)

    assert (checked.runs, checked.problems) == (3, [Problem("run run-1", "its trace cannot be decoded")])


async def test_deleted_runs(database: Database, journal: SQLJournal) -> None:
    """Leave their sums behind, which is as it must be; but sums of less than the calls are not."""
    start = NOW // 3600 * 3600
    for number in range(4):
        await conduct(journal, f"run-{number}", start - 7200 + number * 1800)

    def delete(connection: Connection) -> None:
        for table in (CALLS, RUNS):
            connection.execute(table.delete().where(table.c.run_id.in_(["run-0", "run-1", "run-2"])))

    await database.write(delete)
    assert await found(database) == []

    await change(database, "UPDATE usage_hours SET attempts = 0")
    assert {problem.what for problem in await found(database)} == {"is less than what the calls add up to: attempts"}


async def test_rows_of_runs_that_are_not_there(database: Database, journal: SQLJournal) -> None:
    """Are told, where the database has let them in."""
    await conduct(journal, "run-1")

    def orphan(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ALTER TABLE calls DROP CONSTRAINT calls_run_id_fkey")
        connection.exec_driver_sql("UPDATE calls SET run_id = 'run-0' WHERE number = 0")

    if file := await database.read(lambda connection: connection.dialect.name == "sqlite" and connection.engine.url):
        with closing(sqlite3.connect(str(file.database))) as careless, careless:  # it does not mind foreign keys
            careless.execute("UPDATE calls SET run_id = 'run-0' WHERE number = 0")
    else:
        await database.write(orphan)

    assert await found(database) == [
        Problem("table calls", "1 rows are of runs that are not there"),
        Problem("run run-1", "its trace has calls that are not booked: 0"),
    ]


async def test_tables_that_are_not_as_they_must_be(database: Database) -> None:
    """Are told: without an index, sums would take a scan of all calls."""
    await change(database, "DROP INDEX calls_by_tenant")
    await change(database, "DROP TABLE feedback")

    problems = await found(database)

    assert Problem("table calls", "has no calls_by_tenant") in problems
    assert Problem("table feedback", "is missing") in problems


async def test_a_table_that_cannot_be_read(database: Database, journal: SQLJournal) -> None:
    """Ends the search; what was found before is told."""
    await conduct(journal, "run-1")
    await change(database, "UPDATE runs SET trace = NULL")
    await database.write(SPENDING.drop)

    problems = await found(database)

    assert Problem("table spending", "is missing") in problems
    assert problems[-1].where == "database"
    assert problems[-1].what.startswith("cannot be read any further: ")


async def test_a_damaged_file(tmp_path: Path) -> None:
    """Is told by what SQLite finds."""
    path = tmp_path / "runs.db"
    database = await Database.open(f"sqlite:///{path}")
    async with SQLJournal.writing(database) as journal:
        for number in range(60):
            await conduct(journal, f"run-{number}", NOW + number * 3600)
    await database.write(lambda connection: connection.execute(USAGE_HOURS.select().limit(1)))
    await database.close()
    whole = path.read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    path.write_bytes(whole[:middle] + b"\xff" * 4096 * 3 + whole[middle + 4096 * 3 :])
    database = await Database.open(f"sqlite:///{path}")

    problems = (await check(database)).problems

    assert "database" in {problem.where for problem in problems}
    await database.close()
