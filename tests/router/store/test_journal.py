"""The journal: what happens is on record, once, before anyone hears of it."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from router.access import Tenant
from router.amount import Amount
from router.errors import StoreFailed
from router.ledger.journal import Admitted, EarlierRun
from router.models import Usage
from router.store import Database, SQLArchive, SQLJournal
from router.store.check import check
from router.store.database import Value
from router.trace.run import RunStatus
from router.trace.values import AnswerWritten
from tests.router.store.entries import DAY, MONTH, NOW, change, ended, opened, rows, spent, start
from tests.router.store.stored import put, run

FAILING = "ALTER TABLE spending RENAME TO elsewhere"
WORKING = "ALTER TABLE elsewhere RENAME TO spending"


async def test_the_way_of_a_run(database: Database, journal: SQLJournal) -> None:
    """It is running, its call is open, then ended; at its end it is read as it was. Each is on record when told."""
    calls = [ended("run-1", 0), ended("run-1", 1, usage=None, outcome="refused", nano_usd=None)]
    assert await journal.begin(start("run-1", request_id="mine")) == Admitted()
    assert await rows(database, "SELECT status, trace, request_id FROM runs") == [("running", None, "mine")]
    for each in calls:
        await journal.open(opened(each))
    assert await rows(database, "SELECT number, outcome FROM calls ORDER BY number") == [(0, "open"), (1, "open")]
    for each in calls:
        journal.settle(each)
    finished = run("run-1", NOW, calls, request_id="mine")
    await journal.finish(finished)

    assert await SQLArchive(database).load("run-1") == finished
    assert await rows(database, "SELECT status, outcome, duration_s FROM runs") == [("finished", "answered", 2.5)]
    assert await rows(database, "SELECT outcome, counted, prompt_tokens, nano_usd FROM calls ORDER BY number") == [
        ("completed", "reported", 10, 7),
        ("refused", "", None, None),
    ]
    assert await spent(database) == {DAY: (1, 12, 7, 0, 0), MONTH: (1, 12, 7, 0, 0)}
    assert await rows(
        database, "SELECT attempts, attempts_without_usage, prompt_tokens, nano_usd FROM usage_hours"
    ) == [(2, 1, 10, 7)]


@pytest.mark.parametrize("status", ["finished", "running"])
async def test_a_request_that_was_made_before(database: Database, journal: SQLJournal, status: RunStatus) -> None:
    """Leads to the run that it began, whether that still runs or not, and counts once."""
    await journal.begin(start("run-1", request_id="mine"))
    if status == "finished":
        await journal.finish(run("run-1", NOW))

    again = await journal.begin(start("run-2", request_id="mine", started_at=NOW + 86399))
    other = await journal.begin(start("run-3", request_id="mine", fingerprint="another"))

    assert (again, other) == (EarlierRun("run-1", status, True), EarlierRun("run-1", status, False))
    assert await rows(database, "SELECT run_id FROM runs") == [("run-1",)]
    assert await spent(database) == {DAY: (1, 0, 0, 0, 0), MONTH: (1, 0, 0, 0, 0)}


@pytest.mark.parametrize("status", ["failed", "cancelled", "interrupted", "finished"])
async def test_a_request_that_is_made_anew(database: Database, journal: SQLJournal, status: RunStatus) -> None:
    """Where the run before came to nothing, or was a day ago, the name goes over to the new run."""
    await put(database, run("run-1", NOW, request_id="mine", status=status))
    later = 86400 if status == "finished" else 1

    assert await journal.begin(start("run-2", request_id="mine", started_at=NOW + later)) == Admitted()
    assert await journal.begin(start("run-3", "acme", request_id="mine")) == Admitted()

    assert await rows(database, "SELECT run_id, request_id FROM runs ORDER BY run_id") == [
        ("run-1", None),
        ("run-2", "mine"),
        ("run-3", "mine"),
    ]


async def test_requests_of_one_name_at_once(database: Database, journal: SQLJournal) -> None:
    """One of them begins; the others wait for it, also where it is taken back."""
    starts = [start(f"run-{number}", request_id="mine") for number in range(20)]
    began = await asyncio.gather(*(journal.begin(each) for each in starts))
    assert began == [Admitted(), *[EarlierRun("run-0", "running", True)] * 19]

    journal.forget("run-0")
    assert await journal.begin(start("run-20", request_id="mine")) == Admitted()
    assert await rows(database, "SELECT run_id FROM runs") == [("run-20",)]


async def test_a_name_that_is_taken_back_and_taken_anew_at_once(
    database: Database, journal: SQLJournal, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is no conflict, be the run before on record or not, so that what comes with it is written in one transaction."""
    await journal.begin(start("run-1", request_id="mine"))
    journal.forget("run-1")
    leaving = asyncio.create_task(journal.begin(start("run-2", request_id="mine")))
    await asyncio.sleep(0)  # it is in the queue
    leaving.cancel()
    journal.forget("run-2")
    assert await journal.begin(start("run-3", request_id="mine")) == Admitted()
    assert await rows(database, "SELECT run_id FROM runs") == [("run-3",)]
    assert "store.failed" not in capsys.readouterr().out


