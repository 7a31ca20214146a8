"""Plans of the queries that a database runs."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event


@contextmanager
def explained(connection: Connection) -> Iterator[list[str]]:
    """Collect the plan of each query of `connection` while the context is open, in the
    database's words.
    """
    plans: list[str] = []
    explain = "EXPLAIN" if connection.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"

    def note(
        _connection: object, _cursor: object, statement: str, parameters: object, *_: object
    ) -> None:
        if not statement.startswith("SELECT"):
            return
        driver = connection.connection.dbapi_connection
        assert driver is not None
        cursor = driver.cursor()
        cursor.execute(f"{explain} {statement}", parameters)  # type: ignore[arg-type]
        plans.append("\n".join(str(line[-1]) for line in cursor.fetchall()))
        cursor.close()

    event.listen(connection, "before_cursor_execute", note)
    try:
        yield plans
    finally:
        event.remove(connection, "before_cursor_execute", note)
