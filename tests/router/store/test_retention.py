"""Retention: old runs are deleted, and their spending stays known."""

import time

from router.store import Database, LogJournal
from router.store.archive import delete_old
from router.store.check import check
from tests.router.store.entries import ended, opened, rows, spent, start
from tests.router.store.stored import put, run

DAY_S = 86400


async def _left(database: Database) -> list[str]:
    return [
        run_id for (run_id,) in await rows(database, "SELECT run_id FROM runs ORDER BY started_at")
    ]


async def test_runs_are_kept_for_some_days_since_their_start(database: Database) -> None:
    """Calls and feedback are deleted with them, and runs in progress stay.

    Any number is deleted in batches.
    """
    now = time.time()
    old = [run(f"run-{number}", now - 3 * DAY_S + number) for number in range(230)]
    await put(
        database,
        *old,
        run("run-new", now - 1.9 * DAY_S),
        run("run-old", now - 3 * DAY_S - 1, status="running"),
    )
    await database.write(
        lambda connection: connection.exec_driver_sql(
            "INSERT INTO feedback VALUES ('feedback-1', 'run-1', 1.0, NULL, NULL, '', '', NULL)"
        )
    )
    await delete_old(database, keep_days=2)
    assert await _left(database) == ["run-old", "run-new"]
    assert await rows(database, "SELECT * FROM feedback") == []


async def test_a_journal_deletes_old_runs_when_it_begins(database: Database) -> None:
    """Sums of usage and spending outlive their calls, and the store is consistent."""
    then = time.time() - 2 * DAY_S
    call = ended("run-1", started_at=then)
    async with LogJournal.writing(database) as journal:
        await journal.begin(start("run-1", started_at=then))
        await journal.open(opened(call))
        await journal.finish(run("run-1", then, [call]))
        booked = await spent(database)
    async with LogJournal.writing(database, keep_days=1.0):
        while await _left(database):
            pass
    assert await rows(database, "SELECT * FROM calls") == []
    assert await rows(database, "SELECT attempts, prompt_tokens FROM usage_hours") == [(1, 10)]
    assert await spent(database) == booked
    assert (await check(database)).problems == []
