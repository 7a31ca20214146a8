"""A database: SQLite in a file, or PostgreSQL."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError

from router.errors import BadConfig, StoreFailed
from router.store.log import identity
from router.store.schema import METADATA, SCHEMA, SCHEMA_NUMBER

_log = structlog.get_logger("store")
WRITES: dict[str, Any] = {"writes": True}
"""Execution options of a transaction that writes, and is on disk once committed."""
NOTES: dict[str, Any] = {**WRITES, "notes": True}
"""Execution options of a transaction that survives a kill, but perhaps not a power cut. A later
transaction that is on disk takes it along.
"""
_CONNECT_S = 10
_ALIVE = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Keepalive of connections to PostgreSQL: in seconds, and `tcp_user_timeout` in milliseconds."""
_STOPPED = "SET LOCAL idle_in_transaction_session_timeout = 2000"
_WAIT_S = 10.0
_OWNER_ALONE = 0o600
"""File mode of databases, which hold questions and answers."""
COPY = "copy"
"""Name, in a copied database, of its log's place at the time of the copy."""
_ON_DISK = "PRAGMA synchronous=FULL"
_NOTED = "PRAGMA synchronous=NORMAL"
_SETTINGS = (f"PRAGMA busy_timeout={_WAIT_S * 1000:.0f}", _ON_DISK, "PRAGMA foreign_keys=ON")


def engine_of(url: str) -> Engine:
    """Return an engine for `url`. Raises SQLAlchemy's errors and `ImportError`."""
    address = make_url(url)
    match address.get_backend_name():
        case "postgresql":
            return _postgresql(address)
        case "sqlite" if address.database not in (None, "", ":memory:"):
            return _sqlite(address)
    raise ArgumentError("neither postgresql://… nor sqlite:///FILE")


def _files_of(engine: Engine) -> tuple[Path, ...]:
    """Return the files of an open SQLite database; none for PostgreSQL."""
    if engine.dialect.name != "sqlite":
        return ()
    file = Path(str(engine.url.database)).absolute()
    # SQLite puts them next to the target of a link.
    return file, *(Path(f"{file.resolve()}{end}") for end in ("-wal", "-shm"))


def _cannot_open(url: str, error: Exception) -> BadConfig:
    """Return the error for a store that cannot be opened, without the password in `url`."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return BadConfig(
            "server.store: cannot open: not an address; write sqlite:///FILE or postgresql://…"
        )
    reason = str(getattr(error, "orig", None) or error).strip()
    if address.password:
        reason = reason.replace(str(address.password), "***")
    if not isinstance(error, BadConfig):
        reason += "; check that it exists, that it can be written, and that its disk is not full"
    return BadConfig(
        f"server.store: cannot open {address.render_as_string(hide_password=True)}: {reason}"
    )


def _postgresql(address: URL) -> Engine:
    engine = create_engine(
        address.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",  # sees what the last holder of a lock wrote
        connect_args={"connect_timeout": _CONNECT_S, **_ALIVE},
        hide_parameters=True,
        pool_pre_ping=True,
    )
    event.listen(engine, "begin", _begin)
    return engine


def _sqlite(address: URL) -> Engine:
    with suppress(OSError, RuntimeError):  # opening it fails later, with a better error
        # Presets keep their stores in this folder.
        own = Path("~/.cache/rolegate").expanduser()
        if Path(address.database or "").parent == own:
            own.mkdir(parents=True, exist_ok=True)
        # An existing file is not opened, because closing it would drop SQLite's locks on it.
        os.close(
            os.open(address.database or "", os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWNER_ALONE)
        )
    engine = create_engine(
        address.set(drivername="sqlite"), hide_parameters=True, paramstyle="named"
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # or the driver begins transactions itself, too late
        for setting in _SETTINGS:
            connection.execute(setting)

    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    writes = options.get("writes")
    notes = options.get("notes")
    if connection.dialect.name == "postgresql":
        # Others wait for a writer's locks, so a stopped process must not keep them.
        statements = [_STOPPED] if writes else []
        if notes:
            statements.append("SET LOCAL synchronous_commit TO off")
    elif not writes:
        statements = ["BEGIN"]
    else:
        # Syncing is set before the transaction begins. A writer locks before it reads, so that
        # what it has read stays true.
        statements = [_NOTED if notes else _ON_DISK, "BEGIN IMMEDIATE"]
        if not notes:
            statements.append("PRAGMA user_version=1")  # a commit without changes syncs nothing
    for statement in statements:
        connection.exec_driver_sql(statement)


def _keep_journal(connection: Connection) -> None:
    """Switch a SQLite database to WAL permanently, and create its files.

    SQLite ignores `busy_timeout` here, and fails while others write to a new file.
    """
    driver = connection.connection.dbapi_connection
    until = time.monotonic() + _WAIT_S
    while isinstance(driver, sqlite3.Connection):
        try:
            driver.execute("PRAGMA journal_mode=WAL")
            driver.execute("SELECT 1 FROM runs LIMIT 1").close()  # creates the files
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite address; None for other databases and invalid addresses."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return None
    if address.get_backend_name() != "sqlite" or not address.database:
        return None
    return Path(address.database)


def store_problem(url: str) -> str | None:
    """Return the reason why the tables of a store cannot be used; None if they can, or do not exist
    yet. Blocks, creates nothing, and does not wait for an unreachable database.
    """
    engine = engine_of(url)
    try:
        with engine.connect() as connection:
            _has_tables(connection)
    except (BadConfig, SQLAlchemyError) as error:
        return str(_cannot_open(url, error))
    finally:
        engine.dispose()
    return None


_LOCK = "SELECT pg_advisory_xact_lock(1919118444, 0)"


def _create_tables(connection: Connection) -> None:
    """Create the tables of an empty database, one process at a time. Raises `BadConfig` if it has
    other tables.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_LOCK)
    if not _has_tables(connection):
        METADATA.create_all(connection)
        connection.execute(SCHEMA.insert().values(number=SCHEMA_NUMBER))


