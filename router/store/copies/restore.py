"""Restore of a SQLite database from a backup."""

from datetime import UTC, datetime
from pathlib import Path

from router.errors import BadConfig
from router.store.database import Database, default_log, engine_for_once
from router.store.log import segments
from router.store.migration import steps


async def restore(backup: Path, target: Path, store: Path, log: Path, *, force: bool) -> str:
    """Copy a backup to the empty file `target`, and then rename the old store: the SQLite database
    `store` and its log. Return the suffix that was added to the names of the old files; empty if
    there is no old store.

    `log`: folder of the old store's log; this process must hold the log's lock. `force`: False to
    raise `BadConfig` if there is an old store. Raises `BadConfig` also if the backup is damaged, or
    if this release cannot work with it; `OSError` if the backup does not exist; and `StoreFailed`.
    """
    old = [path for end in ("", "-wal", "-shm") if (path := Path(f"{store}{end}")).exists()]
    if segments(log):  # first: a restored database must never be opened with this log
        old.insert(0, log)
    if old and not force:
        raise BadConfig(
            f"server.store: {old[0]} exists; move it aside with --force, or name another file."
        )

    backup.stat()  # raises `OSError`; SQLite would create a missing file
    with engine_for_once(f"sqlite:///{backup}", "the backup") as engine:
        with engine.connect() as connection:
            damage = connection.exec_driver_sql("PRAGMA integrity_check").scalar_one()
            if damage != "ok":
                raise BadConfig(f"it is damaged ({damage}); restore another backup")
            if steps(connection) is None:
                raise BadConfig("it has no tables; restore another backup")
        if segments(default_log(backup)):
            raise BadConfig(
                "some of its runs are only in its log; make a backup of it with `rolegate store "
                "backup`, and restore that"
            )
        await Database(engine).copy(target)

    end = f".replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}" if old else ""
    for path in old:
        # For SQLite's own files, and a log next to the database, insert the suffix before the
        # ending (`-wal`, `-shm` or `.log`), so that the store can be opened by its new name.
        _, found, own_end = str(path).partition(str(store))
        path.rename(f"{store if found else path}{end}{own_end}")
    return end
