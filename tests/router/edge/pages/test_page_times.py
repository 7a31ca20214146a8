"""The list stays quick, however many runs there are."""

import statistics
import time
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection

from router.store import Database
from router.store.schema import CALLS, FEEDBACK, RUNS, call_row
from router.trace.run import RunStatus
from tests.router.edge.pages.world import browsing, pages
from tests.router.store.stored import call, run, run_row

RUNS_STORED = 100_000
AT_ONCE = 1_000
MAX_S = 0.2
FILTERS = (
    "",
    "text=word7",
    "text=nowhere",
    "outcome=answered",
    "outcome=no_search",
    "status=failed",
    "status=running",
    "status=cancelled",
    "kind=table",
    "kind=answer",
    "topology=host",
    "tenant=tenant-3",
    "tenant=nobody",
    "tenant=tenant-3&text=nowhere",
    "executor_version=executor-000001",
    "executor_version=executor-000009",
    "feedback=good",
    "feedback=bad",
    "min_cost=0.5",
    "min_cost=0.000001&max_cost=0.1",
    "until=1970-01-02T03:04&text=nowhere",
    "since=1970-01-01T20:00&until=1970-01-02T00:00",
    "kind=execute&status=failed&text=word99999",
)


Rows = list[dict[str, Any]]


def made(first: int) -> tuple[Rows, Rows, Rows]:
    """Runs of ten tenants, one a second, each with five calls; some have failed, some have
    feedback.
    """
    rows = Rows()
    calls = Rows()
    said = Rows()
    for number in range(first, first + AT_ONCE):
        run_id = f"run-{number:06}"
        at = float(number)
        status: RunStatus = "failed" if number % 50 == 0 else "finished"
        five = [
            call(run_id, index, started_at=at, tenant=f"tenant-{number % 10}") for index in range(5)
        ]
        request = f"Which word{number} was it, and who said so in the year {number % 2000}? " * 2
        row = run_row(
            run(run_id, at, five, tenant=f"tenant-{number % 10}", request=request, status=status)
        )
        rows.append({**row, "trace": bytes(5000)})
        calls += map(call_row, five)
        if number % 100 == 0:
            texts = {"score": None, "right_answer": "", "comment": ""}
            said.append(
                {"feedback_id": run_id, "run_id": run_id, "given_at": at, "accepted": True, **texts}
            )
    return rows, calls, said


def insert(connection: Connection, made: tuple[Rows, Rows, Rows]) -> None:
    for table, rows in zip((RUNS, CALLS, FEEDBACK), made, strict=True):
        connection.execute(table.insert(), rows)


@pytest.mark.slow
@pytest.mark.timing
async def test_the_list_of_many_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With 100,000 runs in the store, each filter's page is there within 200 ms, and so is one
    far back.
    """
    database = await Database.open(url)
    for first in range(0, RUNS_STORED, AT_ONCE):
        await database.write(partial(insert, made=made(first)))
    if url.startswith("postgresql"):  # as it does by itself, some time after so many rows
        await database.write(lambda connection: connection.exec_driver_sql("ANALYZE"))
    await database.close()
    medians = dict[str, float]()
    fastest = dict[str, float]()
    async with pages(url) as world, browsing(world) as session:
        async with session.get("/runs?until=1970-01-01T12:00") as response:
            far = (await response.text()).rsplit("page=", 1)[1].partition('"')[0]
        for asked in (*FILTERS, f"page={far}", f"text=nowhere&page={far}"):
            took = list[float]()
            for _ in range(7):
                begun = time.perf_counter()
                async with session.get(f"/runs?{asked}") as response:
                    await response.read()
                took.append(time.perf_counter() - begun)
                assert response.status == 200
            medians[asked] = statistics.median(took[1:])
            fastest[asked] = min(took)
    with capsys.disabled():
        print(f"\n{url.partition(':')[0]}, {RUNS_STORED:,} runs, median and fastest of six in ms:")
        for asked, median_s in medians.items():
            print(f"  {median_s * 1000:6.1f} {fastest[asked] * 1000:6.1f}  /runs?{asked}")
    assert max(medians.values()) < MAX_S
