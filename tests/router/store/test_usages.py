"""Sums over stored calls."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import combinations

import pytest
from sqlalchemy import Connection, event, func, select

from router.errors import BadRequest
from router.ledger import UsageQuery, UsageReport
from router.ledger.usage import Bucket, Dimension, UsageRow
from router.models import Usage
from router.store import Database, SQLUsages
from router.store.schema import CALLS, RUNS, USAGE_HOURS, call_row
from router.store.usage import hourly_usage, usage_in
from router.trace import Call, Run
from router.trace.call import sum_known
from tests.router.store.query_plan import explained
from tests.router.store.stored import call, put, run, run_row

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
HOUR = 3600.0
DIMENSIONS: tuple[Dimension, ...] = (
    "tenant",
    "role",
    "model",
    "executor_version",
    "manager",
    "key_id",
)
BUCKETS: tuple[Bucket | None, ...] = (None, "hour", "day", "month")


@pytest.fixture
def usages(database: Database) -> SQLUsages:
    return SQLUsages(database)


def some_calls(draw: random.Random, run_id: str, started_at: float) -> list[Call]:
    """Calls of one run, out of all possible ones."""
    tenant = draw.choice(("acme", "other", "ünï"))
    return [
        call(
            run_id,
            number,
            tenant=tenant,
            role=(role := draw.choice(("delegation", "execution", "answer"))),
            model=draw.choice(("big", "small")),
            deployment=draw.choice(("engine", "http://other")),
            executor_version=draw.choice(("executor-000001", "executor-000002"))
            if role == "execution"
            else None,
            started_at=started_at + draw.choice((0.0, 0.25, 30.0, HOUR)),
            outcome=draw.choice(("completed", "cancelled", "failed")),
            usage=draw.choice(
                (None, Usage(draw.randrange(10**6), 3), Usage(10, 10**9, 4, 2, lower_bound=True))
            ),
            nano_usd=draw.choice((None, draw.randrange(10**15))),
            key_id=draw.choice(("", "5f0c2a9e", "91ab03cd")),
        )
        for number in range(draw.randrange(5))
    ]


def expected(calls: Sequence[Call], runs: Sequence[Run], query: UsageQuery) -> UsageReport:
    """Return these sums computed in plain Python."""
    first = query.start if query.start is not None else -1.0
    end = query.end if query.end is not None else float("inf")
    groups: dict[tuple[float | None, tuple[str, ...]], list[Call]] = defaultdict(list)
    for stored_call in calls:
        if first <= stored_call.started_at < end and query.tenant in (None, stored_call.tenant):
            key = tuple(getattr(stored_call, name) or "" for name in query.by)
            groups[bucket_of(query.bucket, stored_call.started_at), key].append(stored_call)
    return UsageReport(
        sum(first <= run.started_at < end and query.tenant in (None, run.tenant) for run in runs),
        tuple(
            row_of(query, *key, groups[key])
            for key in sorted(groups, key=lambda key: (key[0] or 0.0, key[1]))
        ),
    )


def bucket_of(bucket: Bucket | None, started_at: float) -> float | None:
    moment = datetime.fromtimestamp(started_at, UTC).replace(minute=0, second=0, microsecond=0)
    if bucket == "day":
        moment = moment.replace(hour=0)
    if bucket == "month":
        moment = moment.replace(hour=0, day=1)
    return moment.timestamp() if bucket else None


def row_of(
    query: UsageQuery, start: float | None, key: tuple[str, ...], calls: list[Call]
) -> UsageRow:
    known = [call.usage for call in calls if call.usage is not None]
    return UsageRow(
        bucket_start=start,
        **dict(zip(query.by, key, strict=True)),  # type: ignore[arg-type]
        attempts=len(calls),
        attempts_without_usage=len(calls) - len(known),
        attempts_without_cost=sum(call.nano_usd is None for call in calls),
        prompt_tokens=sum(usage.prompt_tokens for usage in known),
        completion_tokens=sum(usage.completion_tokens for usage in known),
        cached_tokens=sum_known([usage.cached_tokens for usage in known]),
        reasoning_tokens=sum_known([usage.reasoning_tokens for usage in known]),
        wasted_tokens=sum(call.wasted_tokens for call in calls),
        nano_usd=sum_known([call.nano_usd for call in calls]),
    )


@pytest.mark.parametrize("seed", range(4))
async def test_sums_equal_the_calls_for_any_grouping_span_and_tenant(
    database: Database, usages: SQLUsages, seed: int
) -> None:
    draw = random.Random(seed)
    starts = [NEW_YEAR + draw.uniform(-40 * 24 * HOUR, 40 * 24 * HOUR) for _ in range(60)]
    starts += [
        NEW_YEAR + draw.choice((-HOUR, 0.0, HOUR)) + draw.choice((0.0, 0.25, 1800.0))
        for _ in range(60)
    ]
    calls_of = [some_calls(draw, f"run-{n}", at) for n, at in enumerate(starts)]
    runs = [
        run(f"run-{n}", at, calls, tenant=calls[0].tenant if calls else "other")
        for n, (at, calls) in enumerate(zip(starts, calls_of, strict=True))
    ]
    await put(database, *runs)
    calls = [call for conducted in runs for call in conducted.calls]
    edges = [
        None,
        *starts,
        *(NEW_YEAR + shift for shift in (-24 * HOUR, -HOUR, 0.0, 0.5, HOUR, 1800.25)),
    ]

    for _ in range(60):
        start = draw.choice(edges)
        end = draw.choice(edges)
        if start is not None and end is not None and start >= end:
            later = start + 0.5
            start = end
            end = later
        by = draw.choice([names for size in range(5) for names in combinations(DIMENSIONS, size)])
        query = UsageQuery(
            start, end, draw.choice((None, "acme", "nobody")), by, draw.choice(BUCKETS)
        )
        assert await usages.usage(query) == expected(calls, runs, query), query


async def test_without_calls_there_are_no_rows(usages: SQLUsages) -> None:
    """This holds without grouping too."""
    for by in ((), DIMENSIONS):
        for end in (None, 5.5):
            assert await usages.usage(UsageQuery(1.5, end, by=by)) == UsageReport(0, ())


@pytest.mark.parametrize(("start", "end"), [(1.0, 1.0), (2.0, 1.0)])
async def test_an_empty_span_is_refused(usages: SQLUsages, start: float, end: float) -> None:
    with pytest.raises(BadRequest, match="start_time must be before end_time"):
        await usages.usage(UsageQuery(start, end))


async def test_deleted_calls_stay_in_the_sums_of_their_hours(
    database: Database, usages: SQLUsages
) -> None:
    """Part of such an hour is no longer available; other hours still are."""
    begun = {"acme": (600.0, 700.0), "other": (HOUR + 600.0,)}
    whose = [(tenant, NEW_YEAR + shift) for tenant, shifts in begun.items() for shift in shifts]
    calls = [call(f"run-{n}", tenant=tenant, started_at=at) for n, (tenant, at) in enumerate(whose)]
    await put(
        database, *(run(call.run_id, call.started_at, [call], tenant=call.tenant) for call in calls)
    )

    def delete(connection: Connection) -> None:
        connection.execute(CALLS.delete().where(CALLS.c.run_id == "run-0"))
        connection.execute(RUNS.delete().where(RUNS.c.run_id == "run-0"))

    await database.write(delete)

    whole = await usages.usage(UsageQuery(NEW_YEAR, NEW_YEAR + 2 * HOUR))
    assert (whole.runs, [row.attempts for row in whole.rows]) == (2, [3])
    for start, end in (
        (NEW_YEAR + 1.0, None),
        (None, NEW_YEAR + 1.0),
        (NEW_YEAR + 1.0, NEW_YEAR + 2.0),
    ):
        for tenant in (None, "acme"):
            with pytest.raises(
                BadRequest, match=r"hour that begins at 2026-01-01T00:00:00Z .* whole hours"
            ):
                await usages.usage(UsageQuery(start, end, tenant))
        await usages.usage(UsageQuery(start, end, "other"))
    assert [
        row.attempts for row in (await usages.usage(UsageQuery(NEW_YEAR + HOUR + 1.0))).rows
    ] == [1]


async def test_all_parts_are_read_from_one_snapshot(database: Database) -> None:
    """Calls written meanwhile belong to none of them."""
    early = [call("run-1", started_at=0.0)]
    late = [call("run-2", n, started_at=HOUR * n) for n in range(2)]
    await put(database, run("run-1", 0.0, early))
    query = UsageQuery(0.0, 1.5 * HOUR)
    loop = asyncio.get_running_loop()
    written = asyncio.Event()

    def write(connection: Connection) -> None:
        connection.execute(USAGE_HOURS.delete())
        connection.execute(USAGE_HOURS.insert(), hourly_usage([*early, *late]))
        connection.execute(RUNS.insert().values(run_row(run("run-2"))))
        connection.execute(CALLS.insert(), list(map(call_row, late)))

    def read(connection: Connection) -> UsageReport:
        @event.listens_for(connection, "after_cursor_execute")
        def background_tasks(
            _connection: object, _cursor: object, statement: str, *_: object
        ) -> None:
            if statement.startswith("SELECT") and not written.is_set():
                written.set()
                asyncio.run_coroutine_threadsafe(database.write(write), loop).result(10)

        return usage_in(connection, query)

    report = await database.read(read)

    assert written.is_set()
    assert (report.runs, [row.attempts for row in report.rows]) == (1, [1])
    after = await SQLUsages(database).usage(query)
    assert (after.runs, [row.attempts for row in after.rows]) == (2, [3])


SCANS = "SCAN calls", "Seq Scan on calls"


@pytest.mark.parametrize("tenant", [None, "tenant-1"])
async def test_calls_are_never_scanned(database: Database, tenant: str | None) -> None:
    """Part of an hour is read through the index by tenant and time.

    Whole hours are not read from calls.
    """
    times = [(number, NEW_YEAR + 10.0 * number) for number in range(8000)]
    calls = [
        call("run-1", number, tenant=f"tenant-{number % 4}", started_at=at) for number, at in times
    ]
    await put(database, run("run-1", NEW_YEAR, calls))
    await database.write(lambda connection: connection.exec_driver_sql("ANALYZE"))
    whole = (NEW_YEAR, NEW_YEAR + 12 * HOUR)
    unaligned = (NEW_YEAR + 1000.0, NEW_YEAR + 9.5 * HOUR)

    for bucket in BUCKETS:

        def plans_of(
            connection: Connection, start: float, end: float, bucket: Bucket | None = bucket
        ) -> list[str]:
            with explained(connection) as plans:
                usage_in(connection, UsageQuery(start, end, tenant, DIMENSIONS, bucket))
            return plans

        assert not any(
            "calls" in plan
            for plan in await database.read(partial(plans_of, start=whole[0], end=whole[1]))
        )
        plans = await database.read(partial(plans_of, start=unaligned[0], end=unaligned[1]))
        # Whether both edges are whole hours, and the query itself
        assert sum("calls_by_tenant" in plan for plan in plans) == 3
        assert not any(scan in plan for plan in plans for scan in SCANS)


async def test_the_plan_of_a_scan_shows_the_scan(database: Database) -> None:
    """A query that reads all calls would fail the test before."""

    def naive(connection: Connection) -> list[str]:
        with explained(connection) as plans:
            connection.execute(
                select(func.sum(CALLS.c.prompt_tokens)).where(CALLS.c.started_at > 0.0)
            )
        return plans

    (plan,) = await database.read(naive)
    assert any(scan in plan for scan in SCANS)
