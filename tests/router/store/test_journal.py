"""The journal: every record is written once, before it is announced."""

import asyncio
from pathlib import Path
from types import NoneType

import msgspec
import pytest

from router.access import Tenant
from router.amount import Amount
from router.errors import StoreFailed
from router.ledger.journal import Admitted, EarlierRun
from router.models import Completion, Message, Usage
from router.store import Database, LogJournal, SQLArchive
from router.store.check import check
from router.store.follower import own_log
from router.store.log import read_segment, segments
from router.trace.run import RunStatus
from router.trace.turns import AgentId, Searched
from router.trace.values import SearchRecord
from tests.router.store.entries import DAY, MONTH, NOW, change, ended, opened, rows, spent, start
from tests.router.store.stored import EXECUTIONS, put, run

FAILING = "ALTER TABLE spending RENAME TO elsewhere"
WORKING = "ALTER TABLE elsewhere RENAME TO spending"


async def test_a_run_is_stored_as_running_and_then_with_its_result(
    database: Database, journal: LogJournal
) -> None:
    """While it runs it has its calls so far, at its end also its sums."""
    calls = [ended("run-1", 0), ended("run-1", 1, usage=None, outcome="refused", nano_usd=None)]
    archive = SQLArchive(database, journal.calls)
    assert await journal.begin(start("run-1", request_id="mine")) == Admitted()
    assert await rows(database, "SELECT status, trace, request_id FROM runs") == [
        ("running", None, "mine")
    ]
    for call in calls:
        await journal.open(opened(call))
    journal.settle(calls[0])
    assert (await archive.load("run-1")).calls == (calls[0],)
    assert journal.under_way() == ([calls[0]], [opened(calls[1])])
    journal.settle(calls[1])
    finished = run("run-1", NOW, calls, request_id="mine")
    await journal.finish(finished)

    assert await archive.load("run-1") == finished
    assert await rows(database, "SELECT status, outcome, duration_s FROM runs") == [
        ("finished", "answered", 2.5)
    ]
    assert await rows(
        database, "SELECT outcome, counted, prompt_tokens, nano_usd FROM calls ORDER BY number"
    ) == [
        ("completed", "reported", 10, 7),
        ("refused", "", None, None),
    ]
    assert await spent(database) == {DAY: (1, 12, 7), MONTH: (1, 12, 7)}
    assert await rows(
        database,
        "SELECT attempts, attempts_without_usage, prompt_tokens, nano_usd FROM usage_hours",
    ) == [(2, 1, 10, 7)]


@pytest.mark.parametrize("status", ["finished", "running"])
async def test_a_repeated_request_returns_its_run_and_counts_once(
    database: Database, journal: LogJournal, status: RunStatus
) -> None:
    """The run may be running or ended."""
    await journal.begin(start("run-1", request_id="mine"))
    if status == "finished":
        await journal.finish(run("run-1", NOW))

    again = await journal.begin(start("run-2", request_id="mine", started_at=NOW + 86399))
    other = await journal.begin(start("run-3", request_id="mine", fingerprint="another"))

    assert (again, other) == (EarlierRun("run-1", status, True), EarlierRun("run-1", status, False))
    assert await rows(database, "SELECT run_id FROM runs") == [("run-1",)]
    await journal.begin(start("run-4"))
    # When they begin, or when they have ended
    counted = 2 if database.shared else int(status == "finished")
    assert (await spent(database)).get(DAY, (0,))[0] == counted


@pytest.mark.parametrize("status", ["failed", "cancelled", "interrupted", "finished"])
@pytest.mark.parametrize("where", ["in the database", "here"])
async def test_the_name_of_a_failed_or_old_request_passes_to_the_new_run(
    database: Database, journal: LogJournal, status: RunStatus, where: str
) -> None:
    """The run before failed, or began more than a day ago. The new run resumes it if it was
    interrupted at this gateway.
    """
    before = run("run-1", NOW, request_id="mine", status=status)
    if where == "here":
        await journal.begin(start("run-1", request_id="mine"))
        await journal.finish(before)
    else:
        await put(database, before)
    later = 86400 if status == "finished" else 1

    admitted = await journal.begin(start("run-2", request_id="mine", started_at=NOW + later))
    assert isinstance(admitted, Admitted)
    assert bool(admitted.resumed) == (where == "here" and status == "interrupted")
    assert await journal.begin(start("run-3", "acme", request_id="mine")) == Admitted()

    assert await rows(database, "SELECT run_id, request_id FROM runs ORDER BY run_id") == [
        ("run-1", None),
        ("run-2", "mine"),
        ("run-3", "mine"),
    ]


