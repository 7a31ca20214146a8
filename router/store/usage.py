"""Sums over stored calls, computed by the database. They are used to report the usage of tenants,
and for reconciliation: the comparison with the counters of a model's endpoint.

The whole hours of a time span are summed from the table `usage_hours`. It is small, and keeps its
rows when calls are deleted. If the span begins or ends within an hour, the calls in this hour are
summed from the table `calls`, by its index on tenant and time.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

from msgspec import structs
from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    case,
    func,
    literal,
    literal_column,
    select,
    tuple_,
    union_all,
)

from router.errors import BadRequest
from router.frozen import Frozen
from router.ledger import UsageQuery, UsageReport
from router.ledger.reconciliation import LedgerSum, Tokens
from router.ledger.usage import Bucket, Dimension, UsageRow
from router.models import Usage
from router.store.database import Database, begin_snapshot, storable
from router.store.schema import CALLS, GROUPS, RUNS, USAGE_HOURS, USAGE_KEY_HOURS
from router.trace import Call
from router.trace.call import COMPLETE_OUTCOMES, SUMMED_COUNTS, SUMS, OpenedCall, added, sums_of

_HOUR_S = 3600
_BUCKET_HOURS: dict[Bucket, int] = {"hour": 1, "day": 24, "month": 24}
"""Number of hours that the database sums to one row, by the length of the requested buckets. For
months, the database sums days, and the days are added up afterwards.
"""
_FOREVER = 10**8 * _HOUR_S
_COLUMNS = "hour", *get_args(Dimension), *SUMS


class SQLUsages(Frozen):
    """Implements `Usages` and `LedgerSums` with a database."""

    database: Database
    under_way: Callable[[], tuple[Sequence[Call], Sequence[OpenedCall]]] = lambda: ((), ())
    """Function that returns the ended calls and the open calls of this gateway's running runs.
    These calls are not in the database yet.
    """

    async def usage(self, query: UsageQuery) -> UsageReport:
        """See `Usages.usage`."""
        return await self.database.read(usage_in, query)

    async def since(self, deployment: str, start: float) -> LedgerSum:
        """See `LedgerSums.since`."""
        groups, uncertain, complete = await self.database.read(_since, storable(deployment), start)
        ended, opened = self.under_way()
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
    """Return the usage that `query` selects, from one snapshot of the database. Raises
    `BadRequest`, see `Usages.usage`.
    """
    if query.start is not None and query.end is not None and query.start >= query.end:
        raise BadRequest("start_time must be before end_time; swap them, or leave one of them out.")

    begin_snapshot(connection)
    start = query.start or 0.0
    end = _FOREVER if query.end is None else query.end
    first = -int(-start // _HOUR_S)
    last = int(end // _HOUR_S)
    pieces = [(start, first * _HOUR_S), (last * _HOUR_S, end)] if first <= last else [(start, end)]
    hours = (USAGE_KEY_HOURS if "key_id" in query.by else USAGE_HOURS).c
    known = {"key_id": literal(""), **dict(hours.items())}
    whole_hours = select(*(known[name].label(name) for name in _COLUMNS)).where(
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
    """Return the tenants that have calls in an hour. A query needs them to find the calls by the
    index on tenant and time.
    """
    return list(
        connection.scalars(
            select(USAGE_HOURS.c.tenant).where(USAGE_HOURS.c.hour == hour).distinct()
        )
    )


def _hourly(hour: int) -> Select[Any]:
    """Return a query for the calls of one hour. The result has one row per call, with the columns
    of `usage_hours`.
    """
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
    """Raise `BadRequest` if calls of an hour have been deleted. Then the sum is known only for the
    whole hour, not for a part of it.
    """
    start = hour * _HOUR_S
    hours = (USAGE_HOURS.c.hour == hour, USAGE_HOURS.c.tenant.in_(tenants))
    if not _all_kept(connection, hours, _ended(tenants, start, start + _HOUR_S)):
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start))
        raise BadRequest(
            f"calls of the hour that begins at {begun} have been deleted (server.keep_days), so "
            "only the sum of the whole hour is known; start and end the time span at whole hours."
        )


_Conditions = Iterable[ColumnElement[bool]]


def _all_kept(connection: Connection, hours: _Conditions, calls: _Conditions) -> bool:
    """Return True if no calls have been deleted: at least as many calls are stored as `usage_hours`
    has counted. `hours`, `calls`: conditions on the rows of the tables `usage_hours` and `calls`.
    """
    summed = connection.scalar(select(func.sum(USAGE_HOURS.c.attempts)).where(*hours)) or 0
    stored = connection.execute(select(func.count()).select_from(CALLS).where(*calls)).scalar_one()
    return stored >= int(summed)


def _summed(
    connection: Connection, query: UsageQuery, parts: list[Select[Any]]
) -> dict[tuple[Any, ...], UsageRow]:
    """Sum the rows of the queries `parts`, whose columns are `_COLUMNS`. Return the sums by key:
    the start of the bucket in Unix time (0 without buckets), and the values of the dimensions.
    """
    columns = union_all(*parts).subquery().c
    rows = dict[tuple[Any, ...], UsageRow]()
    groups: list[ColumnElement[Any]] = [columns[name] for name in query.by]
    if query.bucket is not None:
        length = literal_column(str(_BUCKET_HOURS[query.bucket]), Integer)
        groups.append((columns.hour // length * length).label("at"))
    sums = (func.sum(columns[name]).label(name) for name in SUMS)
    for sum_row in connection.execute(select(*groups, *sums).group_by(*groups)).mappings():
        if not sum_row["attempts"]:
            continue  # without rows, SQL returns one sum of null
        counts = {name: None if sum_row[name] is None else int(sum_row[name]) for name in SUMS}
        at = None if query.bucket is None else _bucket_start(query.bucket, sum_row["at"])
        by: dict[str, Any] = {name: sum_row[name] for name in query.by}
        row = UsageRow(bucket_start=at, **by, **counts)  # type: ignore[arg-type]
        key = at or 0.0, *by.values()
        rows[key] = structs.replace(row, **added([rows[key], row])) if key in rows else row
    return rows


def _bucket_start(bucket: Bucket, hour: int) -> float:
    """Return the Unix time at which a bucket begins. `hour`: first hour of a summed row in this
    bucket, as Unix time // 3600.
    """
    begun = datetime.fromtimestamp(hour * _HOUR_S, UTC)
    return (begun.replace(day=1) if bucket == "month" else begun).timestamp()


def hourly_usage(calls: Iterable[Call], by: tuple[str, ...] = GROUPS) -> list[dict[str, Any]]:
    """Return the sums of calls as rows of a table with the primary key `by`."""
    groups = dict[tuple[Any, ...], list[Call]]()
    for call in calls:
        row = structs.asdict(call) | {"hour": int(call.started_at // _HOUR_S)}
        key = tuple("" if row[name] is None else row[name] for name in by)
        groups.setdefault(key, []).append(call)
    return [
        {**dict(zip(by, key, strict=True)), **sums_of(members)} for key, members in groups.items()
    ]


_LISTED = 1000
"""Max number of calls with uncertain usage that a result lists by name."""
_ALIKE = CALLS.c.outcome, CALLS.c.counted, CALLS.c.first_token_s.is_(None).label("silent")
_SUMMED = CALLS.c.prompt_tokens, CALLS.c.completion_tokens, CALLS.c.prompt_bound, CALLS.c.max_tokens


class _Calls(NamedTuple):
    """Sums of the calls that ended in the same way: with the same `outcome`, `counted` and
    `silent`.
    """

    outcome: str
    """Outcome of the calls; empty for open calls."""
    counted: str
    """How the number of tokens is known, see `Call.counted`."""
    silent: bool
    """True if the calls had no first token."""
    calls: int
    """Number of calls."""
    read: int
    """Sum of the known prompt tokens."""
    wrote: int
    """Sum of the known completion tokens."""
    prompt_bound: int
    """Sum of the upper bounds of the calls' prompt tokens."""
    max_tokens: int
    """Sum of the calls' limits for completion tokens."""

    @property
    def nothing(self) -> bool:
        """True if the model's endpoint did no work for the calls, so that the endpoint's counters
        do not include these calls.
        """
        return self.outcome in ("refused", "connect_error") and self.counted == "" and self.silent

    @property
    def exact(self) -> bool:
        """True if the usage of the calls is known exactly."""
        return self.outcome in COMPLETE_OUTCOMES and self.counted == "reported"