def _has_tables(connection: Connection) -> bool:
    """Return whether the database has the tables of this release; False for an empty one. Raises
    `BadConfig` for the tables of another release or program.
    """
    names = inspect(connection).get_table_names()
    if not names:
        return False

    contents = f"the tables {', '.join(sorted(names)[:3])} and no number of a schema"
    if SCHEMA.name in names:
        number = connection.execute(select(SCHEMA.c.number)).scalar()
        if number == SCHEMA_NUMBER:
            return True
        contents = f"schema {number}"
    raise BadConfig(
        f"it has {contents}, and this rolegate needs schema {SCHEMA_NUMBER}: another release "
        "wrote it, or another program. Nothing was changed; name another file, or an empty "
        "database."
    )


_READERS = 4
_ATTEMPTS = 5
_LOST_TO_OTHERS = ("40001", "40P01", "23505")
"""PostgreSQL's codes of transactions that lost to others: nothing was changed, and they can be
repeated.
"""
FAILED = "The store does not work for now; try again."
_LOST = (
    "The store's file was deleted or replaced while the gateway ran, so nothing can be read of it; "
    "restart the gateway. Its log has what was acknowledged since."
)
Value = TypeVar("Value")


class Database:
    """Runs queries in threads, to keep the event loop free: four readers and one writer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing = engine.execution_options(**WRITES)
        self._noting = engine.execution_options(**NOTES)
        self._writer = ThreadPoolExecutor(1)
        self._readers = ThreadPoolExecutor(_READERS)
        self._files = {file: identity(file) for file in _files_of(engine)}
        self._lost = False
        self.caught_up: Callable[[], Awaitable[None]] | None = None
        """Waits until everything acknowledged is in the database; None if no log is written."""

    @classmethod
    async def open(cls, url: str) -> "Database":
        """Connect, and create the tables of an empty database. Raises `BadConfig`."""
        return cls(await asyncio.to_thread(_opened, url))

    @property
    def shared(self) -> bool:
        """True if several gateways may share the database: PostgreSQL."""
        return not self._files

    @property
    def log_folder(self) -> Path:
        """Folder of a SQLite file's log, next to it; for PostgreSQL, the parent of all logs'
        folders.
        """
        if self._files:
            return Path(f"{next(iter(self._files)).resolve()}.log")
        address = self._engine.url.set(password=None).render_as_string()
        return (
            Path("~/.cache/rolegate/logs").expanduser() / sha256(address.encode()).hexdigest()[:16]
        )

    async def read(self, query: Callable[[Connection], Value], *, behind: bool = False) -> Value:
        """Run `query` in a transaction and return its result. Raises `StoreFailed`.

        `behind`: do not wait until everything acknowledged is in the database.
        """
        if self.caught_up and not behind:
            await self.caught_up()
        return await self._run(self._readers, lambda: self._read(query))

    async def write(
        self, change: Callable[[Connection], Value], *, on_disk: bool = True, behind: bool = False
    ) -> Value:
        """Run `change` in a transaction and return its result. Raises `StoreFailed`; then nothing
        has changed. `change` may be called again if other processes interfere.

        `on_disk`: return once the transaction is on disk. Otherwise it survives a kill, and a power
        cut only with a later transaction on disk. `behind`: see `read`. If a file of the database
        was deleted or replaced, this and all later calls fail.
        """
        if self.caught_up and not behind:
            await self.caught_up()
        return await self._run(
            self._writer, lambda: self._write(change, self._writing if on_disk else self._noting)
        )

    async def copy(self, file: Path) -> None:
        """Copy a SQLite database into an empty file. Raises `StoreFailed`, and `BadConfig` for
        PostgreSQL.
        """
        if not self._files:
            raise BadConfig("server.store: is a PostgreSQL database; pg_dump makes a copy of it.")
        await self._run(self._readers, lambda: self._copy(file))

    def _copy(self, file: Path) -> None:
        self._see_files()
        with closing(sqlite3.connect(file)) as target, self._engine.connect() as connection:
            source = connection.connection.dbapi_connection
            assert isinstance(source, sqlite3.Connection)
            source.backup(target)
            target.execute(
                "INSERT OR REPLACE INTO logs SELECT ?, segment, bytes FROM logs WHERE log <> ?",
                (COPY, COPY),
            )
            target.commit()
            target.execute("PRAGMA journal_mode=DELETE")  # a single file

    def session(self) -> Any:
        """Open a connection of PostgreSQL's driver, for use in one thread; it commits every
        statement.
        """
        pooled = self._engine.raw_connection()
        session: Any = pooled.driver_connection
        pooled.detach()
        session.autocommit = True
        return session

    async def close(self) -> None:
        """Finish running transactions, and disconnect."""
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        self._engine.dispose()

    def _read(self, query: Callable[[Connection], Value]) -> Value:
        self._see_files()
        with self._engine.connect() as connection:
            return query(connection)

    def _write(self, change: Callable[[Connection], Value], engine: Engine) -> Value:
        self._see_files()
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                with _driver_errors(engine), engine.begin() as connection:
                    value = change(connection)
                break
            except DBAPIError as error:
                if (
                    not attempts_left
                    or getattr(error.orig, "sqlstate", None) not in _LOST_TO_OTHERS
                ):
                    raise
        self._see_files()
        return value

    def _see_files(self) -> None:
        """Raise `StoreFailed` if a file was deleted or replaced since it was opened: SQLite would
        continue with a file that has no name. Its inode is not reused while it is open.
        """
        if not self._lost and (
            missing := [file for file, known in self._files.items() if identity(file) != known]
        ):
            self._lost = True
            _log.error(
                "store.gone",
                files=[str(file) for file in missing],
                advice="put them back, and restart",
            )
        if self._lost:
            raise StoreFailed(_LOST) from FileNotFoundError()

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], Value]) -> Value:
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, work)
        except (SQLAlchemyError, OverflowError) as error:
            # SQLite raises OverflowError for a number that it cannot hold. The text of SQLAlchemy's
            # error is not logged, because it holds the row, and so the answer.
            _log.error("store.failed", error=str(getattr(error, "orig", error)))
            raise StoreFailed(FAILED) from error


@contextmanager
def _driver_errors(engine: Engine) -> Iterator[None]:
    """Translate the driver's errors to SQLAlchemy's."""
    driver: Any = engine.dialect.loaded_dbapi
    try:
        yield
    except driver.Error as error:
        raise DBAPIError.instance(
            None,
            None,
            error,
            driver.Error,
            dialect=engine.dialect,
        ) from error


def _opened(url: str) -> Engine:
    engine = None
    try:
        engine = engine_of(url)
        with engine.execution_options(**WRITES).connect() as connection:
            with connection.begin():
                _create_tables(connection)
            _keep_journal(connection)
        for file in _files_of(engine):
            try:
                file.chmod(file.stat().st_mode & _OWNER_ALONE)
            except OSError as error:
                _log.warning(
                    "store.not_private", file=str(file), error=str(error), advice="chmod 600"
                )
    except (SQLAlchemyError, ImportError, ValueError, OSError, BadConfig) as error:
        if engine:
            engine.dispose()
        raise _cannot_open(url, error) from error
    return engine


def unwritable(error: BaseException) -> bool:
    """Return whether a transaction failed because of its data, which can never be written."""
    return isinstance(error.__cause__, DataError | IntegrityError | OverflowError)


def storable(text: str) -> str:
    """Replace NUL, which PostgreSQL refuses."""
    return text.replace("\0", "\ufffd")


def begin_snapshot(connection: Connection) -> None:
    """Read from one snapshot until the transaction ends. Must be its first statement."""
    if connection.dialect.name == "postgresql":  # SQLite's transactions are snapshots
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
