"""What stored calls have spent, summed by the database.

Whole hours come from `usage_hours`, which is small and outlives the calls; what a span has of an hour more, from the
calls of that hour, through their index by tenant and time.
"""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Integer, Select, func, literal_column, select

from router.errors import BadRequest
from router.ledger.usage import Bucket, UsageQuery, UsageReport, UsageRow
from router.store.database import Database, begin_snapshot, storable
from router.store.schema import CALLS, GROUPS, RUNS, USAGE_HOURS
from router.trace.call import SUMMED_COUNTS, SUMS, Call, sum_known, sums_of

HOUR_S = 3600

_Key = tuple[float | None, tuple[str, ...]]
_Sums = dict[_Key, list[int | None]]
_Piece = tuple[float, float]
"""The beginning and the end of a part of one hour, in Unix time."""


class SQLUsages:
    """Sums of what `SQLJournal` writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(self, query: UsageQuery) -> UsageReport:
        """The sums. Raises `BadRequest` for a span whose calls are partly deleted, and `StoreFailed`."""
        return await self._database.read(partial(usage_in, query=query))


def usage_in(connection: Connection, query: UsageQuery) -> UsageReport:
    """As `SQLUsages.usage`, over one state of the database."""
    if query.start is not None and query.end is not None and query.start >= query.end:
        raise BadRequest("start_time is not before end_time; leave one of them out, or exchange them.")
    begin_snapshot(connection)
    sums: _Sums = {}
    first, last, pieces = _split(query.start, query.end)
    if first is None or last is None or first < last:
        _add(sums, connection, _of_hours(query, first, last), query)
    for start, end in pieces:
        hour = int(start // HOUR_S)
        tenants = _tenants(connection, hour) if query.tenant is None else [storable(query.tenant)]
        _check_kept(connection, tenants, hour)
        _add(sums, connection, _of_calls(query, tenants, start, end), query, hour)
    rows = tuple(_row(key, sums[key], query) for key in sorted(sums, key=lambda key: (key[0] or 0.0, key[1])))
    return UsageReport(int(connection.execute(_runs(query)).scalar_one()), rows)


def _split(start: float | None, end: float | None) -> tuple[int | None, int | None, list[_Piece]]:
    """The first whole hour, the one behind the last, and what there is before and after; None is no bound."""
    first = None if start is None else -int(-start // HOUR_S)
    last = None if end is None else int(end // HOUR_S)
    if start is not None and end is not None and first is not None and last is not None and first > last:
        return first, last, [(start, end)]
    pieces: list[_Piece] = []
    if start is not None and first is not None and start < first * HOUR_S:
        pieces.append((start, first * HOUR_S))
    if end is not None and last is not None and last * HOUR_S < end:
        pieces.append((last * HOUR_S, end))
    return first, last, pieces


def _of_hours(query: UsageQuery, first: int | None, last: int | None) -> Select[Any]:
    hours = USAGE_HOURS.c
    groups: list[ColumnElement[Any]] = [hours[name] for name in query.by]
    if query.bucket is not None:
        groups.insert(0, hours.hour if query.bucket == "hour" else hours.hour // literal_column("24", Integer))
    wanted = select(*groups, *(func.sum(hours[name]).label(name) for name in SUMS)).group_by(*groups)
    if query.tenant is not None:
        wanted = wanted.where(hours.tenant == storable(query.tenant))
    if first is not None:
        wanted = wanted.where(hours.hour >= first)
    if last is not None:
        wanted = wanted.where(hours.hour < last)
    return wanted


def _tenants(connection: Connection, hour: int) -> list[str]:
    """Whose calls there are of that hour: who names them all is led to them by the index."""
    return list(connection.scalars(select(USAGE_HOURS.c.tenant).where(USAGE_HOURS.c.hour == hour).distinct()))


def _of_calls(query: UsageQuery, tenants: list[str], start: float, end: float) -> Select[Any]:
    groups = [CALLS.c[name] for name in query.by]
    return select(*groups, *sums_of_calls()).where(*_ended(tenants, start, end)).group_by(*groups)


def _ended(tenants: list[str], start: float, end: float) -> list[ColumnElement[bool]]:
    calls = CALLS.c
    return [calls.tenant.in_(tenants), calls.started_at >= start, calls.started_at < end, calls.outcome != "open"]


def _check_kept(connection: Connection, tenants: list[str], hour: int) -> None:
    """Raise `BadRequest` where calls of that hour have been deleted, so that a part of it cannot be summed."""
    start, hours = hour * HOUR_S, USAGE_HOURS.c
    summed = select(func.coalesce(func.sum(hours.attempts), 0)).where(hours.hour == hour, hours.tenant.in_(tenants))
    kept = select(func.count()).select_from(CALLS).where(*_ended(tenants, start, start + HOUR_S))
    if connection.execute(kept).scalar_one() < connection.execute(summed).scalar_one():
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start))
        raise BadRequest(
            f"calls of the hour from {begun} on have been deleted (server.keep_days), and only its sum "
            "is left; let the span begin and end with whole hours."
        )


def _add(sums: _Sums, connection: Connection, wanted: Select[Any], query: UsageQuery, hour: int | None = None) -> None:
    """Add what `wanted` finds: of one hour, or with the number of the hour or day in front where time is split."""
    for row in connection.execute(wanted):
        *groups, attempts = row[: -len(SUMS) + 1]
        if not attempts:
            continue  # of no rows at all
        at = hour
        if hour is None and query.bucket is not None:
            at = groups.pop(0) * (1 if query.bucket == "hour" else 24)
        key = _bucket_start(query.bucket, at), tuple(groups)
        counts = [None if count is None else int(count) for count in row[-len(SUMS) :]]
        sums[key] = [sum_known([*pair]) for pair in zip(sums[key], counts, strict=True)] if key in sums else counts


def _bucket_start(bucket: Bucket | None, hour: int | None) -> float | None:
    """When the bucket began that an hour, by its number, is in."""
    if bucket is None or hour is None:
        return None
    if bucket == "hour":
        return float(hour * HOUR_S)
    midnight = datetime.fromtimestamp(hour // 24 * 24 * HOUR_S, UTC)
    return (midnight if bucket == "day" else midnight.replace(day=1)).timestamp()


def _row(key: _Key, counts: list[int | None], query: UsageQuery) -> UsageRow:
    whose = dict.fromkeys(("tenant", "role", "model", "executor_version")) | dict(zip(query.by, key[1], strict=True))
    return UsageRow(bucket_start=key[0], **whose, **dict(zip(SUMS, counts, strict=True)))  # type: ignore[arg-type]


def _runs(query: UsageQuery) -> Select[Any]:
    counted = select(func.count()).select_from(RUNS)
    if query.tenant is not None:
        counted = counted.where(RUNS.c.tenant == storable(query.tenant))
    if query.start is not None:
        counted = counted.where(RUNS.c.started_at >= query.start)
    if query.end is not None:
        counted = counted.where(RUNS.c.started_at < query.end)
    return counted


def hourly_usage(calls: Iterable[Call]) -> list[dict[str, Any]]:
    """Rows of `usage_hours`."""
    groups: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        row = msgspec.structs.asdict(call) | {"hour": int(call.started_at // HOUR_S)}
        groups.setdefault(tuple("" if row[name] is None else row[name] for name in GROUPS), []).append(call)
    return [{**dict(zip(GROUPS, key, strict=True)), **sums_of(members)} for key, members in groups.items()]


def sums_of_calls() -> list[ColumnElement[Any]]:
    """One column for each of `SUMS`, over rows of `calls`."""
    attempts = {
        "attempts": func.count(),
        "attempts_without_usage": func.count() - func.count(CALLS.c.prompt_tokens),
        "attempts_without_cost": func.count() - func.count(CALLS.c.nano_usd),
    }
    counts = {name: func.sum(CALLS.c[name]) for name in SUMMED_COUNTS}
    known = {name: sum_ if USAGE_HOURS.c[name].nullable else func.coalesce(sum_, 0) for name, sum_ in counts.items()}
    return [{**attempts, **known}[name].label(name) for name in SUMS]
