"""Arguments for journals, and readers of the resulting database."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from sqlalchemy import text

from router.amount import NOTHING, Amount
from router.ledger import RunStart
from router.store import Database, LogJournal
from router.store.log import RunLog
from router.trace import Call
from router.trace.call import OpenedCall
from tests.router.store.stored import call

NOW = 1_795_262_400.0 + 3600
"""2026-11-21 13:00 UTC."""
DAY = "2026-11-21"
MONTH = "2026-11"


def start(run_id: str, tenant: str = "default", request_id: str = "", **fields: Any) -> RunStart:
    """Return a run that is about to begin, now."""
    known: dict[str, Any] = {
        "key_id": "key",
        "request": "Who directed Heat?",
        "fingerprint": "f",
        "started_at": NOW,
    }
    return RunStart(
        id=run_id, kind="answer", tenant=tenant, request_id=request_id, **{**known, **fields}
    )


def ended(run_id: str, number: int = 0, reserved: Amount = NOTHING, **fields: Any) -> Call:
    """Return a call that ended well, with `fields` replaced."""
    return call(run_id, number, reserved=reserved, **{"started_at": NOW + 1, **fields})


def opened(ended: Call) -> OpenedCall:
    """Return the opening of a call."""
    return OpenedCall(**{name: getattr(ended, name) for name in OpenedCall.__struct_fields__})


async def rows(database: Database, query: str, **values: object) -> Sequence[tuple[Any, ...]]:
    """Return the rows of a query."""
    return await database.read(
        lambda connection: [tuple(row) for row in connection.execute(text(query), values)]
    )


async def spent(database: Database, tenant: str = "default") -> dict[str, tuple[int, ...]]:
    """Return spending by day and month: requests, tokens, nano-dollars."""
    sums = await rows(
        database,
        "SELECT period, requests, tokens, nano_usd FROM spending WHERE tenant = :tenant AND "
        "length(period) <= 10",
        tenant=tenant,
    )
    return {period: tuple(counts) for period, *counts in sums if any(counts)}


async def change(database: Database, statement: str) -> None:
    """Execute a statement that changes rows or tables."""
    await database.write(lambda connection: connection.exec_driver_sql(statement))


class _Cut(Exception):
    pass


@asynccontextmanager
async def cut_short(database: Database, log: RunLog | None = None) -> AsyncIterator[LogJournal]:
    """Open a journal that ends as by a kill: records that only the log has stay there."""
    with suppress(_Cut):
        async with LogJournal.writing(database, log) as journal:
            yield journal
            raise _Cut
