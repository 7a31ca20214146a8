"""How SQLAlchemy is to talk to a database."""

import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from router.errors import BadConfig

WRITES: dict[str, Any] = {"writes": True}
"""Execution options of a transaction that writes, and is on disk when it has been committed."""
NOTES: dict[str, Any] = {**WRITES, "notes": True}
"""Of one that outlasts this process, but perhaps not the machine; a later one that does takes it with it."""
_CONNECT_S = 10
_WAIT_S = 10.0
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
    engine = create_engine(address.set(drivername="sqlite"), hide_parameters=True, paramstyle="named")

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # Python's driver would begin by itself, and too late
        for setting in _SETTINGS:
            connection.execute(setting)
        _keep_journal(connection)

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


def _keep_journal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; while others write to a new file, SQLite refuses that at once, whatever `busy_timeout` says."""
    until = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(0.01)
