"""The store, over a real SQLite file."""

import asyncio
import math
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from router.errors import BadConfig, NotFound, StoreFailed
from router.execution import Conversation, Execution, SearchRecord
from router.feedback import Feedback
from router.ledger import Call, RoleTotal, totals
from router.model import Completion, Message, Usage
from router.report import Report
from router.run import RoleSetting, Run
from router.store import SQLStore
from router.trajectory import Trajectory
from router.usage_report import UsageReport
from tests.router.deployment import PASSAGE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLStore]:
    store = await SQLStore.open(f"sqlite+aiosqlite:///{path}")
    yield store
    await store.close()


@pytest.fixture
async def threads_end() -> AsyncIterator[None]:
    """Wait for the thread of a connection that failed: aiosqlite does not, and it ends badly after its event loop."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        await asyncio.to_thread(thread.join, 10)


def call(usage: Usage | None, *, lower_bound: bool = False, sub_query: int | None = None) -> Call:
    return Call("execution", "small", "http://e", "first", 1, sub_query, "completed", usage, lower_bound, 5.0, 0.5)


TALK = Conversation(
    (Message("system", "be"), Message("user", "é 日本 \x00")), (Completion("a", "stop", "hm", Usage(1, 2)),)
)
EXECUTION = Execution("a?", Report("A", ("one",)), "reported", (SearchRecord("q", (PASSAGE,), 2),), TALK)
TRAJECTORY = Trajectory("yes", "answered", (EXECUTION,), (1,), TALK, TALK)
CALLS = (call(Usage(7, 5, 3, None), sub_query=0), call(None), call(Usage(7, 2), lower_bound=True))


def run(run_id: str = "run-1", result: Trajectory | Execution | Conversation | None = TRAJECTORY) -> Run:
    """A run with three calls."""
    settings = {"answer": RoleSetting("fixed", "0" * 64)}
    return Run(run_id, "answer", "why?", "finished", "", result, settings, CALLS, 1.0, 2.5)  # type: ignore[arg-type]


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    """What another process reads."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.parametrize("result", [TRAJECTORY, EXECUTION, TALK, None])
async def test_a_run_comes_back_as_it_was(
    store: SQLStore, result: Trajectory | Execution | Conversation | None
) -> None:
    """Everything that was said, found and spent survives the disk."""
    await store.save(run(result=result))
    assert await store.load("run-1") == run(result=result)


async def test_an_unknown_run(store: SQLStore) -> None:
    """There is none."""
    assert await store.load("run-2") is None


async def test_a_run_has_its_rows_when_save_returns(store: SQLStore, path: Path) -> None:
    """Another process sees the run with all its calls, in order."""
    await store.save(run())
    assert rows(path, "SELECT run_id, kind, request, status, started_at, duration_s FROM runs") == [
        ("run-1", "answer", "why?", "finished", 1.0, 2.5)
    ]
    assert rows(path, "SELECT number, role, model, endpoint, purpose, outcome, sub_query FROM calls") == [
        (number, "execution", "small", "http://e", "first", "completed", 0 if number == 0 else None)
        for number in range(3)
    ]


async def test_unknown_usage_is_null(store: SQLStore, path: Path) -> None:
    """Unknown is not zero."""
    await store.save(run())
    counts = "prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, lower_bound"
    assert rows(path, f"SELECT {counts} FROM calls ORDER BY number") == [
        (7, 3, 5, None, 0),
        (None, None, None, None, 0),
        (7, None, 2, None, 1),
    ]


async def test_calls_of_all_runs(store: SQLStore) -> None:
    """The ledger of a deployment is its calls, oldest run first."""
    await store.save(run("run-b"))
    await store.save(run("run-a"))
    listed = await store.calls()
    assert [(row["run_id"], row["number"]) for row in listed] == [
        (run_id, number) for run_id in ("run-a", "run-b") for number in range(3)
    ]


async def test_a_run_without_calls(store: SQLStore) -> None:
    """A question that was out of scope has spent nothing."""
    empty = Run("run-1", "answer", "why?", "finished", "", None, {}, (), 1.0, 2.5)
    await store.save(empty)
    assert await store.load("run-1") == empty
    assert await store.calls() == []


