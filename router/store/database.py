"""A database: SQLite in a file, or PostgreSQL."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from router.errors import BadConfig, StoreFailed
from router.store.direct import translated
from router.store.engine import NOTES, WRITES, cannot_open, engine_of, files_of, keep_journal, keep_private

_log = structlog.get_logger("store")
_READERS = 4
_ATTEMPTS = 5
_LOST_TO_OTHERS = ("40001", "40P01")
"""PostgreSQL's codes for a transaction that stood in the way of others: it has done nothing, and can be repeated."""
FAILED = "The store does not work for now; try again."
_LOST = (
    "The store's file was deleted or replaced while the gateway ran, so nothing is acknowledged any more; "
    "restart the gateway. What was stored until then is in the file that is gone."
)
Value = TypeVar("Value")


class Database:
    """Runs queries in threads: any number of readers, one writer, so that nothing blocks the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing, self._noting = engine.execution_options(**WRITES), engine.execution_options(**NOTES)
        self._writer, self._readers = ThreadPoolExecutor(1), ThreadPoolExecutor(_READERS)
        self._files = {file: _identity(file) for file in files_of(engine)}
        self._lost = False

    @classmethod
    async def open(cls, url: str) -> "Database":
        """Connect, and bring the tables up to date. Raises `BadConfig`, saying what to do."""
        return cls(await asyncio.to_thread(_opened, url))

    async def read(self, query: Callable[[Connection], Value]) -> Value:
        """What `query` reads, in one transaction. Raises `StoreFailed`."""
        return await self._run(self._readers, lambda: self._read(query))

    async def write(self, change: Callable[[Connection], Value], *, on_disk: bool = True) -> Value:
        """What `change` returns, once its one transaction is on disk. Raises `StoreFailed`; then nothing has changed.

        Where a file of the database was deleted or replaced, this fails too, and so does everything from then on.
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
        self._see_files()
        with self._engine.connect() as connection:
            return query(connection)

    def _write(self, change: Callable[[Connection], Value], engine: Engine) -> Value:
        self._see_files()
        value = self._committed(change, engine)
        self._see_files()
        return value

    def _committed(self, change: Callable[[Connection], Value], engine: Engine) -> Value:
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                with translated(engine), engine.begin() as connection:
                    return change(connection)
            except DBAPIError as error:
                if not attempts_left or getattr(error.orig, "sqlstate", None) not in _LOST_TO_OTHERS:
                    raise
        raise AssertionError

    def _see_files(self) -> None:
        """Raise `StoreFailed` where a file has been deleted or replaced since it was opened: SQLite goes on with the
        one that nobody will find. Its number is not given to another one while it is open.
        """
        if not self._lost and (missing := [file for file, known in self._files.items() if _identity(file) != known]):
            self._lost = True
            _log.error("store.gone", files=[str(file) for file in missing], advice="put them back, and restart")
        if self._lost:
            raise StoreFailed(_LOST) from FileNotFoundError()

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], Value]) -> Value:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except SQLAlchemyError as error:
            # Not the error's text: SQLAlchemy puts the row into it, and the row holds the answer.
            _log.error("store.failed", error=str(getattr(error, "orig", error)))
            raise StoreFailed(FAILED) from error


def _identity(file: Path) -> tuple[int, int] | None:
    """Device and inode, which tell a file from all others; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _opened(url: str) -> Engine:
    from router.store.migration import migrate  # Alembic takes long to load, and `--help` needs none of it

    try:
        engine = engine_of(url)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        raise cannot_open(url, error) from error
    try:
        with engine.execution_options(**WRITES).connect() as connection:
            with connection.begin():
                migrate(connection)
            keep_journal(connection)
        keep_private(files_of(engine))
    except (SQLAlchemyError, OSError, BadConfig) as error:
        engine.dispose()
        raise cannot_open(url, error) from error
    return engine
