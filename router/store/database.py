"""A database: SQLite in a file, or PostgreSQL."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from router.errors import BadConfig, StoreFailed
from router.store.direct import translated
from router.store.engine import NOTES, WRITES, cannot_open, engine_of, files_of, keep_private

_log = structlog.get_logger("store")
_READERS = 4
_ATTEMPTS = 5
_LOST_TO_OTHERS = ("40001", "40P01")
"""PostgreSQL's codes for a transaction that stood in the way of others: it has done nothing, and can be repeated."""
Value = TypeVar("Value")


class Database:
    """Runs queries in threads: any number of readers, one writer, so that nothing blocks the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing, self._noting = engine.execution_options(**WRITES), engine.execution_options(**NOTES)
        self._writer, self._readers = ThreadPoolExecutor(1), ThreadPoolExecutor(_READERS)

    @classmethod
    async def open(cls, url: str) -> "Database":
        """Connect, and bring the tables up to date. Raises `BadConfig`, saying what to do."""
        return cls(await asyncio.to_thread(_opened, url))

    async def read(self, query: Callable[[Connection], Value]) -> Value:
        """What `query` reads, in one transaction. Raises `StoreFailed`."""
        return await self._run(self._readers, lambda: self._read(query))

    async def write(self, change: Callable[[Connection], Value], *, on_disk: bool = True) -> Value:
        """What `change` returns, once its one transaction is on disk. Raises `StoreFailed`; then nothing has changed.

        `change` may be called again, where other processes were in its way. Without `on_disk`, it is once the
        transaction is committed: it outlasts this process, and the machine only if a later one is waited for on disk,
        which takes all earlier ones with it.
        """
        return await self._run(self._writer, lambda: self._write(change, self._writing if on_disk else self._noting))

    async def close(self) -> None:
        """Finish what is being written, and disconnect."""
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        self._engine.dispose()

    def _read(self, query: Callable[[Connection], Value]) -> Value:
        with self._engine.connect() as connection:
            return query(connection)

    def _write(self, change: Callable[[Connection], Value], engine: Engine) -> Value:
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                with translated(engine), engine.begin() as connection:
                    return change(connection)
            except DBAPIError as error:
                if not attempts_left or getattr(error.orig, "sqlstate", None) not in _LOST_TO_OTHERS:
                    raise
        raise AssertionError

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], Value]) -> Value:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except SQLAlchemyError as error:
            # Not the error's text: SQLAlchemy puts the row into it, and the row holds the answer.
            _log.error("store.failed", error=str(getattr(error, "orig", error)))
            raise StoreFailed("The store does not work for now; try again.") from error


def _opened(url: str) -> Engine:
    from router.store.migration import migrate  # Alembic takes long to load, and `--help` needs none of it

    try:
        engine = engine_of(url)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise cannot_open(url, error) from error
    try:
        with engine.execution_options(**WRITES).begin() as connection:
            migrate(connection)
        keep_private(files_of(engine))
    except (SQLAlchemyError, OSError, BadConfig) as error:
        engine.dispose()
        raise cannot_open(url, error) from error
    return engine
