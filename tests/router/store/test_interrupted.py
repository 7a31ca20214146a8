"""Runs of dead gateways are closed, with what they had spent; those of live ones are left alone."""

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from router.access import Tenant
from router.amount import Amount
from router.errors import StoreFailed
from router.ledger.journal import Admitted, EarlierRun
from router.models import Usage
from router.store import Database, SQLArchive, SQLJournal
from router.store.check import check
from router.store.gateways import ThisGateway
from tests.router.store.entries import DAY, MONTH, NOW, ended, opened, rows, spent, start
from tests.router.store.stored import put, run

_DYING = """
import asyncio, sys
from router.amount import Amount
from router.store.database import Database
from router.store.journal import SQLJournal
from tests.router.store.entries import ended, opened, start

async def main(url):
    database = await Database.open(url)
    async with SQLJournal.writing(database) as journal:
        await journal.begin(start("run-1", "acme", request_id="mine", hold=Amount(5, 5)))
        for number in range(3):
            await journal.open(opened(ended("run-1", number, Amount(50, 60), tenant="acme")))
        journal.settle(ended("run-1", 0, Amount(50, 60), tenant="acme"))
        await journal.begin(start("run-2", "acme"))
        print("ready", flush=True)
        await asyncio.sleep(60)

asyncio.run(main(sys.argv[1]))
"""


async def _killed(url: str) -> None:
    """Let a gateway of another process begin two runs, and die."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", _DYING, url, stdout=pipe)
    assert child.stdout is not None
    assert await child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    await child.communicate()


async def test_the_runs_of_a_gateway_that_was_killed(database: Database, url: str) -> None:
    """Are closed when the next one starts: ended calls stay, those in flight are charged with their worst case."""
    await put(database, tenants=[Tenant("acme", tokens_per_day=1000)])
    await _killed(url)
    assert await spent(database, "acme") == {DAY: (2, 12, 7, 105, 125), MONTH: (2, 12, 7, 105, 125)}

    async with SQLJournal.writing(database) as journal:
        closed = await SQLArchive(database).load("run-1")
        assert (closed.status, closed.result, closed.request, closed.request_id) == (
            "interrupted",
            None,
            "Who directed Heat?",
            "mine",
        )
        known = ended("run-1", 0, Amount(50, 60), tenant="acme")
        unknown = {"outcome": "interrupted", "usage": None, "nano_usd": None, "first_token_s": None, "duration_s": 0.0}
        cut = [ended("run-1", number, Amount(50, 60), tenant="acme", **unknown) for number in (1, 2)]
        assert closed.calls == (known, *cut)
        assert closed.duration_s == 1.5
        assert await spent(database, "acme") == {DAY: (2, 112, 127, 0, 0), MONTH: (2, 112, 127, 0, 0)}
        assert await rows(database, "SELECT attempts, attempts_without_usage, prompt_tokens FROM usage_hours") == [
            (3, 2, 10)
        ]
        assert (await check(database)).problems == []
        assert await journal.begin(start("run-3", "acme", request_id="mine")) == Admitted(limited=True)


async def test_a_redacted_run(database: Database, url: str) -> None:
    """Stays so when it is closed."""
    await put(database, tenants=[Tenant("acme", redact=True)])
    await _killed(url)
    async with SQLJournal.writing(database):
        closed = await SQLArchive(database).load("run-1")
    assert (closed.status, closed.request, closed.redacted) == ("interrupted", "", True)


async def test_a_gateway_that_was_taken_for_dead(database: Database) -> None:
    """Spends no more on its run, whose end is not acknowledged; and goes on with others."""
    cut = ended("run-1", 0, Amount(5, 5), usage=Usage(1, 1))
    async with SQLJournal.writing(database) as stalled:
        await stalled.begin(start("run-1", hold=Amount(1, 1)))
        await stalled.open(opened(cut))
        async with SQLJournal.writing(database):  # takes another gateway of its own process for its predecessor
            pass

        stalled.settle(cut)
        for attempt in (stalled.open(opened(ended("run-1", 1))), stalled.finish(run("run-1", NOW, [cut]))):
            with pytest.raises(StoreFailed, match="run-1"):
                await attempt
        await stalled.begin(start("run-2"))
        assert await rows(database, "SELECT run_id, status FROM runs ORDER BY run_id") == [
            ("run-1", "interrupted"),
            ("run-2", "running"),
        ]
    assert await spent(database) == {DAY: (2, 5, 5, 0, 0), MONTH: (2, 5, 5, 0, 0)}


async def _seen(database: Database, gateway_id: str, host: str, pid: int, ago_s: float) -> None:
    """A gateway on the list, with a run."""
    await _put_running(database, f"run-{gateway_id}", gateway_id)
    row = f"INSERT INTO gateways VALUES ('{gateway_id}', '{host}', {pid}, {time.time() - ago_s})"
    await database.write(lambda connection: connection.exec_driver_sql(row))


async def _put_running(database: Database, run_id: str, gateway_id: str) -> None:
    await put(database, run(run_id, NOW, status="running"))
    update = f"UPDATE runs SET gateway_id = '{gateway_id}' WHERE run_id = '{run_id}'"
    await database.write(lambda connection: connection.exec_driver_sql(update))


async def test_who_is_dead(database: Database) -> None:
    """Who was not heard of for long, or whose process is gone from this machine; a process elsewhere may be alive."""
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await child.wait()
    own = ThisGateway.new()
    await _seen(database, "silent", "elsewhere", child.pid, 16)
    await _seen(database, "elsewhere", "elsewhere", child.pid, 10)
    await _seen(database, "gone", own.host, child.pid, 0)
    await _seen(database, "parent", own.host, os.getppid(), 10)
    await _seen(database, "before-us", own.host, own.pid, 0)
    await _put_running(database, "run-unlisted", "unlisted")

    async with SQLJournal.writing(database):
        assert await rows(database, "SELECT run_id FROM runs WHERE status = 'running' ORDER BY run_id") == [
            ("run-elsewhere",),
            ("run-parent",),
        ]


@pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="Linux tells its starts apart")
def test_machines_of_one_name() -> None:
    """Are told apart by when they were started: containers of one name may have equal numbers, too."""
    own = ThisGateway.new()
    assert Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip() in own.host
    assert socket.gethostname() in own.host


async def test_a_gateway_is_noticed_to_be_dead_by_those_that_run(database: Database, url: str) -> None:
    """Within seconds, so that whoever waits for its run does not wait for ever."""
    async with SQLJournal.writing(database) as journal:
        await _killed(url)
        again = start("run-3", "acme", request_id="mine")
        async with asyncio.timeout(30):
            while (began := await journal.begin(again)) == EarlierRun("run-1", "running", True):
                pass
        assert began == Admitted()


async def test_runs_to_be_cancelled(database: Database) -> None:
    """Whoever asked for it in another process is heard by the one that runs it, and by no other."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    await _seen(database, "elsewhere", "elsewhere", 1, 0)
    async with SQLJournal.writing(database, on_cancel=heard.put_nowait) as journal, asyncio.timeout(30):
        for number in (1, 2):
            await journal.begin(start(f"run-{number}"))
        for run_id in ("run-elsewhere", "run-2"):
            await SQLArchive(database).request_cancel(run_id)
        assert await heard.get() == "run-2"
    assert {heard.get_nowait() for _ in range(heard.qsize())} <= {"run-2"}
