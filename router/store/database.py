"""Connections and transactions of a database: a SQLite file, or PostgreSQL."""

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import structlog
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError

from router.errors import BadConfig, StoreFailed
from router.store.log import identity
from router.store.migration import THIS, Release, Step, expansions, prepare, steps

_log = structlog.get_logger("store")
WRITES: dict[str, Any] = {"writes": True}
"""Execution options of a writing transaction. Its commit waits until the changes are on disk."""
NOTES: dict[str, Any] = {**WRITES, "notes": True}
"""Execution options of a writing transaction whose commit does not wait for the disk. The changes
survive a kill of the process, but may be lost in a power cut. They are on disk as soon as any later
transaction is on disk.
"""
_CONNECT_S = 10
_ALIVE = {
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""Keepalive options of connections to PostgreSQL, in seconds; `tcp_user_timeout` in milliseconds.
"""
_STOPPED = "SET LOCAL idle_in_transaction_session_timeout = 2000"
_WAIT_S = 10.0
_OWNER_ALONE = 0o600
"""Mode of a SQLite database's files: only their owner may access them, because they contain
questions and answers.
"""
COPY = "copy"
"""`Database.copy` adds a row with this name to the table `logs` of the copy. The row contains a
position in the log: the copy has all changes up to this position.
"""
_ON_DISK = "PRAGMA synchronous=FULL"
_NOTED = "PRAGMA synchronous=NORMAL"
_SETTINGS = (f"PRAGMA busy_timeout={_WAIT_S * 1000:.0f}", _ON_DISK, "PRAGMA foreign_keys=ON")

_UNCHECKED = "PRAGMA foreign_keys=OFF"


def engine_of(url: str) -> Engine:
    """Return a SQLAlchemy engine for `url`. Raises SQLAlchemy's errors, and `ImportError` if the
    driver is not installed.
    """
    address = make_url(url)
    match address.get_backend_name():
        case "postgresql":
            return _postgresql(address)
        case "sqlite" if address.database not in (None, "", ":memory:"):
            return _sqlite(address)
    raise ArgumentError("its URL must have the form postgresql://… or sqlite:///FILE")


def _files_of(engine: Engine) -> tuple[Path, ...]:
    """Return the files of an open SQLite database; none for PostgreSQL."""
    if engine.dialect.name != "sqlite":
        return ()
    file = Path(str(engine.url.database)).absolute()
    # If the file is a link, SQLite creates the other files next to the link's target.
    return file, *(Path(f"{file.resolve()}{end}") for end in ("-wal", "-shm"))


def _cannot_open(url: str, error: Exception, named: str = "server.store") -> BadConfig:
    """Return the error for a store that cannot be opened. Its message does not contain the password
    in `url`. `named`: beginning of the message: the config key of the store, or a description of
    the store.
    """
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return BadConfig(
            f"{named}: cannot open the store, because its URL is invalid; write sqlite:///FILE or "
            "postgresql://…"
        )
    reason = str(getattr(error, "orig", None) or error).strip()
    if address.password:
        reason = reason.replace(str(address.password), "***")
    if not isinstance(error, BadConfig):
        reason += (
            "; check that its server runs, or that its file can be written and its disk has space"
        )
    return BadConfig(
        f"{named}: cannot open {address.render_as_string(hide_password=True)}: {reason}"
    )


@contextmanager
def engine_for_once(url: str, named: str = "server.store") -> Iterator[Engine]:
    """Yield an engine for `url`, and dispose of it on exit. SQLAlchemy's errors in the body of the
    `with` statement are raised as `BadConfig`, with a message that begins with `named`.
    """
    engine = engine_of(url)
    try:
        yield engine
    except (BadConfig, SQLAlchemyError) as error:
        raise _cannot_open(url, error, named) from error
    finally:
        engine.dispose()


def _postgresql(address: URL) -> Engine:
    engine = create_engine(
        address.set(drivername="postgresql+psycopg"),
        # A transaction that waited for a lock must see what the lock's last holder has written.
        isolation_level="READ COMMITTED",
        connect_args={"connect_timeout": _CONNECT_S, **_ALIVE},
        hide_parameters=True,
        pool_pre_ping=True,
    )
    event.listen(engine, "begin", _begin)
    return engine


def _sqlite(address: URL) -> Engine:
    with suppress(OSError, RuntimeError):  # connecting fails later, with a better message
        # Presets keep their stores in this folder.
        own = Path("~/.cache/rolegate").expanduser()
        if Path(address.database or "").parent == own:
            own.mkdir(parents=True, exist_ok=True)
        # Do not open an existing file: closing it would release all locks that this process holds
        # on it through SQLite (POSIX locks).
        os.close(
            os.open(address.database or "", os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWNER_ALONE)
        )
    engine = create_engine(
        address.set(drivername="sqlite"), hide_parameters=True, paramstyle="named"
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        # Without this, the driver begins transactions itself, and too late.
        connection.isolation_level = None
        for setting in _SETTINGS:
            connection.execute(setting)

    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    writes = options.get("writes")
    notes = options.get("notes")
    if connection.dialect.name == "postgresql":
        # PostgreSQL ends a writing transaction that is idle for two seconds, so that a stopped
        # process does not keep locks for which others wait.
        statements = [_STOPPED] if writes else []
        if notes:
            statements.append("SET LOCAL synchronous_commit TO off")
    elif not writes:
        statements = ["BEGIN"]
    else:
        # The sync mode can only be set before a transaction begins. BEGIN IMMEDIATE takes the write
        # lock before the first read, so that no other process changes what was read.
        statements = [_NOTED if notes else _ON_DISK, "BEGIN IMMEDIATE"]
        if not notes:
            # SQLite only syncs a commit that changes something. This change makes sure that
            # earlier, unsynced transactions are synced, too.
            statements.append("PRAGMA user_version=1")
    for statement in statements:
        connection.exec_driver_sql(statement)


def _keep_journal(connection: Connection) -> None:
    """Switch a SQLite database permanently to WAL mode, and create the files `-wal` and `-shm`.

    For the switch, SQLite ignores `busy_timeout`: it fails if another process is writing to the
    file. So the switch is repeated for up to `_WAIT_S` seconds.
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
    """Return the file of a SQLite URL; None for other databases and invalid URLs."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return None
    if address.get_backend_name() != "sqlite" or not address.database:
        return None
    return Path(address.database)


def default_log(file: Path) -> Path:
    """Return the default folder of the log of a SQLite database."""
    return Path(f"{file.resolve()}.log")


def store_problem(url: str) -> str | None:
    """Return the reason why this release cannot use a database, such as tables of another release;
    None if it can. An empty database can be used. Creates nothing. Blocks while it connects.
    """
    try:
        with engine_for_once(url) as engine, engine.connect() as connection:
            expansions(steps(connection) or [])
    except BadConfig as error:
        return str(error)
    return None


_READERS = 4
_ATTEMPTS = 5
_LOST_TO_OTHERS = ("40001", "40P01", "23505")
"""Error codes of PostgreSQL for transactions that failed because of a conflict with another
transaction. Nothing was changed, and the transaction can be repeated.
"""
FAILED = "The database failed; try again later. The gateway's log states why (store.failed)."
_LOST = (
    "The database file was deleted or replaced while the gateway ran, so the database cannot be "
    "used any more; restart the gateway. All runs answered since then are in the gateway's log."
)
Value = TypeVar("Value")
Args = TypeVarTuple("Args")


class Database:
    """A database. Transactions run in threads, so that they do not block the event loop: in four
    threads for reading, and in one for writing.
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
        """Function that waits until the database has all runs whose results were sent to clients.
        None if this process does not write a log to the database.
        """

    @classmethod
    async def open(cls, url: str, release: Release = THIS) -> "Database":
        """Connect to a database, and create the tables if there are none. If an earlier release
        created the tables, apply only the schema changes that this earlier release can work with
        (see `migration.py`). Raises `BadConfig` if the database cannot be opened, or if another
        program or an incompatible release created it, and `ImportError` if its driver is not
        installed.
        """
        return cls(await asyncio.to_thread(_opened, url, release))

    @property
    def shared(self) -> bool:
        """True for PostgreSQL, which several gateways may share."""
        return not self._files

    @property
    def log_folder(self) -> Path:
        """Default folder of the log. For SQLite, it is next to the database file. For PostgreSQL,
        it contains a folder for each gateway's log.
        """
        if self._files:
            return default_log(next(iter(self._files)))
        address = self._engine.url.set(password=None).render_as_string()
        return (
            Path("~/.cache/rolegate/logs").expanduser() / sha256(address.encode()).hexdigest()[:16]
        )

    async def read(
        self, query: Callable[[Connection, *Args], Value], *args: *Args, behind: bool = False
    ) -> Value:
        """Run `query` in a transaction and return its result. Raises `StoreFailed`.

        `args`: further arguments of `query`. `behind`: True to read immediately, even if the
        database lacks runs that are in the log; False to wait until the database has all runs whose
        results were sent to clients.
        """
        if self.caught_up and not behind:
            await self.caught_up()

        def work() -> Value:
            self._see_files()
            with self._engine.connect() as connection:
                return query(connection, *args)

        return await self._run(self._readers, work)

    async def write(
        self,
        change: Callable[[Connection, *Args], Value],
        *args: *Args,
        on_disk: bool = True,
        behind: bool = False,
    ) -> Value:
        """Run `change` in a transaction and return its result. Raises `StoreFailed`; then nothing
        has changed. `change` is called again if the transaction conflicts with another process.

        `on_disk`: True to return when the transaction is on disk; False not to wait for the disk
        (see `NOTES`). `args`, `behind`: see `read`. If a file of the database was deleted or
        replaced, this call and all later calls fail.
        """
        if self.caught_up and not behind:
            await self.caught_up()
        engine = self._writing if on_disk else self._noting
        return await self._run(
            self._writer, lambda: self._write(lambda connection: change(connection, *args), engine)
        )

    async def copy(self, file: Path) -> None:
        """Copy a SQLite database to an empty file, while it is in use. Raises `StoreFailed`, and
        `BadConfig` for PostgreSQL.
        """
        if not self._files:
            raise BadConfig("server.store: is a PostgreSQL database; use pg_dump to copy it.")
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
        """Open a new connection to PostgreSQL, for use in one thread. Every statement is committed.
        The caller closes the connection.
        """
        pooled = self._engine.raw_connection()
        session: Any = pooled.driver_connection
        pooled.detach()
        session.autocommit = True
        return session

    async def close(self) -> None:
        """Wait for running transactions, and disconnect."""
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._readers.shutdown)
        self._engine.dispose()

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
        """Raise `StoreFailed` if a file of the database was deleted or replaced since the database
        was opened. SQLite itself would continue to use the deleted file. A new file at the same
        path has another inode: the old inode is not free, because the old file is still open.
        """
        if not self._lost and (
            missing := [file for file, known in self._files.items() if identity(file) != known]
        ):
            self._lost = True
            _log.error(
                "store.gone",
                files=[str(file) for file in missing],
                advice="put the files back, and restart the gateway",
            )
        if self._lost:
            raise StoreFailed(_LOST) from FileNotFoundError()

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[], Value]) -> Value:
        try:
            # Keep the caller's context variables: `accounts.note` reads the administrative act from
            # `ACT`.
            run = copy_context().run
            return await asyncio.get_running_loop().run_in_executor(threads, run, work)
        except (SQLAlchemyError, OverflowError) as error:
            # The SQLite driver raises OverflowError for an integer that is too large. SQLAlchemy's
            # own message is not logged, because it contains the row, and so maybe an answer.
            _log.error("store.failed", error=str(getattr(error, "orig", error)))
            raise StoreFailed(FAILED) from error


