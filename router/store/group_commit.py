"""Group commit: operations that come together are written in one transaction; while it commits, the next gathers."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from router.errors import RolegateError, StoreFailed
from router.store.database import FAILED, Database
from router.store.operations import Operation, Outcome
from router.store.unit_of_work import UnitOfWork

_log = structlog.get_logger("store")
_MOST = 256
"""Operations of one transaction."""
_CROWD, _GATHERING_S = 4, 0.004
"""Where at least so many waited for a transaction, the next one lets more gather: a transaction costs more than an
operation."""


@dataclass(frozen=True, slots=True)
class _Entry:
    operation: Operation[Any]
    outcome: "asyncio.Future[Any] | None" = None
    """None where nothing waits for it, so that it is written sooner or later."""
    compensation: Operation[Any] | None = None
    """To be written, as soon as that is possible, where this could not be, though it was waited for."""
    durable: bool = False

    def resolve(self, outcome: object) -> None:
        """Set its outcome, an error or a value."""
        if self.outcome is None or self.outcome.done():
            return
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


class GroupCommit:
    """A queue of operations in front of a database, written in the order in which they come."""

    def __init__(self, database: Database, gateway_id: str, first: Callable[[], Operation[Any] | None]) -> None:
        """`first`: asked before each transaction for an operation to be put in front."""
        self._database, self._gateway_id, self._first = database, gateway_id, first
        self._entries: deque[_Entry] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def enqueue(self, operation: Operation[Any]) -> None:
        """Write `operation` before whatever is submitted next, or else as soon as that is possible."""
        self._put(_Entry(operation))

    async def submit(
        self, operation: Operation[Outcome], compensation: Operation[Any] | None = None, *, durable: bool = False
    ) -> Outcome:
        """The outcome of `operation`, once that is committed, and on disk where it is to be `durable`.

        Raises what it raises, and `StoreFailed`; then `compensation` is written as soon as that is possible.
        """
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._put(_Entry(operation, outcome, compensation, durable))
        return await outcome

    async def run(self) -> None:
        """Write until closed, and then what is left."""
        crowded = False
        while not self._closed or self._entries:
            await self._news.wait()
            await asyncio.sleep(_GATHERING_S if crowded else 0)  # who heard of the last commit now says what is next
            batch = self._next_batch()
            crowded = sum(entry.outcome is not None for entry in batch) >= _CROWD
            if not self._entries and not self._closed:
                self._news.clear()
            left = await self._commit(batch) if batch else []
            if len(left) >= _MOST:  # whoever stands behind these would wait for as long as the store does not work
                left += [again for entry in self._entries for again in _failed(entry, FAILED, passing=True)]
                self._entries.clear()
                self._news.clear()
            if left and self._closed:
                _log.error("store.lost", operations=len(left))
            else:
                self._entries.extendleft(reversed(left))

    def close(self) -> None:
        """Take no more."""
        self._closed = True
        self._news.set()

    def _put(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._news.set()

    def _next_batch(self) -> list[_Entry]:
        batch = [self._entries.popleft() for _ in range(min(_MOST, len(self._entries)))]
        first = self._first()
        return [_Entry(first), *batch] if first and batch else batch

    async def _commit(self, batch: Sequence[_Entry]) -> list[_Entry]:
        """Write `batch`; return what is to be tried again."""
        operations = [entry.operation for entry in batch]
        try:
            outcomes = await self._database.write(
                partial(_apply, operations, self._gateway_id), on_disk=any(entry.durable for entry in batch)
            )
        except Exception as error:
            cause = error.__cause__ if isinstance(error, StoreFailed) else error
            passing = isinstance(cause, DBAPIError) and not isinstance(cause, DataError | IntegrityError)
            lost = isinstance(cause, FileNotFoundError)  # for good: nothing is worth another try
            if not passing and not lost and len(batch) > 1:  # one of them cannot be written; the others can
                return [left for entry in batch for left in await self._commit([entry])]
            if not passing and not lost:
                _log.error("store.refused", operation=str(operations[0].reads), error=type(cause).__name__)
            text = str(error) if lost else FAILED
            return [left for entry in batch for left in _failed(entry, text, passing=passing)]
        for entry, outcome in zip(batch, outcomes, strict=True):
            entry.resolve(outcome)
        return []


def _apply(operations: Iterable[Operation[Any]], gateway_id: str, connection: Connection) -> list[object]:
    work = UnitOfWork(connection, gateway_id, [operation.reads for operation in operations])
    outcomes: list[object] = []
    for operation in operations:
        try:
            outcomes.append(operation.apply(work))
        except RolegateError as error:
            outcomes.append(error)
    work.write()
    return outcomes


def _failed(entry: _Entry, text: str, *, passing: bool) -> list[_Entry]:
    """Resolve an entry as failed; return what is to be tried again."""
    if entry.outcome is None:
        return [entry] if passing else []
    entry.resolve(StoreFailed(text))
    return [_Entry(entry.compensation, durable=entry.durable)] if entry.compensation else []