def _alone(call: OpenedCall) -> _Calls:
    alone = _Calls("", "", False, 1, 0, 0, call.prompt_bound, call.max_tokens)
    if isinstance(call, Call):
        usage = call.usage or Usage(0, 0)
        alone = alone._replace(
            outcome=call.outcome,
            counted=call.counted,
            silent=call.first_token_s is None,
            read=usage.prompt_tokens,
            wrote=usage.completion_tokens,
        )
    return alone


def _since(
    connection: Connection, deployment: str, start: float
) -> tuple[list[_Calls], list[str], bool]:
    """Return three values for the calls of a deployment since the Unix time `start`: their sums,
    grouped by the way in which they ended; the names (`RUN-NUMBER`) of at most `_LISTED` calls with
    uncertain usage; and True if none of the calls has been deleted.
    """
    begin_snapshot(connection)
    wanted = CALLS.c.deployment == deployment, CALLS.c.started_at >= start
    sums = (func.count(), *(func.coalesce(func.sum(column), 0) for column in _SUMMED))
    rows = connection.execute(select(*_ALIKE, *sums).where(*wanted).group_by(*_ALIKE))
    groups = [_Calls._make((*row[:2], bool(row.silent), *map(int, row[3:]))) for row in rows]
    uncertain = [group[:3] for group in groups if not group.exact and not group.nothing]
    named = select(CALLS.c.run_id, CALLS.c.number).where(*wanted, tuple_(*_ALIKE).in_(uncertain))
    names = connection.execute(named.order_by(CALLS.c.started_at).limit(_LISTED))
    hour = -int(-start // _HOUR_S)  # the first whole hour
    hours = USAGE_HOURS.c.deployment == deployment, USAGE_HOURS.c.hour >= hour
    complete = _all_kept(connection, hours, [wanted[0], CALLS.c.started_at >= hour * _HOUR_S])
    return groups, [f"{run_id}-{number}" for run_id, number in names], complete
