"""Writes what comes together in one transaction: while one is being committed, the next gathers."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from router.errors import RolegateError, StoreFailed
from router.store.database import FAILED, Database
from router.store.operations import Operation
from router.store.unit_of_work import Books

_log = structlog.get_logger("store")
_MOST = 256
"""Operations of one transaction."""
_CROWD, _GATHERING_S = 4, 0.004
"""Where at least so many waited for a transaction, the next one lets more gather: a transaction costs more than an
operation."""


@dataclass(frozen=True, slots=True)
class _Entry:
    operation: Operation
    answer: "asyncio.Future[object] | None" = None
    """Who waits for it; None for what is to be written sooner or later."""

    def hear(self, outcome: object) -> None:
        """Let whoever waits know."""
        if self.answer is None or self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class GroupCommit:
    """A queue of operations in front of a database, written in the order in which they come."""

    def __init__(self, database: Database, gateway_id: str, first: Callable[[], Operation | None]) -> None:
        """`first`: asked before each transaction for an operation to be put in front."""
        self._database, self._gateway_id, self._first = database, gateway_id, first
        self._entries: deque[_Entry] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def tell(self, operation: Operation) -> None:
        """Write `operation` before whatever is asked for next, or else as soon as that is possible."""
        self._put(_Entry(operation))

    async def ask(self, operation: Operation) -> object:
        """What `operation` comes to, once that is committed, and on disk where it is promised to a client.

        Raises what it raises, and `StoreFailed`.
        """
        answer = asyncio.get_running_loop().create_future()
        self._put(_Entry(operation, answer))
        return await answer

    async def run(self) -> None:
        """Write until closed, and then what is left."""
        crowded = False
        while not self._closed or self._entries:
            await self._news.wait()
            await asyncio.sleep(_GATHERING_S if crowded else 0)  # who heard of the last commit now says what is next
            batch = self._taken()
            crowded = sum(entry.answer is not None for entry in batch) >= _CROWD
            if not self._entries and not self._closed:
                self._news.clear()
            kept = await self._commit(batch) if batch else []
            if len(kept) >= _MOST:  # whoever stands behind these would wait for as long as the store does not work
                kept += [again for entry in self._entries for again in _failed(entry, FAILED, passing=True)]
                self._entries.clear()
                self._news.clear()
            if kept and self._closed:
                _log.error("store.lost", operations=len(kept))
            else:
                self._entries.extendleft(reversed(kept))

    def close(self) -> None:
        """Take no more."""
        self._closed = True
        self._news.set()

    def _put(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._news.set()

    def _taken(self) -> list[_Entry]:
        batch = [self._entries.popleft() for _ in range(min(_MOST, len(self._entries)))]
        first = self._first()
        return [_Entry(first), *batch] if first and batch else batch

    async def _commit(self, batch: Sequence[_Entry]) -> list[_Entry]:
        """Write `batch`; what is to be tried again."""
        operations = [entry.operation for entry in batch]
        try:
            outcomes = await self._database.write(
                partial(_written, operations, self._gateway_id),
                on_disk=any(operation.scope.promised for operation in operations),
            )
        except Exception as error:
            cause = error.__cause__ if isinstance(error, StoreFailed) else error
            passing = isinstance(cause, DBAPIError) and not isinstance(cause, DataError | IntegrityError)
            lost = isinstance(cause, FileNotFoundError)  # for good: nothing is worth keeping
            if not passing and not lost and len(batch) > 1:  # one of them cannot be written; the others can
                return [kept for entry in batch for kept in await self._commit([entry])]
            if not passing and not lost:
                _log.error("store.refused", operation=str(operations[0].scope), error=type(cause).__name__)
            text = str(error) if lost else FAILED
            return [kept for entry in batch for kept in _failed(entry, text, passing=passing)]
        for entry, outcome in zip(batch, outcomes, strict=True):
            entry.hear(outcome)
        return []


def _written(operations: Iterable[Operation], gateway_id: str, connection: Connection) -> list[object]:
    books = Books(connection, gateway_id, [operation.scope for operation in operations])
    outcomes = [_applied(operation, books) for operation in operations]
    books.write()
    return outcomes


def _applied(operation: Operation, books: Books) -> object:
    try:
        return operation.apply(books)
    except RolegateError as error:
        return error


def _failed(entry: _Entry, text: str, *, passing: bool) -> list[_Entry]:
    """Let whoever waits know; what is to be tried again."""
    if entry.answer is None:
        return [entry] if passing else []
    entry.hear(StoreFailed(text))
    otherwise = entry.operation.otherwise
    return [_Entry(otherwise)] if otherwise else []