async def test_whatever_is_told_twice_counts_once(database: Database, journal: SQLJournal) -> None:
    """A call that was settled stays as it is, also when its run ends."""
    settled = ended("run-1", 0, Amount(50, 60))
    await journal.begin(start("run-1"))
    await journal.open(opened(settled))
    journal.settle(settled)
    journal.settle(msgspec.structs.replace(settled, usage=Usage(99, 99)))
    journal.discard(opened(settled))
    await journal.finish(run("run-1", NOW, [settled]))
    journal.settle(settled)
    await journal.finish(run("run-1", NOW, [settled]))

    assert await spent(database) == {DAY: (1, 12, 7, 0, 0), MONTH: (1, 12, 7, 0, 0)}
    assert await rows(database, "SELECT prompt_tokens FROM calls") == [(10,)]


async def test_what_never_happened_leaves_no_trace(database: Database, journal: SQLJournal) -> None:
    """Calls that were not made, and runs that did not begin, whether or not they were on record."""
    made = ended("run-1", 0, Amount(50, 60))
    await journal.begin(start("run-1", hold=Amount(5, 6)))
    await journal.open(opened(made))
    journal.discard(opened(made))
    journal.discard(opened(ended("run-1", 1)))
    await journal.reserve_for_answer("run-1", Amount(7, 8))
    assert await spent(database) == {DAY: (1, 0, 0, 7, 8), MONTH: (1, 0, 0, 7, 8)}
    assert await rows(database, "SELECT * FROM calls") == []

    journal.forget("run-1")
    journal.forget("run-2")
    await journal.begin(start("run-3"))
    assert await spent(database) == {DAY: (1, 0, 0, 0, 0), MONTH: (1, 0, 0, 0, 0)}
    assert await rows(database, "SELECT run_id FROM runs") == [("run-3",)]


async def test_the_end_of_a_run_brings_its_calls_to_what_it_says(database: Database, journal: SQLJournal) -> None:
    """Whatever was lost before: ends that were not written, and calls that were on record though nobody heard so."""
    calls = [ended("run-1", number, Amount(50, 60)) for number in range(3)]
    await journal.begin(start("run-1", hold=Amount(1, 1)))
    for each in calls:
        await journal.open(opened(each))
    await journal.finish(run("run-1", NOW, calls[:2]))

    assert await rows(database, "SELECT number, outcome FROM calls ORDER BY number") == [
        (0, "completed"),
        (1, "completed"),
    ]
    assert await spent(database) == {DAY: (1, 24, 14, 0, 0), MONTH: (1, 24, 14, 0, 0)}
    assert (await check(database)).problems == []


@pytest.mark.parametrize("kept", ["nothing", "its row"])
async def test_a_run_that_is_not_on_record(database: Database, journal: SQLJournal, kept: str) -> None:
    """Spends nothing and is not acknowledged: it was never there, or another gateway has closed it."""
    if kept == "its row":
        await put(database, run("run-1", NOW, status="interrupted"))
    for attempt in (journal.open(opened(ended("run-1"))), journal.finish(run("run-1", NOW))):
        with pytest.raises(StoreFailed, match="run-1"):
            await attempt
    assert await rows(database, "SELECT * FROM calls") == []


