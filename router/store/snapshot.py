"""Several queries that see the same state."""

from sqlalchemy import Connection


def begin_snapshot(connection: Connection) -> None:
    """Let all that is read from here on see one state, whatever is written meanwhile; the first thing to be done."""
    if connection.dialect.name == "postgresql":  # SQLite's transactions are that by themselves
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
