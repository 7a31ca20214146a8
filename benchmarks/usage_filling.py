"""Many made-up calls, put into a database by the database itself."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, cast, func, insert, literal_column, select, text

from router.store.database import Database
from router.store.schema import CALLS, USAGE_HOURS
from router.store.usage import sums_of_calls
from router.trace.call import SUMS

BEGIN, DAYS = 1_767_225_600, 90
"""The calls spread over so many days from 1 January 2026, UTC."""
TENANTS, CALLS_OF_RUN = 20, 5
_PIECE = 100_000
_NUMBERS = "WITH RECURSIVE numbers(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < {last})"
_RUNS = """
INSERT INTO runs (run_id, tenant, key_id, kind, fingerprint, request, status, outcome, started_at, duration_s,
    gateway_id, cancel_requested, held_tokens, held_nano_usd)
{numbers} SELECT 'run-' || (1000000000 + i), 'tenant-' || (i % {tenants}), '', 'answer', '', '', 'finished', 'answered',
    {begin} + i * {calls_of_run} * {step}, 1.5, '', {false}, 0, 0 FROM numbers
"""
_CALLS = """
INSERT INTO calls (run_id, number, tenant, role, model, deployment, executor_version, purpose, attempt, outcome,
    counted, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, wasted_tokens, nano_usd, max_tokens,
    prompt_bound, reserved_tokens, reserved_nano_usd, started_at, duration_s)
{numbers} SELECT 'run-' || (1000000000 + i / {calls_of_run}), i % {calls_of_run},
    'tenant-' || (i / {calls_of_run} % {tenants}),
    CASE i % {calls_of_run} WHEN 0 THEN 'delegation' WHEN 4 THEN 'answer' ELSE 'execution' END,
    CASE i % {calls_of_run} WHEN 0 THEN 'backbone' WHEN 4 THEN 'fixed' ELSE 'small' END,
    'engine-' || (i % 2),
    CASE WHEN i % {calls_of_run} IN (0, 4) THEN '' ELSE 'executor-00000' || (1 + i / 1000 % 3) END,
    'first', 1,
    CASE WHEN i % 1009 = 0 THEN 'open' WHEN i % 97 = 0 THEN 'failed' WHEN i % 89 = 0 THEN 'cancelled'
        ELSE 'completed' END,
    CASE WHEN i % 97 = 0 THEN '' ELSE 'reported' END,
    CASE WHEN i % 97 = 0 THEN NULL ELSE 200 + i % 1801 END,
    CASE WHEN i % 97 = 0 OR i % 5 = 4 THEN NULL ELSE i % 200 END,
    CASE WHEN i % 97 = 0 THEN NULL ELSE 20 + i % 211 END,
    CASE WHEN i % 97 = 0 OR i % 5 <> 0 THEN NULL ELSE i % 20 END,
    CASE WHEN i % 97 <> 0 AND i % 89 = 0 THEN 220 + i % 1801 + i % 211 ELSE 0 END,
    CASE WHEN i % 97 = 0 OR i % 11 = 0 THEN NULL ELSE 100000 + i % 1000003 END,
    1024, 0, 0, 0, {begin} + i * {step}, 0.25 FROM numbers
"""


async def fill(database: Database, calls: int, progress: Callable[[int], None]) -> None:
    """Write so many calls, their runs, and the sums of their hours. `progress` is told how many calls there are."""
    for name, statement, of_one in (("runs", _RUNS, CALLS_OF_RUN), ("calls", _CALLS, 1)):
        count = -(-calls // of_one)
        for first in range(0, count, _PIECE):
            last = min(first + _PIECE, count)
            await database.write(partial(_write, statement=statement, calls=calls, first=first, last=last))
            progress(last if name == "calls" else 0)
    await database.write(_sum)


def hour_of(connection: Connection) -> ColumnElement[int]:
    """The number of the hour in which a call started; SQLite's cast rounds down, PostgreSQL's to the nearest."""
    hours: Any = CALLS.c.started_at / literal_column("3600.0")
    return cast(func.floor(hours) if connection.dialect.name == "postgresql" else hours, Integer)


def _write(connection: Connection, statement: str, calls: int, first: int, last: int) -> None:
    given = {
        "numbers": _NUMBERS.format(first=first, last=last),
        "begin": BEGIN,
        "step": f"{DAYS * 86_400 / calls:.9f}",
        "tenants": TENANTS,
        "calls_of_run": CALLS_OF_RUN,
        "false": "FALSE",
    }
    connection.execute(text(statement.format(**given)))


def _sum(connection: Connection) -> None:
    calls, hour = CALLS.c, hour_of(connection).label("hour")
    groups = [calls.tenant, hour, calls.role, calls.model, calls.deployment, calls.executor_version]
    summed = select(*groups, *sums_of_calls()).where(calls.outcome != "open").group_by(*groups)
    names = [group.name for group in groups]
    connection.execute(insert(USAGE_HOURS).from_select([*names, *SUMS], summed))
    connection.exec_driver_sql("ANALYZE")
