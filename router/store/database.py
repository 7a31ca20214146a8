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
"""Execution options of a transaction that writes, and is on disk when it has been committed."""
NOTES: dict[str, Any] = {**WRITES, "notes": True}
"""Those of one that outlasts this process, but perhaps not the machine; a later one that does
takes it with it.
"""
_CONNECT_S = 10
_ALIVE = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""When a connection counts as lost that nobody answers on: in seconds, and the last in
milliseconds.
"""
_STOPPED = "SET LOCAL idle_in_transaction_session_timeout = 2000"
_WAIT_S = 10.0
_OWNER_ALONE = 0o600
"""The mode of files that hold questions and answers."""
COPY = "copy"
"""Name, among the logs of a copied database, of the place that its log had when it was copied."""
_ON_DISK = "PRAGMA synchronous=FULL"
_NOTED = "PRAGMA synchronous=NORMAL"
_SETTINGS = (f"PRAGMA busy_timeout={_WAIT_S * 1000:.0f}", _ON_DISK, "PRAGMA foreign_keys=ON")


def engine_of(url: str) -> Engine:
    """An engine for `url`, not yet connected. Raises what SQLAlchemy raises, or `ImportError`."""
    address = make_url(url)
    match address.get_backend_name():
        case "postgresql":
            return _postgresql(address)
        case "sqlite" if address.database not in (None, "", ":memory:"):
            return _sqlite(address)
    raise ArgumentError("neither postgresql://… nor sqlite:///FILE")


def _files_of(engine: Engine) -> tuple[Path, ...]:
    """The files that an open SQLite database consists of; none of PostgreSQL."""
    if engine.dialect.name != "sqlite":
        return ()
    file = Path(str(engine.url.database)).absolute()
    # They stand where links lead
    return file, *(Path(f"{file.resolve()}{end}") for end in ("-wal", "-shm"))


def _cannot_open(url: str, error: Exception) -> BadConfig:
    """The error for a `server.store` that cannot be opened, with what to do, and without the
    password in `url`.
    """
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return BadConfig(
            "server.store: cannot open: this is no address; write sqlite:///FILE or postgresql://…"
        )
    said = str(getattr(error, "orig", None) or error).strip()
    if address.password:
        said = said.replace(str(address.password), "***")
    if not isinstance(error, BadConfig):
        said += "; is it there, may it be written, and is its disk full?"
    return BadConfig(
        f"server.store: cannot open {address.render_as_string(hide_password=True)}: {said}"
    )


def _postgresql(address: URL) -> Engine:
    engine = create_engine(
        address.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",  # what a lock has let through must be seen
        connect_args={"connect_timeout": _CONNECT_S, **_ALIVE},
        hide_parameters=True,
        pool_pre_ping=True,
    )
    event.listen(engine, "begin", _begin)
    return engine


def _sqlite(address: URL) -> Engine:
    with suppress(OSError, RuntimeError):  # then it cannot be opened either
        # Where presets keep their stores; nobody else makes it
        own = Path("~/.cache/rolegate").expanduser()
        if Path(address.database or "").parent == own:
            own.mkdir(parents=True, exist_ok=True)
        # A file that is there is not opened: closing it would take away the locks that SQLite has
        # on it.
        os.close(
            os.open(address.database or "", os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWNER_ALONE)
        )
    engine = create_engine(
        address.set(drivername="sqlite"), hide_parameters=True, paramstyle="named"
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # Python's driver would begin by itself, and too late
        for setting in _SETTINGS:
            connection.execute(setting)

    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    writes = options.get("writes")
    notes = options.get("notes")
    if connection.dialect.name == "postgresql":
        # Others wait for a writer's locks, though its process may be stopped.
        statements = [
            *[_STOPPED] * bool(writes),
            *["SET LOCAL synchronous_commit TO off"] * bool(notes),
        ]
    else:
        # Whether commits are synced cannot change within a transaction. A writer locks before it
        # reads, so that what it read stays true.
        statements = [_NOTED if notes else _ON_DISK, "BEGIN IMMEDIATE"] if writes else ["BEGIN"]
        # Where nothing changes, nothing is synced, not even what was noted before
        if writes and not notes:
            statements.append("PRAGMA user_version=1")
    for statement in statements:
        connection.exec_driver_sql(statement)


def _keep_journal(connection: Connection) -> None:
    """Switch a SQLite database to WAL, for good, and begin that; PostgreSQL has its own.

    While others write to a new file, SQLite refuses that at once, whatever `busy_timeout` says.
    """
    driver = connection.connection.dbapi_connection
    until = time.monotonic() + _WAIT_S
    while isinstance(driver, sqlite3.Connection):
        try:
            driver.execute("PRAGMA journal_mode=WAL")
            driver.execute("SELECT 1 FROM runs LIMIT 1").close()  # its files are there from now on
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite address; None for other databases, and for text that is no
    address.
    """
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return None
    return (
        Path(address.database)
        if address.get_backend_name() == "sqlite" and address.database
        else None
    )


def store_problem(url: str) -> str | None:
    """Return the reason why the tables of an existing store cannot be used; None where they can, or
    there are none yet. Blocks, creates nothing, and does not wait for a database that is away.
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
    """Create the tables of an empty database, in the transaction of `connection`, one process at a
    time.

    Raises `BadConfig` where another program has been here, or a rolegate with other tables.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_LOCK)
    if not _has_tables(connection):
        METADATA.create_all(connection)
        connection.execute(SCHEMA.insert().values(number=SCHEMA_NUMBER))