@contextmanager
def _driver_errors(engine: Engine) -> Iterator[None]:
    """Translate errors that the database driver raises directly to SQLAlchemy's `DBAPIError`."""
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


def _opened(url: str, release: Release) -> Engine:
    engine = None
    try:
        engine = engine_of(url)
        with engine.execution_options(**WRITES).connect() as connection:
            with connection.begin():
                prepare(connection, release)
            _keep_journal(connection)
        for file in _files_of(engine):
            try:
                file.chmod(file.stat().st_mode & _OWNER_ALONE)
            except OSError as error:
                _log.warning(
                    "store.not_private", file=str(file), error=str(error), advice="chmod 600"
                )
    except (SQLAlchemyError, ValueError, OSError, BadConfig) as error:
        if engine:
            engine.dispose()
        raise _cannot_open(url, error) from error
    return engine


def upgrade(url: str, release: Release, *, check: bool = False) -> list[Step]:
    """Apply all schema changes (revisions) that a database lacks, even if earlier releases cannot
    use the database afterwards (see `migration.py`). Return the revisions.

    `check`: True to return the revisions without applying them. Blocks. Raises `BadConfig`.
    """
    with engine_for_once(url) as engine:
        if engine.dialect.name == "sqlite":
            # A revision changes a table by copying and then dropping it. With foreign keys on,
            # SQLite would delete the rows that refer to the dropped table.
            event.listen(engine, "connect", lambda driver, _: driver.execute(_UNCHECKED))
        if check:
            with engine.connect() as connection:
                return steps(connection, release) or []
        with engine.execution_options(**WRITES).begin() as connection:
            return prepare(connection, release, contracts=True)


def unwritable(error: BaseException) -> bool:
    """Return True if a transaction failed with `error` because the database refuses its data. Then
    a repetition would fail, too.
    """
    return isinstance(error.__cause__, DataError | IntegrityError | OverflowError)


def storable(text: str) -> str:
    """Return the text with each NUL character, which PostgreSQL refuses, replaced by U+FFFD."""
    return text.replace("\0", "\ufffd")


def begin_snapshot(connection: Connection) -> None:
    """Let all reads of a transaction see the same snapshot. Call it before any other statement of
    the transaction.
    """
    if connection.dialect.name == "postgresql":  # a transaction of SQLite always is a snapshot
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