@pytest.mark.parametrize("lost", ["calls", "calls and run", "calls and run, and it was asked again"])
async def test_what_a_crash_of_the_database_took(database: Database, journal: SQLJournal, lost: str) -> None:
    """Rows that did not wait for the disk are gone, and from the sums too; the end of the run restores them."""
    calls = [ended("run-1", number, Amount(50, 60)) for number in range(3)]
    await journal.begin(start("run-1", request_id="mine", hold=Amount(5, 6)))
    await journal.open(opened(calls[0]))
    journal.settle(calls[0])
    await journal.open(opened(calls[1]))
    await journal.open(opened(calls[2]))
    journal.settle(calls[2])
    await journal.reserve_for_answer("run-1", Amount(5, 6))  # what was told before is written too

    for table in ("calls", "spending", "usage_hours", *["runs"] * ("run" in lost)):
        await change(database, f"DELETE FROM {table}")
    if lost == "calls":
        for period in (DAY, MONTH):
            await change(database, f"INSERT INTO spending VALUES ('default', '{period}', 1, 0, 0, 5, 6)")
    if "again" in lost:
        assert await journal.begin(start("run-4", request_id="mine")) == Admitted()
    finished = run("run-1", NOW, calls, request_id="mine")
    await journal.finish(finished)

    assert await SQLArchive(database).load("run-1") == finished
    assert await rows(database, "SELECT prompt_tokens, reserved_tokens FROM calls ORDER BY number") == [(10, 50)] * 3
    runs = 2 if "again" in lost else 1
    assert await spent(database) == {DAY: (runs, 36, 21, 0, 0), MONTH: (runs, 36, 21, 0, 0)}
    assert (await check(database)).problems == []
    again = "run-4" if "again" in lost else "run-1"
    assert await rows(database, "SELECT run_id FROM runs WHERE request_id = 'mine'") == [(again,)]


async def test_a_redacted_tenant(database: Database, journal: SQLJournal) -> None:
    """Nothing that was said is in the database, from the beginning on."""
    await put(database, tenants=[Tenant("acme", redact=True)])
    assert await journal.begin(start("run-1", "acme")) == Admitted(redact=True)
    await journal.finish(run("run-1", NOW, tenant="acme"))

    stored = await SQLArchive(database).load("run-1")
    assert (stored.redacted, stored.status, stored.duration_s) == (True, "finished", 2.5)
    (row,) = await rows(database, "SELECT request, outcome, trace FROM runs")
    assert row[:2] == ("", "answered")
    assert b"Heat" not in bytes(row[2])


async def test_text_that_a_database_cannot_hold(database: Database, journal: SQLJournal) -> None:
    """A NUL in a question does no harm."""
    assert await journal.begin(start("run-1", request="a\0b", request_id="x\0y")) == Admitted()
    assert await journal.begin(start("run-2", request_id="x\0y")) == EarlierRun("run-1", "running", True)
    finished = run("run-1", NOW, request="a\0b", request_id="x\0y")
    await journal.finish(finished)
    assert await SQLArchive(database).load("run-1") == finished


async def test_a_store_that_fails_for_a_while(database: Database, journal: SQLJournal) -> None:
    """Whoever waits hears so; whatever nobody waits for is written later, and a lost run is on record as failed."""
    calls = [ended("run-1", number, Amount(50, 60)) for number in range(3)]
    await journal.begin(start("run-1"))
    for each in calls[:2]:
        await journal.open(opened(each))
    await journal.begin(start("run-2"))

    await change(database, FAILING)
    journal.settle(calls[0])
    asked = [journal.begin(start("run-3")), journal.open(opened(calls[2])), journal.finish(run("run-2", NOW))]
    heard = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(error) for error in heard] == [StoreFailed] * 3
    await change(database, WORKING)

    journal.settle(calls[1])
    await journal.finish(run("run-1", NOW, calls[:2]))
    assert await rows(database, "SELECT run_id, status FROM runs ORDER BY run_id") == [
        ("run-1", "finished"),
        ("run-2", "failed"),
    ]
    lost = await SQLArchive(database).load("run-2")
    assert (lost.status, lost.error, lost.result) == ("failed", "StoreFailed", None)
    assert not any(isinstance(event, AnswerWritten) for event in lost.events)
    assert await spent(database) == {DAY: (2, 24, 14, 0, 0), MONTH: (2, 24, 14, 0, 0)}
    assert (await check(database)).problems == []


async def test_nobody_waits_behind_what_cannot_be_written(database: Database, journal: SQLJournal) -> None:
    """However much of that there is; it is all written when the store works again."""
    calls = [ended("run-1", number) for number in range(300)]  # more than go into one transaction
    await journal.begin(start("run-1"))
    await asyncio.gather(*(journal.open(opened(call)) for call in calls))

    await change(database, FAILING)
    for call in calls:
        journal.settle(call)
    with pytest.raises(StoreFailed):
        await asyncio.wait_for(journal.begin(start("run-2")), 10)
    await change(database, WORKING)

    await journal.begin(start("run-3"))
    await journal.finish(run("run-1", NOW, calls))
    assert await spent(database) == {DAY: (2, 3600, 2100, 0, 0), MONTH: (2, 3600, 2100, 0, 0)}


