"""Sums of the ledger over a deployment's calls, for comparison with its engine."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from router.ledger.reconciliation import LedgerSum, Tokens
from router.store.database import Database, begin_snapshot, storable
from router.store.schema import CALLS, USAGE_HOURS
from router.store.usage import HOUR_S
from router.trace import Call
from router.trace.call import WHOLE, OpenedCall

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
    """Sums over what `LogJournal` writes."""

    def __init__(
        self,
        database: Database,
        under_way: Callable[[], tuple[Sequence[Call], Sequence[OpenedCall]]] = lambda: ((), ()),
    ) -> None:
        """`under_way`: the calls of runs that have not ended: those that have, and those that have not."""
        self._database, self._under_way = database, under_way

    async def since(self, deployment: str, start: float) -> LedgerSum:
        """The calls of `deployment` that started at the Unix time `start` or later. Raises `StoreFailed`."""
        found = await self._database.read(partial(_since, deployment=storable(deployment), start=start))
        ended, opened = self._under_way()
        return _with(
            found,
            [call for call in ended if call.deployment == deployment and call.started_at >= start],
            [call for call in opened if call.deployment == deployment and call.started_at >= start],
        )


def _with(found: LedgerSum, ended: Sequence[Call], opened: Sequence[OpenedCall]) -> LedgerSum:
    """The sum with calls that are not in the database yet, counted as it counts its own."""
    least, most, uncertain = found.least, found.most, [call.request_id for call in opened]
    for call in ended:
        usage, exact = call.usage, call.outcome in WHOLE and call.counted == "reported"
        if call.outcome in ("refused", "connect_error") and usage is None and call.first_token_s is None:
            continue
        told = usage if call.counted in ("reported", "lower_bound") else None
        read, wrote = (told.prompt_tokens, told.completion_tokens) if told else (0, 0)
        least = Tokens(least.prompt + read, least.completion + wrote)
        most = Tokens(
            most.prompt + (read if told else call.prompt_bound), most.completion + (wrote if exact else call.max_tokens)
        )
        uncertain += [] if exact else [call.request_id]
    most = Tokens(
        most.prompt + sum(call.prompt_bound for call in opened),
        most.completion + sum(call.max_tokens for call in opened),
    )
    return LedgerSum(
        found.completed_calls + sum(call.outcome in WHOLE for call in ended),
        (*found.uncertain_calls, *uncertain)[:_LISTED],
        least,
        most,
        found.complete,
    )


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
    there = select(func.count()).where(_calls.deployment == deployment, _calls.started_at >= hour * HOUR_S)
    return bool(connection.execute(there).scalar_one() >= connection.execute(summed).scalar_one())