async def test_of_concurrent_equal_requests_one_begins(
    database: Database, journal: LogJournal
) -> None:
    """The others wait for it, even if it is withdrawn."""
    starts = [start(f"run-{number}", request_id="mine") for number in range(20)]
    began = await asyncio.gather(*(journal.begin(run_start) for run_start in starts))
    first = f"run-{began.index(Admitted())}"
    assert [admission for admission in began if admission != Admitted()] == [
        EarlierRun(first, "running", True)
    ] * 19

    journal.forget(first)
    assert await journal.begin(start("run-20", request_id="mine")) == Admitted()
    assert await rows(database, "SELECT run_id FROM runs") == [("run-20",)]


async def test_records_written_twice_count_once(database: Database, journal: LogJournal) -> None:
    """A settled call stays unchanged, even when its run ends."""
    settled = ended("run-1", 0, Amount(50, 60))
    await journal.begin(start("run-1"))
    await journal.open(opened(settled))
    journal.settle(settled)
    journal.settle(msgspec.structs.replace(settled, usage=Usage(99, 99)))
    await journal.finish(run("run-1", NOW, [settled]))
    journal.settle(settled)
    with pytest.raises(StoreFailed, match="run-1"):
        await journal.finish(run("run-1", NOW, [settled]))

    assert await spent(database) == {DAY: (1, 12, 7), MONTH: (1, 12, 7)}
    assert await rows(database, "SELECT prompt_tokens FROM calls") == [(10,)]


async def test_an_unknown_run_spends_nothing_and_is_not_acknowledged(
    database: Database, journal: LogJournal
) -> None:
    for attempt in (journal.open(opened(ended("run-1"))), journal.finish(run("run-1", NOW))):
        with pytest.raises(StoreFailed, match="run-1"):
            await attempt
    assert await rows(database, "SELECT * FROM calls") == []


async def test_texts_of_a_redacted_tenant_are_in_neither_database_nor_log(
    database: Database, journal: LogJournal, tmp_path: Path
) -> None:
    await put(database, tenants=[Tenant("acme", redact=True)])
    async with asyncio.timeout(10):
        while await journal.begin(start("run-0", "acme", request="")) != Admitted(redact=True):
            journal.forget("run-0")  # the setting has no effect yet
            await asyncio.sleep(0.05)
    await journal.begin(start("run-1", "acme"))
    journal.turn(
        "run-1",
        AgentId("delegation"),
        (Message("user", "Who directed Heat?"),),
        Completion("Heat", "stop"),
    )
    journal.note("run-1", Searched(AgentId("execution", 0), SearchRecord("Heat", ())))
    await journal.finish(run("run-1", NOW, tenant="acme"))

    stored = await SQLArchive(database).load("run-1")
    assert (stored.redacted, stored.status, stored.duration_s) == (True, "finished", 2.5)
    (row,) = await rows(database, "SELECT request, outcome, trace FROM runs WHERE run_id = 'run-1'")
    assert row[:2] == ("", "answered")
    assert b"Heat" not in bytes(row[2])
    assert [file for file in tmp_path.rglob("*-*.log") if b"Heat" in file.read_bytes()] == []


async def test_a_nul_in_a_question_is_stored_without_an_error(
    database: Database, journal: LogJournal
) -> None:
    assert await journal.begin(start("run-1", request="a\0b", request_id="x\0y")) == Admitted()
    assert await journal.begin(start("run-2", request_id="x\0y")) == EarlierRun(
        "run-1", "running", True
    )
    finished = run("run-1", NOW, request="a\0b", request_id="x\0y")
    await journal.finish(finished)
    assert await SQLArchive(database).load("run-1") == finished


