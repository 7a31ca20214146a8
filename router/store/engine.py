"""How SQLAlchemy is to talk to a database."""

import os
import sqlite3
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from router.errors import BadConfig

_log = structlog.get_logger("store")
WRITES: dict[str, Any] = {"writes": True}
"""Execution options of a transaction that writes, and is on disk when it has been committed."""
NOTES: dict[str, Any] = {**WRITES, "notes": True}
"""Of one that outlasts this process, but perhaps not the machine; a later one that does takes it with it."""
_CONNECT_S = 10
_WAIT_S = 10.0
_OWNER_ALONE = 0o600
"""Of files that hold questions and answers."""
_ON_DISK, _NOTED = "PRAGMA synchronous=FULL", "PRAGMA synchronous=NORMAL"
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


def files_of(engine: Engine) -> tuple[Path, ...]:
    """The files that an open SQLite database consists of; none of PostgreSQL."""
    if engine.dialect.name != "sqlite":
        return ()
    file = Path(str(engine.url.database)).absolute()
    return file, *(Path(f"{file.resolve()}{end}") for end in ("-wal", "-shm"))  # they stand where links lead


def keep_private(files: Iterable[Path]) -> None:
    """Take away what others than their owner may do to files, and say so; where that fails, that is said."""
    for file in files:
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode != (own := mode & _OWNER_ALONE):
                file.chmod(own)
                _log.warning("store.made_private", file=str(file), mode=f"{own:o}", before=f"{mode:o}")
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("store.not_private", file=str(file), error=str(error), advice="chmod 600")


def cannot_open(url: str, error: Exception) -> BadConfig:
    """What is wrong with `server.store`, and what to do; without the password that may stand in `url`."""
    try:
        address = make_url(url)
    except (ArgumentError, ValueError):
        return BadConfig("server.store: cannot open: this is no address; write sqlite:///FILE or postgresql://…")
    shown, said = address.render_as_string(hide_password=True), str(getattr(error, "orig", None) or error).strip()
    if address.password:
        said = said.replace(str(address.password), "***")
    if isinstance(error, BadConfig):
        return BadConfig(f"server.store: {shown}: {said}")
    advice = "install rolegate[postgres]" if isinstance(error, ImportError) else "is it there, and may it be written?"
    return BadConfig(f"server.store: cannot open {shown}: {said}; {advice}")


def _postgresql(address: URL) -> Engine:
    engine = create_engine(
        address.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",  # what a lock has let through must be seen
        connect_args={"connect_timeout": _CONNECT_S},
        hide_parameters=True,
        pool_pre_ping=True,
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("notes"):
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")

    return engine


def _sqlite(address: URL) -> Engine:
    with suppress(OSError, RuntimeError):  # then it cannot be opened either
        own = Path("~/.cache/rolegate").expanduser()  # where presets keep their stores; nobody else makes it
        if Path(address.database or "").parent == own:
            own.mkdir(parents=True, exist_ok=True)
        # A file that is there is not opened: closing it would take away the locks that SQLite has on it.
        os.close(os.open(address.database or "", os.O_CREAT | os.O_EXCL | os.O_WRONLY, _OWNER_ALONE))
    engine = create_engine(address.set(drivername="sqlite"), hide_parameters=True, paramstyle="named")

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # Python's driver would begin by itself, and too late
        for setting in _SETTINGS:
            connection.execute(setting)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if not options.get("writes"):
            connection.exec_driver_sql("BEGIN")
            return
        connection.exec_driver_sql(_NOTED if options.get("notes") else _ON_DISK)  # fixed once it has begun
        # A writer locks before it reads, so that what it has read is still so when it writes.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def keep_journal(connection: Connection) -> None:
    """Switch a SQLite database to WAL, for good, and begin that; PostgreSQL has its own.

    While others write to a new file, SQLite refuses that at once, whatever `busy_timeout` says.
    """
    driver = connection.connection.dbapi_connection
    if not isinstance(driver, sqlite3.Connection):
        return
    until = time.monotonic() + _WAIT_S
    while True:
        try:
            driver.execute("PRAGMA journal_mode=WAL")
            driver.execute("SELECT 1 FROM runs LIMIT 1").close()  # its files are there from now on
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)