def _has_tables(connection: Connection) -> bool:
    """Return whether the database has the tables of this release; False for an empty one. Raises
    `BadConfig` where another program has been here, or a rolegate with other tables.
    """
    names = inspect(connection).get_table_names()
    if not names:
        return False
    known = SCHEMA.name in names
    number = connection.execute(select(SCHEMA.c.number)).scalar() if known else None
    if number == SCHEMA_NUMBER:
        return True
    found = (
        f"schema {number}"
        if known
        else f"the tables {', '.join(sorted(names)[:3])} and no number of a schema"
    )
    raise BadConfig(
        f"it has {found}, and this rolegate needs schema {SCHEMA_NUMBER}: another "
        "release wrote it, or another "
        "program. Nothing was changed; name another file, or an empty database."
    )


_READERS = 4
_ATTEMPTS = 5
_LOST_TO_OTHERS = ("40001", "40P01", "23505")
"""PostgreSQL's codes for a transaction that others were in the way of: it has done nothing, and
can be repeated.
"""
FAILED = "The store does not work for now; try again."
_LOST = (
    "The store's file was deleted or replaced while the gateway ran, so nothing can be read of it; "
    "restart the gateway. Its log has what was acknowledged since."
)
Value = TypeVar("Value")


class Database:
    """Runs queries in threads: any number of readers, one writer, so that nothing blocks the
    event loop.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._writing = engine.execution_options(**WRITES)
        self._noting = engine.execution_options(**NOTES)
        self._writer = ThreadPoolExecutor(1)
        self._readers = ThreadPoolExecutor(_READERS)
        self._files = {file: identity(file) for file in _files_of(engine)}
        self._lost = False
        self.caught_up: Callable[[], Awaitable[None]] | None = None
        """Waits until all that was acknowledged is in the database; None where nothing is
        written to it from a log.
        """

    @classmethod
    async def open(cls, url: str) -> "Database":
        """Connect, and create the tables of an empty database. Raises `BadConfig`, saying what
        to do.
        """
        return cls(await asyncio.to_thread(_opened, url))

    @property
    def shared(self) -> bool:
        """Whether several gateways may write to it; PostgreSQL."""
        return not self._files

    @property
    def log_folder(self) -> Path:
        """The folder of the log of a SQLite file, beside it; for PostgreSQL, that of the
        folders of its gateways'.
        """
        if self._files:
            return Path(f"{next(iter(self._files)).resolve()}.log")
        address = self._engine.url.set(password=None).render_as_string()
        return (
            Path("~/.cache/rolegate/logs").expanduser() / sha256(address.encode()).hexdigest()[:16]
        )

    async def read(self, query: Callable[[Connection], Value], *, behind: bool = False) -> Value:
        """Run `query` in one transaction; return what it reads: all that was acknowledged, unless
        it may be `behind`. Raises `StoreFailed`.
        """
        if self.caught_up and not behind:
            await self.caught_up()
        return await self._run(self._readers, lambda: self._read(query))

    async def write(
        self, change: Callable[[Connection], Value], *, on_disk: bool = True, behind: bool = False
    ) -> Value:
        """Run `change` in one transaction; return what it returns, once that is on disk. Raises
        `StoreFailed`; then nothing has changed.

        Where a file of the database was deleted or replaced, this fails too, and so does everything
        from then on. `change` may be called again, where other processes were in its way. Without
        `on_disk`, it is once the transaction is committed: it outlasts this process, and the
        machine only if a later one is waited for on disk, which takes all earlier ones with it.
        `behind`: as for `read`.
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
            target.execute("PRAGMA journal_mode=DELETE")  # no file beside it

    def session(self) -> Any:
        """A connection of the driver of PostgreSQL for one thread, which closes it; each
        statement is a transaction.
        """
        pooled = self._engine.raw_connection()
        session: Any = pooled.driver_connection
        pooled.detach()
        session.autocommit = True
        return session

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
        """Raise `StoreFailed` where a file has been deleted or replaced since it was opened: SQLite
        goes on with the one that nobody will find. Its number is not given to another one while it
        is open.
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
            # SQLite raises OverflowError for a number that it cannot hold.
            # Not the error's text: SQLAlchemy puts the row into it, and the row holds the answer.
            _log.error("store.failed", error=str(getattr(error, "orig", error)))
            raise StoreFailed(FAILED) from error


@contextmanager
def _driver_errors(engine: Engine) -> Iterator[None]:
    """Translate what the driver raises into what SQLAlchemy would make of it."""
    driver: Any = engine.dialect.loaded_dbapi
    try:
        yield
    except driver.Error as error:
        raise DBAPIError.instance(
            None, None, error, driver.Error, dialect=engine.dialect
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
    """Whether something of a transaction cannot be written at all."""
    return isinstance(error.__cause__, DataError | IntegrityError | OverflowError)


def storable(text: str) -> str:
    """The same without NUL, which PostgreSQL refuses."""
    return text.replace("\0", "\ufffd")


def begin_snapshot(connection: Connection) -> None:
    """Let all that is read from here on see one state, whatever is written meanwhile; the first
    thing to be done.
    """
    if connection.dialect.name == "postgresql":  # SQLite's transactions are that by themselves
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
