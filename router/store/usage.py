"""Sums over stored calls, made by the database: usage, and the ledger's side of reconciliation.

Whole hours come from `usage_hours`, which is small and outlives the calls. The rest of a span comes
from the calls of its first and last hour, through their index by tenant and time.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, get_args

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    case,
    func,
    literal_column,
    select,
    tuple_,
    union_all,
)

from router.errors import BadRequest
from router.ledger import UsageQuery, UsageReport
from router.ledger.reconciliation import LedgerSum, Tokens
from router.ledger.usage import Bucket, Dimension, UsageRow
from router.store.database import Database, begin_snapshot, storable
from router.store.schema import CALLS, GROUPS, RUNS, USAGE_HOURS
from router.trace import Call
from router.trace.call import COMPLETE_OUTCOMES, SUMMED_COUNTS, SUMS, OpenedCall, added, sums_of

_HOUR_S = 3600
_BUCKET_HOURS: dict[Bucket, int] = {"hour": 1, "day": 24, "month": 24}
"""Hours of a bucket; months are summed from days."""
_UnderWay = Callable[[], tuple[Sequence[Call], Sequence[OpenedCall]]]
_FOREVER = 10**8 * _HOUR_S
_COLUMNS = "hour", *get_args(Dimension), *SUMS


class SQLUsages:
    """`Usages` and `LedgerSums` over a database."""

    def __init__(self, database: Database, under_way: _UnderWay = lambda: ((), ())) -> None:
        """`under_way`: returns the ended and the open calls of running runs."""
        self._database = database
        self._under_way = under_way

    async def usage(self, query: UsageQuery) -> UsageReport:
        """See `Usages.usage`."""
        return await self._database.read(partial(usage_in, query=query))

    async def since(self, deployment: str, start: float) -> LedgerSum:
        """See `LedgerSums.since`."""
        read = partial(_since, deployment=storable(deployment), start=start)
        groups, uncertain, complete = await self._database.read(read)
        ended, opened = self._under_way()
        for call in (*ended, *opened):
            if call.deployment == deployment and call.started_at >= start:
                groups.append(group := _alone(call))
                if not group.exact and not group.nothing:
                    uncertain.append(call.request_id)

        groups = [group for group in groups if not group.nothing]
        reported = [group for group in groups if group.counted in ("reported", "lower_bound")]
        lower_bound = Tokens(
            sum(group.read for group in reported), sum(group.wrote for group in reported)
        )
        upper_bound = Tokens(
            sum(group.read if group in reported else group.prompt_bound for group in groups),
            sum(group.wrote if group.exact else group.max_tokens for group in groups),
        )
        completed_calls = sum(group.calls for group in groups if group.outcome in COMPLETE_OUTCOMES)
        return LedgerSum(
            completed_calls,
            tuple(uncertain[:_LISTED]),
            lower_bound,
            upper_bound,
            complete,
        )


def usage_in(connection: Connection, query: UsageQuery) -> UsageReport:
    """Return the usage in one snapshot of the database. Raises `BadRequest`."""
    if query.start is not None and query.end is not None and query.start >= query.end:
        raise BadRequest("start_time must be before end_time; leave one of them out, or swap them.")

    begin_snapshot(connection)
    start = query.start or 0.0
    end = _FOREVER if query.end is None else query.end
    first = -int(-start // _HOUR_S)
    last = int(end // _HOUR_S)
    pieces = [(start, first * _HOUR_S), (last * _HOUR_S, end)] if first <= last else [(start, end)]
    hours = USAGE_HOURS.c
    whole_hours = select(*(hours[name] for name in _COLUMNS)).where(
        hours.hour >= first, hours.hour < last
    )
    runs = select(func.count()).where(RUNS.c.started_at >= start, RUNS.c.started_at < end)
    if query.tenant is not None:
        whole_hours = whole_hours.where(hours.tenant == storable(query.tenant))
        runs = runs.where(RUNS.c.tenant == storable(query.tenant))
    parts = [whole_hours]
    for begun, ended in pieces:
        if begun < ended:
            hour = int(begun // _HOUR_S)
            tenants = (
                _tenants(connection, hour) if query.tenant is None else [storable(query.tenant)]
            )
            _check_kept(connection, tenants, hour)
            parts.append(_hourly(hour).where(*_ended(tenants, begun, ended)))
    rows = _summed(connection, query, parts)
    return UsageReport(
        connection.execute(runs).scalar_one(), tuple(rows[key] for key in sorted(rows))
    )


def _tenants(connection: Connection, hour: int) -> list[str]:
    """Return the tenants with calls in an hour; with their names, the index finds the calls."""
    return list(
        connection.scalars(
            select(USAGE_HOURS.c.tenant).where(USAGE_HOURS.c.hour == hour).distinct()
        )
    )


def _hourly(hour: int) -> Select[Any]:
    """Select the calls of an hour as rows of `usage_hours`, one per call."""
    calls = CALLS.c
    known = {
        name: func.coalesce(calls[name], 0)
        for name in SUMMED_COUNTS
        if not USAGE_HOURS.c[name].nullable
    }
    columns: dict[str, ColumnElement[Any]] = {
        **dict(calls.items()),
        **known,
        "hour": literal_column(str(hour), Integer),
        "attempts": literal_column("1", Integer),
        "attempts_without_usage": case((calls.prompt_tokens.is_(None), 1), else_=0),
        "attempts_without_cost": case((calls.nano_usd.is_(None), 1), else_=0),
    }
    return select(*(columns[name].label(name) for name in _COLUMNS))


def _ended(tenants: list[str], start: float, end: float) -> list[ColumnElement[bool]]:
    calls = CALLS.c
    return [calls.tenant.in_(tenants), calls.started_at >= start, calls.started_at < end]


def _check_kept(connection: Connection, tenants: list[str], hour: int) -> None:
    """Raise `BadRequest` if calls of an hour have been deleted, so that a part of it cannot be
    summed.
    """
    start = hour * _HOUR_S
    hours = (USAGE_HOURS.c.hour == hour, USAGE_HOURS.c.tenant.in_(tenants))
    if not _all_kept(connection, hours, _ended(tenants, start, start + _HOUR_S)):
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start))
        raise BadRequest(
            f"calls of the hour from {begun} on have been deleted (server.keep_days), and only its "
            "sum is left; use a span of whole hours."
        )


_Conditions = Iterable[ColumnElement[bool]]


def _all_kept(connection: Connection, hours: _Conditions, calls: _Conditions) -> bool:
    """Return whether the stored `calls` are as many as `hours` have summed."""
    summed = connection.scalar(select(func.sum(USAGE_HOURS.c.attempts)).where(*hours)) or 0
    stored = connection.execute(select(func.count()).select_from(CALLS).where(*calls)).scalar_one()
    return stored >= int(summed)


def _summed(
    connection: Connection, query: UsageQuery, parts: list[Select[Any]]
) -> dict[tuple[Any, ...], UsageRow]:
    """Sum rows of `_COLUMNS`. Return the sums by time and dimensions."""
    columns = union_all(*parts).subquery().c
    rows = dict[tuple[Any, ...], UsageRow]()
    groups: list[ColumnElement[Any]] = [columns[name] for name in query.by]
    if query.bucket is not None:
        length = literal_column(str(_BUCKET_HOURS[query.bucket]), Integer)
        groups.append((columns.hour // length * length).label("at"))
    sums = (func.sum(columns[name]).label(name) for name in SUMS)
    for sum_row in connection.execute(select(*groups, *sums).group_by(*groups)).mappings():
        if not sum_row["attempts"]:
            continue  # the sum of no rows
        counts = {name: None if sum_row[name] is None else int(sum_row[name]) for name in SUMS}
        at = None if query.bucket is None else _bucket_start(query.bucket, sum_row["at"])
        by: dict[str, Any] = {name: sum_row[name] for name in query.by}
        row = UsageRow(bucket_start=at, **by, **counts)  # type: ignore[arg-type]
        key = at or 0.0, *by.values()
        rows[key] = msgspec.structs.replace(row, **added([rows[key], row])) if key in rows else row
    return rows


def _bucket_start(bucket: Bucket, hour: int) -> float:
    """Return the Unix time at which the bucket of an hour begins."""
    begun = hour // _BUCKET_HOURS[bucket] * _BUCKET_HOURS[bucket] * _HOUR_S
    if bucket == "month":
        return datetime.fromtimestamp(begun, UTC).replace(day=1).timestamp()
    return float(begun)


def hourly_usage(calls: Iterable[Call]) -> list[dict[str, Any]]:
    """Sum calls to rows of `usage_hours`."""
    groups: dict[tuple[Any, ...], list[Call]] = {}
    for call in calls:
        row = msgspec.structs.asdict(call) | {"hour": int(call.started_at // _HOUR_S)}
        key = tuple("" if row[name] is None else row[name] for name in GROUPS)
        groups.setdefault(key, []).append(call)
    return [
        {**dict(zip(GROUPS, key, strict=True)), **sums_of(members)}
        for key, members in groups.items()
    ]


_LISTED = 1000
"""Max number of uncertain calls that are named."""
_ALIKE = CALLS.c.outcome, CALLS.c.counted, CALLS.c.first_token_s.is_(None).label("silent")
_SUMMED = CALLS.c.prompt_tokens, CALLS.c.completion_tokens, CALLS.c.prompt_bound, CALLS.c.max_tokens


class _Calls(NamedTuple):
    """Sums of calls with the same kind of end. Open calls have no outcome."""

    outcome: str
    counted: str
    silent: bool
    calls: int
    read: int
    wrote: int
    prompt_bound: int
    max_tokens: int

    @property
    def nothing(self) -> bool:
        """True if the endpoint did no work."""
        return self.outcome in ("refused", "connect_error") and self.counted == "" and self.silent

    @property
    def exact(self) -> bool:
        """True if the usage of the calls is known exactly."""
        return self.outcome in COMPLETE_OUTCOMES and self.counted == "reported"


def _alone(call: OpenedCall) -> _Calls:
    if not isinstance(call, Call):
        return _Calls(
            "",
            "",
            False,
            1,
            0,
            0,
            call.prompt_bound,
            call.max_tokens,
        )
    read, wrote = (call.usage.prompt_tokens, call.usage.completion_tokens) if call.usage else (0, 0)
    silent = call.first_token_s is None
    return _Calls(
        call.outcome,
        call.counted,
        silent,
        1,
        read,
        wrote,
        call.prompt_bound,
        call.max_tokens,
    )


def _since(
    connection: Connection, deployment: str, start: float
) -> tuple[list[_Calls], list[str], bool]:
    """Return sums of a deployment's calls by their kind of end, the names of uncertain calls, and
    whether all calls are still stored.
    """
    begin_snapshot(connection)
    wanted = CALLS.c.deployment == deployment, CALLS.c.started_at >= start
    sums = (func.count(), *(func.coalesce(func.sum(column), 0) for column in _SUMMED))
    rows = connection.execute(select(*_ALIKE, *sums).where(*wanted).group_by(*_ALIKE))
    groups = [_Calls._make((*row[:2], bool(row.silent), *map(int, row[3:]))) for row in rows]
    uncertain = [group[:3] for group in groups if not group.exact and not group.nothing]
    named = select(CALLS.c.run_id, CALLS.c.number).where(*wanted, tuple_(*_ALIKE).in_(uncertain))
    names = connection.execute(named.order_by(CALLS.c.started_at).limit(_LISTED))
    hour = -int(-start // _HOUR_S)  # the first whole one
    hours = USAGE_HOURS.c.deployment == deployment, USAGE_HOURS.c.hour >= hour
    complete = _all_kept(connection, hours, [wanted[0], CALLS.c.started_at >= hour * _HOUR_S])
    return groups, [f"{run_id}-{number}" for run_id, number in names], complete
