"""Migrations of a database, from the schema of an earlier release to that of this release.

Each change of the schema is a revision, a script of Alembic in `migrations/versions`. A revision
*expands* the schema if earlier releases can still use the database afterwards: it adds a table, an
index, or a column that may be null or has a default. All other revisions *contract* the schema.
Their scripts have a `NUMBER`, which is the number of the schema from then on.

When a database is opened, revisions that expand are applied. A revision that contracts is only
applied by `rolegate store upgrade`, because gateways of earlier releases can no longer use the
database afterwards. Until then, the release that introduces the revision works without it. So
gateways of two releases can use a database at the same time: the newer one applies its expanding
revisions, and the schema keeps its number.

All revisions are applied in one transaction, under a lock, so that only one process applies them,
and none is applied in part.
"""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import structlog
from sqlalchemy import Connection, inspect, select

from router.errors import BadConfig
from router.frozen import Frozen
from router.store.schema import METADATA, REVISION, REVISIONS, SCHEMA, SCHEMA_NUMBER

_log = structlog.get_logger("store")
_BASELINE = "0001"
_BASELINE_NUMBER = 8
"""Number of the schema of databases that do not record their revision."""
_LOCK = "SELECT pg_advisory_xact_lock(1919118444, %(number)s)"
_PATIENCE = "SET LOCAL lock_timeout = '10s'"
"""Limits the time for which a revision waits for the lock of a table. Readers that come later must
wait during this time, too.
"""


class Release(NamedTuple):
    """The schema that a release of rolegate needs."""

    number: int = SCHEMA_NUMBER
    revision: str = REVISION
    scripts: Path = Path(__file__).with_name("migrations")
    """Folder with the scripts of all revisions up to `revision`."""


THIS = Release()


class Step(Frozen):
    """A revision that a database lacks."""

    revision: str
    about: str
    """First line of the script's docstring."""
    number: int | None
    """Number of the schema after the revision, if the revision contracts the schema; None if it
    expands the schema.
    """


def lock(connection: Connection, number: int = 0) -> None:
    """Take an exclusive lock until the transaction ends. Does nothing for SQLite, where only one
    transaction can write at a time anyway. `number`: 0 to create, upgrade or fill the database, 1
    for versions and their decisions, 2 for the audit log and warnings.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_LOCK, {"number": number})


def prepare(
    connection: Connection, release: Release = THIS, *, contracts: bool = False
) -> list[Step]:
    """Create the tables in an empty database, or apply the revisions that a database lacks. Return
    the applied revisions.

    `contracts`: True to also apply revisions that contract the schema (see the module's docstring).
    Raises `BadConfig` if the release cannot work with the database; then nothing was changed.
    """
    lock(connection)
    missing = steps(connection, release)
    if missing is None:
        METADATA.create_all(connection)
        connection.execute(SCHEMA.insert().values(number=release.number))
        _stamp(connection, release.revision)
        return []

    _stamp(connection, _BASELINE)
    applied = missing if contracts else expansions(missing)
    if applied:
        _apply(connection, applied, release)
    if len(applied) < len(missing):
        advice = "if no gateway of an earlier release runs, run `rolegate store upgrade`"
        _log.warning("store.upgrade_waits", revision=missing[-1].revision, advice=advice)
    return applied


def expansions(missing: Sequence[Step]) -> list[Step]:
    """Return the revisions at the start of `missing` that expand the schema. They may be applied
    while gateways of earlier releases run. Raises `BadConfig` if such a revision also follows after
    a revision that contracts the schema, because this release needs all revisions that expand the
    schema.
    """
    first = list(takewhile(lambda step: step.number is None, missing))
    if any(step.number is None for step in missing[len(first) :]):
        raise BadConfig(
            "its schema is too old for this release of rolegate. Stop all gateways of earlier "
            "releases, make a backup, and run `rolegate store upgrade`."
        )
    return first


def steps(connection: Connection, release: Release = THIS) -> list[Step] | None:
    """Return the revisions that a database lacks, oldest first; None if it has no tables. Changes
    nothing. Raises `BadConfig` if the database has the tables of another program, or of a release
    whose schema cannot be upgraded to that of this release.
    """
    names = inspect(connection).get_table_names()
    if not names:
        return None

    contents = f"the tables {', '.join(sorted(names)[:3])}, but no schema number"
    number = None
    if SCHEMA.name in names:
        number = connection.scalar(select(SCHEMA.c.number))
        contents = f"schema {number}"
    if number is not None and number > release.number:
        raise BadConfig(
            f"its tables have {contents}, from a later release of rolegate, but this release "
            f"needs schema {release.number}. Nothing was changed; install that release, or "
            "restore a backup from before the upgrade (`rolegate store restore`, pg_restore)."
        )

    missing = None
    if number is not None and number >= _BASELINE_NUMBER:
        missing = _since(revision_of(connection), release)
        if missing is None and number == release.number:
            return []  # a later release has expanded the schema
    if missing is None:
        writer = "another program"
        if number:
            writer = "a release that `rolegate store upgrade` does not know"
        raise BadConfig(
            f"it has {contents}, and this release of rolegate needs schema {release.number}, so "
            f"{writer} wrote it. Nothing was changed; name another file or an empty database, or "
            "open it with the program or release that wrote it."
        )
    return missing


def revision_of(connection: Connection) -> str:
    """Return the revision of a database that has tables."""
    if not inspect(connection).has_table(REVISIONS.name):
        return _BASELINE
    return connection.scalar(select(REVISIONS.c.version_num)) or _BASELINE


def _since(revision: str, release: Release) -> list[Step] | None:
    """Return the revisions after `revision`; None if the release does not know `revision`."""
    if revision == release.revision:
        return []
    from alembic.script import ScriptDirectory
    from alembic.script.revision import RevisionError
    from alembic.util import CommandError

    scripts = ScriptDirectory(str(release.scripts))
    try:
        newest_first = list(scripts.iterate_revisions(release.revision, revision))
    except (CommandError, RevisionError):
        return None
    return [
        Step(script.revision, script.doc, getattr(script.module, "NUMBER", None))
        for script in reversed(newest_first)
    ]


def _stamp(connection: Connection, revision: str) -> None:
    """Record `revision` as the revision of a database, unless the database has recorded one
    already.
    """
    REVISIONS.create(connection, checkfirst=True)
    if connection.scalar(select(REVISIONS.c.version_num)) is None:
        connection.execute(REVISIONS.insert().values(version_num=revision))


def _apply(connection: Connection, missing: Sequence[Step], release: Release) -> None:
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_PATIENCE)
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(release.scripts).replace("%", "%%"))
    command.upgrade(config, missing[-1].revision)
    if connection.dialect.name == "sqlite":  # `upgrade` turns foreign keys off
        lost = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
        if lost:
            raise BadConfig(
                f"after its upgrade to schema {missing[-1].revision}, a row of the table {lost[0]} "
                f"would refer to a missing row of {lost[2]}. Nothing was changed; run `rolegate "
                "store check`, and restore a backup if that finds the row, too."
            )
    numbers = [step.number for step in missing if step.number]
    if numbers:
        connection.execute(SCHEMA.update().values(number=numbers[-1]))
