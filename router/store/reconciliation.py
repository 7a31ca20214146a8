"""Sums of the ledger over a deployment's calls, for comparison with its engine."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, and_, func, or_, select

from router.ledger.reconciliation import LedgerSum, Tokens
from router.store.database import Database, begin_snapshot, storable
from router.store.schema import CALLS, USAGE_HOURS
from router.store.usage import HOUR_S, all_kept
from router.trace import Call
from router.trace.call import WHOLE, OpenedCall

_LISTED = 1000
_calls = CALLS.c
_ALIKE = _calls.outcome, _calls.counted, _calls.first_token_s.is_(None).label("silent")
_SUMMED = _calls.prompt_tokens, _calls.completion_tokens, _calls.prompt_bound, _calls.max_tokens


class _Calls(NamedTuple):
    """Calls that ended alike, and their sums; those under way have no outcome."""

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
        """Whether their endpoint did not begin."""
        return self.outcome in ("refused", "connect_error") and self.counted == "" and self.silent

    @property
    def exact(self) -> bool:
        """Whether all is known that they spent."""
        return self.outcome in WHOLE and self.counted == "reported"


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
        read = partial(_since, deployment=storable(deployment), start=start)
        groups, uncertain, complete = await self._database.read(read)
        ended, opened = self._under_way()
        for call in (*ended, *opened):
            if call.deployment == deployment and call.started_at >= start:
                groups.append(group := _alone(call))
                uncertain += [] if group.exact or group.nothing else [call.request_id]
        groups = [group for group in groups if not group.nothing]
        told = [group for group in groups if group.counted in ("reported", "lower_bound")]
        least = Tokens(sum(group.read for group in told), sum(group.wrote for group in told))
        most = Tokens(
            sum(group.read if group in told else group.prompt_bound for group in groups),
            sum(group.wrote if group.exact else group.max_tokens for group in groups),
        )
        whole = sum(group.calls for group in groups if group.outcome in WHOLE)
        return LedgerSum(whole, tuple(uncertain[:_LISTED]), least, most, complete)


def _alone(call: OpenedCall) -> _Calls:
    if not isinstance(call, Call):
        return _Calls("", "", False, 1, 0, 0, call.prompt_bound, call.max_tokens)
    read, wrote = (call.usage.prompt_tokens, call.usage.completion_tokens) if call.usage else (0, 0)
    silent = call.first_token_s is None
    return _Calls(call.outcome, call.counted, silent, 1, read, wrote, call.prompt_bound, call.max_tokens)


def _since(connection: Connection, deployment: str, start: float) -> tuple[list[_Calls], list[str], bool]:
    """The calls by how they ended, the names of those that are uncertain, and whether none have been deleted."""
    begin_snapshot(connection)
    wanted = _calls.deployment == deployment, _calls.started_at >= start
    sums = (func.count(), *(func.coalesce(func.sum(column), 0) for column in _SUMMED))
    rows = connection.execute(select(*_ALIKE, *sums).where(*wanted).group_by(*_ALIKE))
    groups = [_Calls._make((*row[:2], bool(row.silent), *map(int, row[3:]))) for row in rows]
    uncertain = [
        and_(*(column == value for column, value in zip(_ALIKE, group[:3], strict=True)))
        for group in groups
        if not group.exact and not group.nothing
    ]
    named = select(_calls.run_id, _calls.number).where(*wanted, or_(False, *uncertain))
    names = connection.execute(named.order_by(_calls.started_at).limit(_LISTED))
    hour = -int(-start // HOUR_S)  # the first whole one
    hours = USAGE_HOURS.c.deployment == deployment, USAGE_HOURS.c.hour >= hour
    complete = all_kept(connection, hours, [wanted[0], _calls.started_at >= hour * HOUR_S])
    return groups, [f"{run_id}-{number}" for run_id, number in names], complete
