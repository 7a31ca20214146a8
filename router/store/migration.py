"""Bringing the tables of a database up to date."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from router.errors import BadConfig

_FOLDER = Path(__file__).parent / "migrations"
_UNSTAMPED = "0001"
"""The schema of releases that did not write down which it was."""
_RUNS = {"run_id", "kind", "request", "status", "started_at", "duration_s", "trace"}
"""Columns that the table has had in every release."""
_LOCK = "SELECT pg_advisory_xact_lock(1919118444, 0)"


def migrate(connection: Connection) -> None:
    """Run the migrations that are missing, in the transaction of `connection`, one process at a time.

    Raises `BadConfig` where a newer release has been here, or another program.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_LOCK)
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    tables = inspect(connection)
    names = set(tables.get_table_names()) - {"alembic_version"}
    has_runs = "runs" in names and {column["name"] for column in tables.get_columns("runs")} >= _RUNS
    found = set(MigrationContext.configure(connection).get_current_heads())
    if (names or found) and not has_runs:
        raise BadConfig(
            f"this is another program's database: it holds {', '.join(sorted(names)[:3]) or 'a schema'}, and no table "
            "runs of rolegate's. Nothing was changed; name another file, or an empty database."
        )
    if newer := sorted(found - revisions):
        raise BadConfig(
            f"its tables are of schema {', '.join(newer)}, and this rolegate knows them up to {max(revisions)} only: a "
            "newer rolegate wrote there. Install that one, or name another store."
        )
    if not found and has_runs:
        command.stamp(config, _UNSTAMPED)
    command.upgrade(config, "head")