class Noted(Database):
    """Notes which transactions were to be on disk, and loses, once, the news that one is."""

    waited: list[bool]
    loses = False

    async def write(self, change: Callable[[Connection], Value], *, on_disk: bool = True) -> Value:
        self.waited.append(on_disk)
        written = await super().write(change, on_disk=on_disk)
        if self.loses:
            self.loses = False
            raise StoreFailed("gone") from OperationalError("COMMIT", None, Exception("gone"))
        return written


async def test_the_disk_is_waited_for_once_a_run(url: str) -> None:
    """Before its end is told to a client; what comes before goes with it. An end that is on disk though the news of it
    was lost stays as it is: another gateway may have given that answer to a client that asked again.
    """
    database = await Noted.open(url)
    assert isinstance(database, Noted)
    database.waited = []
    async with SQLJournal.writing(database) as journal:
        database.waited.clear()
        await journal.begin(start("run-1", request_id="mine"))
        await journal.open(opened(ended("run-1", 0)))
        await journal.reserve_for_answer("run-1", Amount(5, 0))
        assert not any(database.waited)

        journal.settle(ended("run-1", 0))
        database.loses = True
        with pytest.raises(StoreFailed):
            await journal.finish(run("run-1", NOW, [ended("run-1", 0)], request_id="mine"))
        assert any(database.waited)
        assert await journal.begin(start("run-2", request_id="mine")) == EarlierRun("run-1", "finished", True)
    await database.close()


async def test_a_full_disk(tmp_path: object) -> None:
    """Nothing of what could not be written is there; when there is room again, it goes on."""
    database = await Database.open(f"sqlite:///{tmp_path}/runs.db")
    async with SQLJournal.writing(database) as journal:
        (pages,) = (await rows(database, "PRAGMA page_count"))[0]
        await change(database, f"PRAGMA max_page_count={pages + 4}")
        began = 0
        with pytest.raises(StoreFailed):
            while began < 10_000:
                await journal.begin(start(f"run-{began}", request="?" * 1000))
                began += 1
        assert await rows(database, "SELECT count(*) FROM runs") == [(began,)]

        await change(database, "PRAGMA max_page_count=1000000")
        await journal.begin(start("run-last"))
        assert await spent(database) == {DAY: (began + 1, 0, 0, 0, 0), MONTH: (began + 1, 0, 0, 0, 0)}
    await database.close()


async def test_one_entry_that_cannot_be_written(database: Database, journal: SQLJournal) -> None:
    """Harms none of those that come with it."""
    bad = ended("run-1", 0, usage=Usage(2**63, 0))
    good = ended("run-2", 0)
    for each in (bad, good):
        await journal.begin(start(each.run_id))
        await journal.open(opened(each))

    journal.settle(bad)
    journal.settle(good)
    finished = await asyncio.gather(
        journal.finish(run("run-1", NOW, [bad])), journal.finish(run("run-2", NOW, [good])), return_exceptions=True
    )

    assert [type(error) for error in finished] == [StoreFailed, type(None)]
    assert await rows(database, "SELECT run_id, outcome FROM calls ORDER BY run_id") == [
        ("run-1", "open"),
        ("run-2", "completed"),
    ]
    assert await spent(database) == {DAY: (2, 12, 7, 0, 0), MONTH: (2, 12, 7, 0, 0)}


async def test_what_is_told_last_is_written(database: Database) -> None:
    """Leaving the journal waits for it, and takes the gateway off the list."""
    async with SQLJournal.writing(database) as journal:
        await journal.begin(start("run-1"))
        await journal.open(opened(ended("run-1")))
        journal.settle(ended("run-1"))
    assert await rows(database, "SELECT outcome FROM calls") == [("completed",)]
    assert await rows(database, "SELECT * FROM gateways") == []


@pytest.mark.postgres
async def test_a_server_that_drops_its_clients(postgres: Callable[[], str]) -> None:
    """Is connected to again; nothing is lost and nothing counts twice."""
    database = await Database.open(postgres())
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND {}"
    async with SQLJournal.writing(database) as journal:
        call = ended("run-1", 0, Amount(5, 5))
        await journal.begin(start("run-1"))
        await journal.open(opened(call))
        with pytest.raises(StoreFailed):  # by its own hand, in the middle of a transaction
            await change(database, others.format("true"))
        journal.settle(call)
        await rows(database, others.format("pid <> pg_backend_pid()"))
        await journal.finish(run("run-1", NOW, [call]))
    assert await spent(database) == {DAY: (1, 12, 7, 0, 0), MONTH: (1, 12, 7, 0, 0)}
    await database.close()