async def test_a_failing_second_insert_leaves_nothing(store: SQLStore, path: Path) -> None:
    """A run whose calls cannot be written is not there either; and the next one is not harmed."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON calls WHEN NEW.number = 2 AND NEW.run_id = 'run-1'"
            " BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
        )
    with pytest.raises(StoreFailed):
        await store.save(run())
    assert rows(path, "SELECT count(*) FROM runs") == rows(path, "SELECT count(*) FROM calls") == [(0,)]
    await store.save(run("run-2"))
    assert rows(path, "SELECT run_id FROM runs") == [("run-2",)]


async def test_a_failure_gives_nothing_away(store: SQLStore) -> None:
    """The error that reaches the client names the run, and holds nothing of it: its answer is withheld."""
    await store.save(run())
    with pytest.raises(StoreFailed) as caught:
        await store.save(run())
    assert str(caught.value) == "Run run-1 could not be stored, so its answer is withheld."


async def test_runs_of_many_requests_at_once(store: SQLStore) -> None:
    """Writers wait for each other instead of failing."""
    async with asyncio.timeout(30):
        await asyncio.gather(*(store.save(run(f"run-{number}")) for number in range(40)))
    assert len(await store.calls()) == 120


async def test_writes_are_durable(store: SQLStore, path: Path) -> None:
    """Every connection writes ahead and waits for the disk, so that what is acknowledged survives a power cut."""
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10000}
    for _ in range(2):
        async with store._engine.connect() as connection:
            found = {name: (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar() for name in wanted}
            assert found == wanted
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]


async def test_a_store_is_opened_again(path: Path) -> None:
    """What was kept is there after a restart."""
    for number in range(2):
        store = await SQLStore.open(f"sqlite+aiosqlite:///{path}")
        assert (await store.load("run-0") is not None) == (number > 0)
        await store.save(run(f"run-{number}"))
        await store.close()


FEEDBACK = Feedback("run-1", accepted=False, score=0.25, gold_answer="no", comment="é\n日本")


async def test_feedback_is_kept_beside_its_run(store: SQLStore, path: Path) -> None:
    """A row each, with an identifier of its own; what is not stated is null, and the run is as it was."""
    await store.save(run())
    identifiers = [await store.add_feedback(FEEDBACK), await store.add_feedback(Feedback("run-1", comment="so so"))]
    assert rows(
        path, "SELECT feedback_id, run_id, accepted, score, gold_answer, comment FROM feedback ORDER BY rowid"
    ) == [
        (identifiers[0], "run-1", 0, 0.25, "no", "é\n日本"),
        (identifiers[1], "run-1", None, None, "", "so so"),
    ]
    assert len(set(identifiers)) == 2
    assert await store.load("run-1") == run()


async def test_feedback_on_an_unknown_run(store: SQLStore, path: Path) -> None:
    """Is refused by the run's name, and not kept."""
    await store.save(run())
    with pytest.raises(NotFound, match="run-2"):
        await store.add_feedback(Feedback("run-2", accepted=True))
    assert rows(path, "SELECT count(*) FROM feedback") == [(0,)]


async def test_a_store_without_feedback_is_opened(path: Path) -> None:
    """What an older version has kept gets the new table beside it."""
    store = await SQLStore.open(f"sqlite+aiosqlite:///{path}")
    await store.save(run())
    await store.close()
    rows(path, "DROP TABLE feedback")
    store = await SQLStore.open(f"sqlite+aiosqlite:///{path}")
    await store.add_feedback(FEEDBACK)
    await store.close()


def spending(run_id: str, started_at: float, *calls: Call) -> Run:
    return Run(run_id, "answer", "why?", "finished", "", None, {}, calls, started_at, 2.5)


ASKED = Call("delegation", "big", "http://d", "first", 1, None, "completed", Usage(10, 1, 0, 4), False, 4.0, 0.5)
DEAD = Call("answer", "big", "http://d", "first", 1, None, "unavailable", None, False, 9.0, 0.5)


async def test_usage_is_what_the_ledgers_of_the_runs_sum_up_to(store: SQLStore) -> None:
    """By role and model, in the order in which they first spent. Unknown is counted, and is not zero."""
    kept = [run("run-1"), spending("run-2", 2.0, ASKED, *CALLS), spending("run-3", 3.0, ASKED, DEAD)]
    for each in reversed(kept):
        await store.save(each)

    report = await store.usage(0.0, math.inf)

    assert report.runs == 3
    assert list(report.totals) == [
        RoleTotal("delegation", "big", 2, 0, 20, 2, 0, 8),
        RoleTotal("execution", "small", 6, 2, 28, 14, 6, None),
        RoleTotal("answer", "big", 1, 1, 0, 0, None, None),
    ]
    booked = totals(tuple(call for each in kept for call in each.calls))
    assert sorted(report.totals, key=str) == sorted(booked, key=str)


@pytest.mark.parametrize(
    ("start", "end", "runs", "attempts"),
    [(0.0, 1.0, 0, []), (0.0, 2.0, 1, [3]), (1.0, 2.0, 1, [3]), (1.5, math.inf, 1, [1, 1]), (2.5, math.inf, 0, [])],
)
async def test_usage_of_a_span(store: SQLStore, start: float, end: float, runs: int, attempts: list[int]) -> None:
    """A run belongs to the moment of its start; the span holds its beginning and not its end."""
    await store.save(run("run-1"))
    await store.save(spending("run-2", 2.0, ASKED, DEAD))

    report = await store.usage(start, end)

    assert (report.runs, [total.attempts for total in report.totals]) == (runs, attempts)


async def test_usage_that_cannot_be_read(store: SQLStore, path: Path) -> None:
    """Is worth another try, and no internal error."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE calls")

    with pytest.raises(StoreFailed, match="What was spent could not be read"):
        await store.usage(-math.inf, math.inf)


async def test_a_run_without_calls_is_counted(store: SQLStore) -> None:
    """It has spent nothing, which is known."""
    await store.save(spending("run-1", 1.0))
    assert await store.usage(0.0, math.inf) == UsageReport(1, ())


@pytest.mark.usefixtures("threads_end")
@pytest.mark.parametrize(
    "url",
    [
        "sqlite+aiosqlite:///{folder}/missing/runs.db",
        "sqlite+aiosqlite:///{folder}",
        "sqlite+aiosqlite:////proc/runs.db",
        "nonsense",
        "nosuchdatabase://host/runs",
        "postgresql+nosuchdriver://host/runs",
        "sqlite:///{folder}/runs.db",
    ],
)
async def test_what_cannot_be_opened(url: str, tmp_path: Path) -> None:
    """A folder that is not there or not writable, and an address that is none, are faults of the configuration."""
    with pytest.raises(BadConfig, match=r"^server\.store: cannot open"):
        await SQLStore.open(url.format(folder=tmp_path))


@pytest.mark.usefixtures("threads_end")
async def test_a_file_that_is_no_database(path: Path) -> None:
    """So is a file of another kind, which is left as it was."""
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(BadConfig, match="not a database"):
        await SQLStore.open(f"sqlite+aiosqlite:///{path}")
    assert path.read_bytes().startswith(b"not a database")
