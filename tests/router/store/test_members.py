"""Gateways that share a PostgreSQL: liveness, closing of runs, and shared quotas."""

import asyncio
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from router.access import Tenant
from router.amount import Amount
from router.errors import QuotaExhausted, StoreFailed
from router.ledger.journal import Admitted, EarlierRun
from router.models import Completion, Message, Usage
from router.store import Database, LogJournal, SQLArchive
from router.store.check import check
from router.store.log import RunLog
from router.store.members import _fence
from router.store.quotas import names
from router.testing.postgres import running_postgres
from router.trace import Call
from router.trace.turns import AgentId
from tests.router.store.disks import no_file_beyond
from tests.router.store.entries import DAY, MONTH, NOW, change, ended, opened, rows, spent, start
from tests.router.store.gateway import LONG_S, WORST, gateway
from tests.router.store.stored import put, run
from tests.router.store.test_follower import Counted
from tests.router.store.test_quota import MINUTE, keyed

pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def _keep_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that joins does not delete the sums of the minute of `NOW`."""
    monkeypatch.setattr("router.store.journal._OVER_FOR_ALL_S", LONG_S)


@pytest.fixture
def url(postgres: Callable[[], str]) -> str:
    """Address of an empty database."""
    return postgres()


@asynccontextmanager
async def journals(url: str, count: int) -> AsyncIterator[list[LogJournal]]:
    """Open journals of this many gateways in one process."""
    databases = [await Database.open(url) for _ in range(count)]
    writing = [LogJournal.writing(database) for database in databases]
    try:
        yield [await journal.__aenter__() for journal in writing]
    finally:
        for journal in reversed(writing):
            await journal.__aexit__(None, None, None)
        for database in databases:
            await database.close()


async def eventually(met: Callable[[], Awaitable[object]]) -> None:
    """Wait until a condition is met; a refusal counts as not met."""
    async with asyncio.timeout(60):
        while True:
            with suppress(QuotaExhausted, StoreFailed):
                if await met():
                    return
            await asyncio.sleep(0.05)


async def until(database: Database, query: str, wanted: Sequence[tuple[object, ...]]) -> None:
    """Wait until the query returns these rows."""

    async def is_found() -> bool:
        return await rows(database, query) == wanted

    await eventually(is_found)


async def leased(database: Database) -> dict[str, int]:
    """Return leased tokens by period, over all gateways."""
    leases = await rows(database, "SELECT period, sum(tokens) FROM leases GROUP BY period")
    return {period: int(tokens) for period, tokens in leases if tokens}


@pytest.mark.parametrize(("limit", "period"), [("day", DAY), ("minute", MINUTE)])
async def test_three_processes_use_a_quota_fully_and_never_exceed_it(
    url: str, limit: str, period: str
) -> None:
    """The quota bounds spending plus leases."""
    database = await Database.open(url)
    limits: dict[str, Any] = {f"tokens_per_{limit}": 5000, "nano_usd_per_month": 10**6}
    await put(database, tenants=[Tenant("acme", **limits)])
    async with gateway(url) as first, gateway(url) as second, gateway(url) as third:
        children = [first, second, third]
        for name, child in zip("abc", children, strict=True):
            child.tell(f"spend(journal, 'run-{name}', 20)")
        telling = asyncio.gather(*(child.outcome() for child in children))
        maximum = 0
        while not telling.done():
            taken = (
                "SELECT tokens + (SELECT coalesce(sum(tokens), 0) FROM leases WHERE period = "
                ":day) FROM spending"
            )
            taken_rows = await rows(database, f"{taken} WHERE period = :day", day=period)
            maximum = max(maximum, *(int(sums) for (sums,) in taken_rows), 0)
        counts = await telling
    assert 4000 < maximum <= 5000
    in_period = "SELECT tokens FROM spending WHERE period = :day AND tenant = 'acme'"
    ((tokens,),) = await rows(database, in_period, day=period)
    assert 4900 < tokens <= 5000
    assert await rows(
        database, "SELECT count(*), sum(prompt_tokens + completion_tokens) FROM calls"
    ) == [(sum(map(int, counts)), tokens)]
    assert (
        await rows(database, "SELECT * FROM leases"),
        await rows(database, "SELECT * FROM gateways"),
    ) == ([], [])
    assert (await check(database)).problems == []
    await database.close()


async def test_runs_of_a_killed_gateway_are_closed_by_others(url: str) -> None:
    """Its possible spending counts until its log is read, then its actual spending does."""
    database = await Database.open(url)
    await put(database, tenants=[Tenant("acme", tokens_per_day=1000)])
    async with gateway(url) as child:
        assert await child.do(
            "journal.begin(start('run-1', 'acme', request_id='mine', hold=Amount(5, 5)))"
        )
        for number in range(3):
            await child.do(
                f"journal.open(opened(ended('run-1', {number}, Amount(50, 60), tenant='acme')))"
            )
        await child.do("journal.settle(ended('run-1', 0, Amount(50, 60), tenant='acme'))")
        await child.do("journal.begin(start('run-2', 'acme'))")
        async with journals(url, 1) as (journal,):
            await child.kill()
            assert await journal.begin(start("run-3", "acme", request_id="mine")) == EarlierRun(
                "run-1", "running", True
            )
            closed = "SELECT run_id, status FROM runs ORDER BY run_id"
            await until(database, closed, [("run-1", "interrupted"), ("run-2", "interrupted")])
            assert await journal.begin(start("run-3", "acme", request_id="mine")) == Admitted(
                limited=True
            )
            kept = (await leased(database))[DAY]
            assert kept >= 12 + 100 + 5
            with pytest.raises(QuotaExhausted) as refused:
                await journal.open(
                    opened(ended("run-3", 0, Amount(1000 - kept + 1), tenant="acme"))
                )
            assert refused.value.contended
            await journal.open(opened(ended("run-3", 0, Amount(1000 - kept), tenant="acme")))

            async with journals(url, 1):  # takes the free log
                assert (await spent(database, "acme"))[DAY] == (3, 112, 127)
                known = await SQLArchive(database).load("run-1")
                assert (known.status, len(known.calls), known.request_id) == (
                    "interrupted",
                    3,
                    "mine",
                )
                await journal.open(
                    opened(ended("run-3", 1, Amount(1000 - 112 - (1000 - kept)), tenant="acme"))
                )
            await journal.finish(run("run-3", NOW, tenant="acme"))
    assert (await check(database)).problems == []
    await database.close()


async def test_a_gateway_that_was_stopped_too_long_loses_its_runs_and_rejoins(url: str) -> None:
    """Other gateways closed the runs meanwhile."""
    database = await Database.open(url)
    await put(database, tenants=[Tenant("acme", tokens_per_day=1000, redact=True)])
    call = "ended('run-1', 0, Amount(50, 60), tenant='acme')"
    async with journals(url, 1) as (journal,), gateway(url) as child:
        await child.do("journal.begin(start('run-1', 'acme', request_id='mine'))")
        await child.do(f"journal.open(opened({call}))")
        child.process.send_signal(signal.SIGSTOP)
        await until(database, "SELECT status FROM runs", [("interrupted",)])
        assert await journal.begin(start("run-2", "acme", request_id="mine")) == Admitted(
            limited=True, redact=True
        )
        child.tell(f"journal.open(opened({call}))")
        child.tell("journal.finish(run('run-1', NOW, tenant='acme'))")
        child.process.send_signal(signal.SIGCONT)
        assert (await child.outcome(), await child.outcome()) == ("StoreFailed", "StoreFailed")

        async def admitted() -> bool:
            return (await child.do("journal.begin(start('run-3', 'acme'))")).startswith("Admitted")

        await eventually(admitted)
        assert await child.do("journal.finish(run('run-3', NOW, tenant='acme'))") == "None"
        await journal.finish(run("run-2", NOW, tenant="acme"))
        await until(database, "SELECT count(*) FROM calls", [(1,)])
    assert await rows(database, "SELECT run_id, status, request_id FROM runs ORDER BY run_id") == [
        ("run-1", "interrupted", None),
        ("run-2", "finished", "mine"),
        ("run-3", "finished", None),
    ]
    cut = await SQLArchive(database).load("run-1")
    assert (cut.redacted, [call.outcome for call in cut.calls]) == (True, ["interrupted"])
    assert (await spent(database, "acme"))[DAY] == (3, 50, 60)
    assert (await check(database)).problems == []
    await database.close()


async def test_a_failed_end_of_a_fenced_gateway_is_written_once(url: str, tmp_path: Path) -> None:
    """It is written as soon as possible, and the gateway continues its background work."""
    database = await Database.open(url)
    log = RunLog.open(tmp_path / "log")
    cancelled = asyncio.Queue[str]()
    health = asyncio.Queue[str | None]()
    watched = LogJournal.writing(
        database, log, on_cancel=cancelled.put_nowait, on_health=health.put_nowait
    )
    async with watched as journal, asyncio.timeout(30):
        await journal.begin(start("run-1"))
        journal.turn(
            "run-1",
            AgentId("delegation"),
            (Message("user", "?" * 2_000_000),),
            Completion("", "stop"),
        )
        await asyncio.sleep(0)  # wait until it is written
        with no_file_beyond(log.end.offset):
            with pytest.raises(StoreFailed, match="cannot be written"):
                await journal.finish(run("run-1", NOW))
            await change(database, "DELETE FROM gateways")
            assert await cancelled.get() == "run-1"
        await until(database, "SELECT status FROM runs", [("interrupted",)])
        while not health.empty():
            health.get_nowait()
        while await health.get():
            pass
    assert (await check(database)).problems == []
    await database.close()


@asynccontextmanager
async def fenceable(url: str) -> AsyncIterator[tuple[Database, LogJournal, Callable[..., Any]]]:
    """Open a journal. Also yield a function that closes the runs of the journal's gateway, as
    another gateway does if this one seems dead, and waits until this one has noticed.
    """
    database = await Database.open(url)
    given_up = asyncio.Queue[str]()

    async def fence(run_id: str) -> None:
        (member,) = await rows(database, "SELECT epoch, session FROM gateways")
        await database.write(_fence, *member)
        assert await given_up.get() == run_id
        rejoined = "SELECT epoch > :epoch FROM gateways"

        async def is_back() -> bool:
            return await rows(database, rejoined, epoch=member[0]) == [(True,)]

        await eventually(is_back)

    watched = LogJournal.writing(database, on_cancel=given_up.put_nowait)
    async with watched as journal, asyncio.timeout(60):
        yield database, journal, fence
    await database.close()


async def resumed(journal: LogJournal, run_id: str, now: float) -> Any:
    """Begin a run with the `request_id` "mine", as soon as the journal admits runs. Return the
    interrupted run that it resumes.
    """
    repetition = start(run_id, request_id="mine", started_at=now)
    admitted = list[Admitted | EarlierRun]()

    async def begins() -> bool:
        admitted.append(await journal.begin(repetition))
        return True

    await eventually(begins)
    assert isinstance(admitted[0], Admitted)
    return admitted[0].resumed


async def test_a_run_of_a_fenced_gateway_is_resumed_without_a_restart(url: str) -> None:
    """The second time, too: calls and turns of the first run are not lost."""
    now = time.time()
    prompt = (Message("user", "Which film?"),)
    agent = AgentId("delegation")
    async with fenceable(url) as (database, journal, fence):
        await journal.begin(start("run-1", request_id="mine", started_at=now))
        for number in (1, 2):
            await journal.open(opened(ended("run-1", number, started_at=now)))
        journal.settle(ended("run-1", 1, started_at=now))
        journal.turn("run-1", agent, prompt, Completion("Heat", "stop"))
        await fence("run-1")

        for run_id in ("run-2", "run-3"):
            before = await resumed(journal, run_id, now)
            calls = [(call.run_id, call.number, call.outcome) for call in before.calls]
            assert calls == [("run-1", 1, "completed"), ("run-1", 2, "interrupted")]
            completion = before.turns[-1].next_turn(agent, prompt)
            assert completion == Completion("Heat", "stop")
            if run_id == "run-2":
                await fence(run_id)
        await journal.finish(run("run-3", now, resumed_from="run-2", request_id="mine"))
        statuses = await rows(database, "SELECT status FROM runs ORDER BY run_id")
        assert statuses == [("interrupted",), ("interrupted",), ("finished",)]
        assert (await check(database)).problems == []


async def test_a_cancelled_run_of_a_fenced_gateway_is_not_resumed(url: str) -> None:
    """The other gateway has closed it as cancelled."""
    now = time.time()
    async with fenceable(url) as (database, journal, fence):
        await journal.begin(start("run-1", request_id="mine", started_at=now))
        await change(database, "UPDATE runs SET cancel_requested = true")
        await fence("run-1")

        async def is_dropped() -> bool:
            return journal.unfinished("run-1") is None

        await eventually(is_dropped)
        assert await rows(database, "SELECT status FROM runs") == [("cancelled",)]
        assert await resumed(journal, "run-2", now) is None
        await journal.finish(run("run-2", now, request_id="mine"))


async def test_a_cancelled_journal_is_closed_properly(url: str) -> None:
    """For example by a second signal: the gateway leaves the group, and its log is empty."""
    database = await Database.open(url)
    log = RunLog.open(Path(database.log_folder) / "1")

    async def serve() -> None:
        async with LogJournal.writing(database, log) as journal:
            await journal.begin(start("run-1", hold=Amount(5, 5)))
            await journal.finish(run("run-1", NOW))
            serving.set()
            await asyncio.Future()

    serving = asyncio.Event()
    gateway = asyncio.create_task(serve())
    await serving.wait()
    gateway.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gateway
    for table in ("gateways", "leases"):
        assert await rows(database, f"SELECT * FROM {table}") == []
    assert not list(log.folder.glob("*.log"))
    await database.close()


async def test_a_run_requested_during_shutdown_is_refused(url: str) -> None:
    """It does not wait."""
    may = threading.Event()
    database = await Counted.open(url)
    assert isinstance(database, Counted)
    async with LogJournal.writing(database) as journal:
        held = asyncio.create_task(database.write(lambda _connection: may.wait(10)))
        await database.until(lambda: database.begun > database.done)
        before = database.begun
        beginning = asyncio.create_task(journal.begin(start("run-1")))
        beginning.add_done_callback(lambda _task: may.set())
        await database.until(lambda: database.begun > before)
    with pytest.raises(StoreFailed):
        await asyncio.wait_for(beginning, 5)
    await held
    await database.close()


async def test_of_equal_requests_at_two_gateways_one_begins(url: str) -> None:
    async with journals(url, 2) as both:
        for turn in range(20):
            starts = [
                start(f"run-{turn}-{number}", request_id=f"mine-{turn}") for number in range(4)
            ]
            begun = await asyncio.gather(
                *(both[number % 2].begin(run_start) for number, run_start in enumerate(starts))
            )
            first = begun.index(Admitted())
            assert begun.count(EarlierRun(f"run-{turn}-{first}", "running", True)) == 3
            await both[first % 2].finish(run(f"run-{turn}-{first}", NOW, request_id=f"mine-{turn}"))


async def test_a_session_restored_within_the_grace_time_keeps_its_gateway(url: str) -> None:
    database = await Database.open(url)
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND "
        "objsubid = 2 AND granted"
    )
    async with journals(url, 2) as (journal, _):
        await journal.begin(start("run-1"))
        members = await rows(database, "SELECT epoch FROM gateways ORDER BY epoch")
        assert len(await rows(database, cut)) == 2
        await until(database, "SELECT session FROM gateways", [(2,), (2,)])
        assert await rows(database, "SELECT epoch FROM gateways ORDER BY epoch") == members
        await journal.open(opened(ended("run-1")))
        await journal.finish(run("run-1", NOW, [ended("run-1")]))
        await journal.begin(start("run-2"))
        await journal.finish(run("run-2", NOW))
    assert await rows(database, "SELECT status FROM runs") == [("finished",)] * 2
    await database.close()


async def test_idle_leases_are_returned(url: str) -> None:
    """They return soon after their run ends, so that another gateway gets them, and all of them
    when the gateway ends.
    """
    database = await Database.open(url)
    await put(database, tenants=[Tenant("acme", tokens_per_day=1000, tokens_per_month=10_000)])
    call = ended("run-1", 0, Amount(100), tenant="acme", usage=Usage(1, 1), nano_usd=None)
    async with journals(url, 2) as (first, second):
        await first.begin(start("run-1", "acme"))
        await first.open(opened(call))
        assert 100 < (await leased(database))[DAY] < 300
        await until(
            database,
            "SELECT period, sum(tokens) FROM leases GROUP BY period ORDER BY 1",
            [(MONTH, 100), (DAY, 100)],
        )
        first.settle(call)
        await first.finish(run("run-1", NOW, [call], tenant="acme"))
        await until(database, "SELECT * FROM leases", [])
        await second.begin(start("run-2", "acme", hold=Amount(998)))
        with pytest.raises(QuotaExhausted) as refused:
            await first.begin(start("run-3", "acme", hold=Amount(1)))
        assert (refused.value.contended, refused.value.retry_after_s) == (True, 1.0)
        await second.reserve_for_answer("run-2", Amount(0, 0))
        await eventually(lambda: first.begin(start("run-3", "acme", hold=Amount(998))))
        for journal, run_id in ((first, "run-3"), (second, "run-2")):
            await journal.finish(run(run_id, NOW, tenant="acme"))
    assert await leased(database) == {}
    assert (await spent(database, "acme"))[DAY] == (3, 2, 0)
    await database.close()


async def test_leases_of_past_periods_are_deleted_when_a_gateway_joins(url: str) -> None:
    """Their logs may never be read again."""
    database = await Database.open(url)
    now = time.time()
    kept = [*names(now), *names(now - 86400)]
    for period in {*kept, *names(now - 3 * 86400), "2026-09", "2026-10-31"}:
        await change(database, f"INSERT INTO leases VALUES ('acme', '{period}', 'gone', 5, 7)")
    async with journals(url, 1):
        left = await rows(database, "SELECT period FROM leases")
    assert {*kept} <= {period for (period,) in left} <= {*kept, names(now - 3 * 86400)[2]}
    await database.close()


@pytest.mark.parametrize(
    "limit", ["requests_per_day", "requests_per_minute", "runs_in_flight", "key"]
)
async def test_runs_are_counted_over_all_gateways(url: str, limit: str) -> None:
    """Requests and running runs count; withdrawn ones do not."""
    database = await Database.open(url)
    if limit == "key":
        await keyed(database, requests_per_minute=5)
    else:
        await put(database, tenants=[Tenant("acme", **{limit: 5})])  # type: ignore[arg-type]
    async with journals(url, 2) as both:
        starts = [start(f"run-{number}", "acme") for number in range(12)]
        tried = (both[number % 2].begin(run_start) for number, run_start in enumerate(starts))
        begun = await asyncio.gather(*tried, return_exceptions=True)
        admitted = [number for number, outcome in enumerate(begun) if outcome == Admitted()]
        assert len(admitted) == 5
        assert (
            sum(isinstance(outcome, QuotaExhausted) and limit in str(outcome) for outcome in begun)
            == 7
        )
        first = admitted[0]
        both[first % 2].forget(f"run-{first}")
        await eventually(lambda: both[1 - first % 2].begin(start("run-again", "acme")))
        await both[1 - first % 2].finish(run("run-again", NOW, tenant="acme"))
        for number in admitted[1:]:
            await both[number % 2].finish(run(f"run-{number}", NOW, tenant="acme"))
    assert (await spent(database, "acme"))[DAY][0] == 5
    await database.close()


async def test_a_cancel_request_reaches_only_the_gateway_of_the_run(url: str) -> None:
    """Any other gateway can make the request."""
    database = await Database.open(url)
    heard: asyncio.Queue[str] = asyncio.Queue()
    others: asyncio.Queue[str] = asyncio.Queue()
    async with (
        LogJournal.writing(database, on_cancel=heard.put_nowait) as journal,
        LogJournal.writing(database, on_cancel=others.put_nowait) as other,
        asyncio.timeout(30),
    ):
        await journal.begin(start("run-1"))
        await other.begin(start("run-2"))
        await SQLArchive(database).request_cancel("run-1")
        assert await heard.get() == "run-1"
        await journal.finish(run("run-1", NOW, status="cancelled"))
        await other.finish(run("run-2", NOW))
    assert others.empty()
    await database.close()


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_cancelled_run_stays_cancelled_when_its_gateway_is_killed(
    url: str, *, fenced: bool
) -> None:
    """Also if nobody closes it before the gateway starts again. It cannot be resumed, and its calls
    are booked.
    """
    database = await Database.open(url)
    statuses = "SELECT run_id, status FROM runs ORDER BY run_id"
    closed = [("run-1", "cancelled"), ("run-2", "interrupted")]
    async with gateway(url) as child:
        for run_id in ("run-1", "run-2"):
            await child.do(f"journal.begin(start('{run_id}', started_at={time.time()}))")
            await child.do(f"journal.open(opened(ended('{run_id}')))")
        await SQLArchive(database).request_cancel("run-1")
        if fenced:
            async with journals(url, 1):
                await child.kill()
                await until(database, statuses, closed)
        else:
            await child.kill()
    for _ in range(2):  # a second start reads the same log
        async with journals(url, 1) as (journal,):
            assert await rows(database, statuses) == closed
            assert journal.unfinished("run-1") is None
            assert journal.unfinished("run-2") is not None
    cancelled = await SQLArchive(database).load("run-1")
    assert [call.outcome for call in cancelled.calls] == ["interrupted"]
    assert cancelled.error == "RunCancelled: Run run-1 was cancelled."
    assert (await check(database)).problems == []
    await database.close()


async def test_a_run_is_resumed_though_its_repetition_was_killed_as_it_began(url: str) -> None:
    """The repetition is in the database, but not yet in the log. It made no call."""
    database = await Database.open(url)
    begin = f"journal.begin(start('{{}}', request_id='mine', started_at={time.time()}))"
    async with gateway(url) as child:
        await child.do(begin.format("run-1"))
        await child.do("journal.open(opened(ended('run-1')))")
        await child.do("journal.settle(ended('run-1'))")
        await child.kill()
    async with gateway(url) as child:
        await child.do("setattr(journal._log, 'append', dies)")
        child.tell(begin.format("run-2"))
        await child.process.wait()
    statuses = "SELECT run_id, status, request_id FROM runs ORDER BY run_id"
    async with journals(url, 1) as (journal,):
        assert await rows(database, statuses) == [
            ("run-1", "interrupted", None),
            ("run-2", "interrupted", "mine"),
        ]
        now = time.time()
        admitted = await journal.begin(start("run-3", request_id="mine", started_at=now))
        assert isinstance(admitted, Admitted)
        assert admitted.resumed
        assert [call.run_id for call in admitted.resumed.calls] == ["run-1"]
        await journal.finish(run("run-3", now, resumed_from="run-1", request_id="mine"))
    assert (await check(database)).problems == []
    await database.close()


async def test_a_restart_of_postgresql_under_load_loses_nothing() -> None:
    """Acknowledged runs are there once, spending and leases agree, and no gateway is taken for
    dead.
    """
    with running_postgres(durable=True) as server:
        database = await Database.open(server.url)
        await put(database, tenants=[Tenant("acme", tokens_per_day=10**6)])
        acknowledged: set[str] = set()
        stop = asyncio.Event()

        async def client(journal: LogJournal, name: str) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                run_id = f"run-{name}-{number}"
                calls = [
                    ended(run_id, call_number, WORST, tenant="acme", usage=Usage(4, 4), nano_usd=1)
                    for call_number in range(3)
                ]
                try:
                    await journal.begin(start(run_id, "acme"))
                except (StoreFailed, QuotaExhausted):
                    await asyncio.sleep(0.05)
                    continue
                made: list[Call] = []
                with suppress(StoreFailed, QuotaExhausted):
                    for call in calls:
                        await journal.open(opened(call))
                        await asyncio.sleep(0.005)
                        journal.settle(call)
                        made.append(call)
                with suppress(StoreFailed):
                    await journal.finish(run(run_id, NOW, made, tenant="acme"))
                    acknowledged.add(run_id)

        async with journals(server.url, 2) as both:
            members = await rows(database, "SELECT epoch FROM gateways ORDER BY epoch")
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(client(both[number % 2], str(number)))
                for mode in ("fast", "immediate", "fast", None):
                    wanted = len(acknowledged) + 100

                    async def more(wanted: int = wanted) -> bool:
                        return len(acknowledged) >= wanted

                    await eventually(more)
                    if mode:
                        await asyncio.to_thread(server.restart, mode)
                stop.set()
            await until(database, "SELECT epoch FROM gateways ORDER BY epoch", members)
        finished = await rows(database, "SELECT run_id FROM runs WHERE status = 'finished'")
        assert acknowledged <= {run_id for (run_id,) in finished}
        assert await rows(database, "SELECT * FROM leases") == []
        ((tokens,),) = await rows(
            database, "SELECT sum(prompt_tokens + completion_tokens) FROM calls"
        )
        assert (await spent(database, "acme"))[DAY][1] == tokens
        assert (await check(database)).problems == []
        await database.close()


async def test_tokens_of_a_key_are_leased_over_all_gateways(url: str) -> None:
    """Two tenants cannot have one key, but one tenant has many keys: each has its own limit."""
    database = await Database.open(url)
    await keyed(database, tokens_per_minute=100)
    async with journals(url, 2) as both:
        taken = []
        for number, journal in enumerate(both):
            for key_id in ("key", "other"):
                run_id = f"run-{number}-{key_id}"
                await journal.begin(start(run_id, "acme", key_id=key_id))
                taken.append((journal, run_id, key_id))

        async def spend(journal: LogJournal, run_id: str, key_id: str) -> int:
            for number in range(10):
                call = ended(run_id, number, Amount(10, 10), tenant="acme", key_id=key_id)
                try:
                    await journal.open(opened(call))
                except QuotaExhausted as error:
                    assert f"key {key_id}: tokens_per_minute is 100" in str(error)
                    return number
            return 10

        made = await asyncio.gather(*(spend(*one) for one in taken))
    assert made[0] + made[2] <= 10
    assert max(made[0], made[2]) > 0
    assert (made[1], made[3]) == (10, 10)
    await database.close()
