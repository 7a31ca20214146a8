"""Sums of the ledger over a deployment's calls, for comparison with its engine."""

from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from router.ledger.reconciliation import LedgerSum, Tokens
from router.store.database import Database, begin_snapshot, storable
from router.store.schema import CALLS, USAGE_HOURS
from router.store.usage import HOUR_S
from router.trace.call import WHOLE

_LISTED = 1000
_calls = CALLS.c
_whole = _calls.outcome.in_(WHOLE)
_exact = and_(_whole, _calls.counted == "reported")
_turned_away = _calls.outcome.in_(("refused", "connect_error"))
_nothing = and_(_turned_away, _calls.counted == "", _calls.first_token_s.is_(None))
"""The endpoint did not begin."""
_told = _calls.counted.in_(("reported", "lower_bound"))
_uncertain = ~or_(_exact, _nothing)


class SQLLedgerSums:
    """Sums over what `SQLJournal` writes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def since(self, deployment: str, start: float) -> LedgerSum:
        """The calls of `deployment` that started at the Unix time `start` or later. Raises `StoreFailed`."""
        return await self._database.read(partial(_since, deployment=storable(deployment), start=start))


def _since(connection: Connection, deployment: str, start: float) -> LedgerSum:
    begin_snapshot(connection)
    wanted = and_(_calls.deployment == deployment, _calls.started_at >= start)
    sums = select(
        _sum((_whole, 1)),
        _sum((_told, _calls.prompt_tokens)),
        _sum((_told, _calls.completion_tokens)),
        _sum((_told, _calls.prompt_tokens), (~_nothing, _calls.prompt_bound)),
        _sum((_exact, _calls.completion_tokens), (~_nothing, _calls.max_tokens)),
    )
    completed, *tokens = map(int, connection.execute(sums.where(wanted)).one())
    return LedgerSum(
        completed_calls=completed,
        uncertain_calls=_names(connection, wanted),
        least=Tokens(*tokens[:2]),
        most=Tokens(*tokens[2:]),
        complete=_complete(connection, deployment, start),
    )


def _sum(*whens: tuple[ColumnElement[bool], Any]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case(*whens, else_=0)), 0)


def _names(connection: Connection, wanted: ColumnElement[bool]) -> tuple[str, ...]:
    named = select(_calls.run_id, _calls.number).where(wanted, _uncertain).order_by(_calls.started_at).limit(_LISTED)
    return tuple(f"{run_id}-{number}" for run_id, number in connection.execute(named))


def _complete(connection: Connection, deployment: str, start: float) -> bool:
    """True where all calls are still there that the hours from the first whole one on have summed."""
    hour = -int(-start // HOUR_S)
    hours = USAGE_HOURS.c
    summed = select(func.coalesce(func.sum(hours.attempts), 0)).where(
        hours.deployment == deployment, hours.hour >= hour
    )
    there = select(func.count()).where(
        _calls.deployment == deployment, _calls.started_at >= hour * HOUR_S, _calls.outcome != "open"
    )
    return bool(connection.execute(there).scalar_one() >= connection.execute(summed).scalar_one())