async def test_runs_continue_while_the_database_fails(
    database: Database, journal: LogJournal
) -> None:
    """The log has them, and the database catches up.

    Where gateways share the database, no run begins meanwhile and none is acknowledged.
    """
    if database.shared:
        await journal.begin(start("run-1"))
    await change(database, FAILING)
    if database.shared:
        with pytest.raises(StoreFailed):
            await journal.begin(start("run-2"))
    else:
        await journal.begin(start("run-1"))
    await journal.open(opened(ended("run-1")))
    finishing = asyncio.create_task(journal.finish(run("run-1", NOW, [ended("run-1")])))
    if not database.shared:
        await finishing
    reading = asyncio.create_task(SQLArchive(database).load("run-1"))
    await database.write(lambda connection: connection.exec_driver_sql(WORKING), behind=True)
    await finishing
    if database.shared:
        reading = asyncio.create_task(SQLArchive(database).load("run-1"))

    assert (await reading).status == "finished"
    assert await spent(database) == {DAY: (1, 12, 7), MONTH: (1, 12, 7)}
    assert (await check(database)).problems == []


async def test_a_change_that_cannot_be_written_affects_no_other(
    database: Database, journal: LogJournal
) -> None:
    """Its run does not stay running."""
    calls = {"run-1": ended("run-1", 0, usage=Usage(2**63, 0)), "run-2": ended("run-2", 0)}
    for run_id, call in calls.items():
        await journal.begin(start(run_id))
        await journal.open(opened(call))
    finishing = (journal.finish(run(run_id, NOW, [call])) for run_id, call in calls.items())
    outcomes = await asyncio.gather(*finishing, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        StoreFailed if database.shared else NoneType,
        NoneType,
    ]
    assert await rows(database, "SELECT run_id, outcome FROM calls ORDER BY run_id") == [
        ("run-2", "completed")
    ]
    assert await rows(database, "SELECT status FROM runs ORDER BY run_id") == [
        ("failed",),
        ("finished",),
    ]
    assert await spent(database) == {DAY: (2, 12, 7), MONTH: (2, 12, 7)}


async def test_closing_the_journal_writes_the_last_records(database: Database) -> None:
    """The log is empty then."""
    log = own_log(database)
    async with LogJournal.writing(database, log) as journal:
        await journal.begin(start("run-1"))
        await journal.open(opened(ended("run-1")))
        await journal.finish(run("run-1", NOW, [ended("run-1")]))
    assert await rows(database, "SELECT outcome FROM calls") == [("completed",)]
    assert segments(log.folder) == []


async def test_a_trace_is_the_fold_of_its_turns(tmp_path: Path) -> None:
    """The last record repeats nothing of the turns and searches."""
    database = await Database.open(f"sqlite:///{tmp_path}/runs.db")
    folder = database.log_folder
    async with LogJournal.writing(database) as journal:
        await journal.begin(start("run-1"))
        for number, execution in enumerate(EXECUTIONS):
            conversation = execution.conversation
            journal.turn(
                "run-1",
                AgentId("execution", number),
                conversation.messages,
                conversation.outputs[0],
            )
            for search in execution.searches:
                journal.note("run-1", Searched(AgentId("execution", number), search))
        await journal.finish(run("run-1", NOW))
        (frame,) = read_segment(segments(folder)[0]).frames[-1:]
        assert frame.payload.count(b"Heat is a film") == len(EXECUTIONS)  # in the reports only
    await database.close()


async def test_a_cancel_request_reaches_the_gateway_of_the_run(
    database: Database, url: str
) -> None:
    """Another gateway makes it. A run that has ended is not cancelled."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    beside = await Database.open(url)
    async with (
        LogJournal.writing(database, on_cancel=heard.put_nowait) as journal,
        asyncio.timeout(30),
    ):
        for number in (1, 2):
            await journal.begin(start(f"run-{number}"))
        await journal.finish(run("run-1", NOW))
        await SQLArchive(database).load("run-2")  # wait for the database
        for number in (1, 2):
            await SQLArchive(beside).request_cancel(f"run-{number}")
        assert await heard.get() == "run-2"
    assert {heard.get_nowait() for _ in range(heard.qsize())} <= {"run-2"}
    await beside.close()
