"""Upgrades of databases of earlier releases, and gateways of neighbouring releases."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from msgspec.structs import replace
from sqlalchemy import inspect, text

from router.errors import BadConfig
from router.ledger import UsageQuery
from router.store import Database, LogJournal, SQLUsages
from router.store.database import WRITES, engine_of, upgrade
from router.store.migration import THIS, Release
from router.store.schema import METADATA, REVISION
from serving.cli.store import store
from tests.router.store.entries import rows, start
from tests.router.store.stored import call, put, run
from tests.store_config import write_config

_EXPANDS = """
    op.add_column("tenants", sa.Column("note", sa.String))
"""
_CONTRACTS = """
    op.drop_column("tenants", "note")
"""


def _release(folder: Path, *bodies: str, number: int = THIS.number) -> Release:
    """Return a later release, with a revision for each body; the last one has `NUMBER` if `number`
    is not that of this release.
    """
    scripts = folder / "later"
    shutil.copytree(THIS.scripts, scripts, dirs_exist_ok=True)
    before = REVISION
    for place, body in enumerate(bodies, 1):
        revision = f"later{place}"
        last = place == len(bodies) and number != THIS.number
        (scripts / "versions" / f"{revision}.py").write_text(
            f'"""Change {place}."""\nimport sqlalchemy as sa\nfrom alembic import op\n'
            f"revision = {revision!r}\ndown_revision = {before!r}\n"
            + (f"NUMBER = {number}\n" if last else "")
            + f"def upgrade():\n    pass\n{body}"
        )
        before = revision
    return Release(number, before, scripts)


_SCHEMA = Path(__file__).with_name("schema_0001")
"""Folder of the schema that releases without revisions created."""
_TENANT = "INSERT INTO tenants (name, redact, training, indexes) VALUES ('acme', false, false, '')"


async def _baseline(url: str) -> None:
    """Create a database as releases without revisions did, with a tenant in it."""
    engine = engine_of(url)
    schema = (_SCHEMA / f"{engine.dialect.name}.sql").read_text()
    with engine.execution_options(**WRITES).begin() as connection:
        for statement in [*filter(str.strip, schema.split(";")), _TENANT]:
            connection.execute(text(statement))
    engine.dispose()


def _columns(url: str) -> set[str]:
    engine = engine_of(url)
    try:
        return {column["name"] for column in inspect(engine).get_columns("tenants")}
    finally:
        engine.dispose()


def test_the_last_script_leads_to_this_release() -> None:
    assert ScriptDirectory(str(THIS.scripts)).get_heads() == [REVISION]


async def test_a_new_database_has_the_last_revision_and_its_tables(url: str) -> None:
    await (await Database.open(url)).close()
    engine = engine_of(url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == REVISION
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()


async def test_a_database_without_a_revision_gets_all_revisions(url: str) -> None:
    """Afterwards, it has the tables of a new database, and its rows."""
    await _baseline(url)
    database = await Database.open(url)
    assert await rows(database, "SELECT version_num FROM alembic_version") == [(REVISION,)]
    assert await rows(database, "SELECT name FROM tenants") == [("acme",)]
    await database.close()
    engine = engine_of(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    engine.dispose()


async def test_sums_from_before_keys_belong_to_no_key(url: str) -> None:
    """They are exact by every other dimension."""
    await _baseline(url)
    sums = "5, 1, 1, 70, 20, NULL, NULL, 3, 9"
    engine = engine_of(url)
    with engine.execution_options(**WRITES).begin() as connection:
        connection.execute(
            text(f"INSERT INTO usage_hours VALUES ('acme', 7, 'answer', 'm', 'd', '', '', {sums})")
        )
    engine.dispose()
    database = await Database.open(url)
    usages = SQLUsages(database)
    (by_key,) = (await usages.usage(UsageQuery(by=("tenant", "model", "key_id")))).rows
    (total,) = (await usages.usage(UsageQuery(by=("tenant", "model")))).rows
    assert (by_key.key_id, by_key.prompt_tokens, by_key.cached_tokens) == ("", 70, None)
    assert replace(by_key, key_id=None) == total
    await database.close()


async def test_rows_of_the_first_release_stay_complete(url: str) -> None:
    """Columns that it does not know are null, or have a default."""
    await _baseline(url)
    engine = engine_of(url)
    inspector = inspect(engine)
    for table in METADATA.sorted_tables:
        if inspector.has_table(table.name):
            known = {column["name"] for column in inspector.get_columns(table.name)}
            added = [column for column in table.columns if column.name not in known]
            assert all(column.nullable or column.server_default for column in added)
            assert {column.name for column in table.primary_key} <= known
    engine.dispose()


async def test_neighbouring_releases_work_on_an_expanded_database(url: str, tmp_path: Path) -> None:
    """The later release expands it when it opens it, and keeps the rows. The earlier one goes on,
    and can be started again.
    """
    await _baseline(url)
    earlier = await Database.open(url)
    later = await Database.open(url, _release(tmp_path, _EXPANDS))
    assert await rows(later, "SELECT name, note FROM tenants") == [("acme", None)]

    again = await Database.open(url)
    for run_id, database in {"run-1": earlier, "run-2": again}.items():
        async with LogJournal.writing(database) as journal:
            await journal.begin(start(run_id))
    assert await rows(later, "SELECT run_id FROM runs ORDER BY 1") == [("run-1",), ("run-2",)]
    for database in (earlier, later, again):
        await database.close()


async def test_a_contraction_waits_for_the_command(url: str, tmp_path: Path) -> None:
    """Until then, both releases work. Then the earlier one is refused, and told what to do."""
    await _baseline(url)
    number = THIS.number + 1
    later = _release(tmp_path, _EXPANDS, _CONTRACTS, number=number)
    await (await Database.open(url, later)).close()
    assert "note" in _columns(url)
    await (await Database.open(url)).close()

    assert [step.number for step in upgrade(url, later, check=True)] == [number]
    assert "note" in _columns(url)
    assert [step.number for step in upgrade(url, later)] == [number]
    assert "note" not in _columns(url)
    assert upgrade(url, later) == []

    await (await Database.open(url, later)).close()
    with pytest.raises(
        BadConfig, match=r"a later release .* install that release, .* store restore"
    ):
        await Database.open(url)


async def test_a_table_is_copied_with_all_rows_that_refer_to_it(url: str, tmp_path: Path) -> None:
    """SQLite cannot change most of a table in another way."""
    database = await Database.open(url)
    await put(database, run("run-1", calls=[call("run-1")]))
    await database.close()
    copies = """
    with op.batch_alter_table("runs", recreate="auto") as batch:
        batch.drop_column("topology")
        batch.alter_column("answer", nullable=True)
"""
    upgrade(url, _release(tmp_path, copies, number=THIS.number + 1))
    engine = engine_of(url)
    with engine.connect() as connection:
        assert "topology" not in {item["name"] for item in inspect(connection).get_columns("runs")}
        joined = "SELECT runs.run_id, number FROM runs JOIN calls ON calls.run_id = runs.run_id"
        assert connection.execute(text(joined)).all() == [("run-1", 0)]
    engine.dispose()


async def test_an_upgrade_that_loses_rows_changes_nothing(url: str, tmp_path: Path) -> None:
    """The rows that referred to them would be left alone."""
    database = await Database.open(url)
    await put(database, run("run-1", calls=[call("run-1")]))
    await database.close()
    loses = _release(tmp_path, "    op.execute('DELETE FROM runs')\n", number=THIS.number + 1)
    with pytest.raises(
        BadConfig, match=r"would refer to a missing row of runs|violates foreign key"
    ):
        upgrade(url, loses)
    database = await Database.open(url)
    assert await rows(database, "SELECT run_id FROM runs") == [("run-1",)]
    await database.close()


async def test_an_upgrade_that_fails_changes_nothing(url: str, tmp_path: Path) -> None:
    await _baseline(url)
    fails = "    op.execute('SELECT * FROM nothing')\n"
    later = _release(tmp_path, _EXPANDS, fails)
    with pytest.raises(BadConfig, match="nothing"):
        upgrade(url, later)
    assert "note" not in _columns(url)
    assert [step.revision for step in upgrade(url, later, check=True)][-2:] == [
        "later1",
        "later2",
    ]


_OPENS = """
import sys
from pathlib import Path
from router.store.database import upgrade
from router.store.migration import Release
number, revision, scripts, url = sys.argv[1:]
upgrade(url, Release(int(number), revision, Path(scripts)))
"""


def _upgrading(url: str, release: Release) -> subprocess.Popen[str]:
    arguments = [str(release.number), release.revision, str(release.scripts), url]
    return subprocess.Popen(
        [sys.executable, "-c", _OPENS, *arguments], stdout=subprocess.PIPE, text=True
    )


async def test_of_two_processes_one_upgrades(url: str, tmp_path: Path) -> None:
    """The other waits for it. A second upgrade would fail, as the column exists."""
    await _baseline(url)
    release = _release(tmp_path, _EXPANDS)
    both = [_upgrading(url, release) for _ in range(2)]
    assert [await asyncio.to_thread(process.wait) for process in both] == [0, 0]
    assert "note" in _columns(url)
    for process in both:
        assert process.stdout
        process.stdout.close()


async def test_a_kill_in_the_middle_leaves_the_database_as_it_was(url: str, tmp_path: Path) -> None:
    await _baseline(url)
    hangs = _EXPANDS + "    print(flush=True)\n    __import__('threading').Event().wait()\n"
    process = _upgrading(url, _release(tmp_path, hangs))
    assert process.stdout
    await asyncio.to_thread(process.stdout.readline)
    process.kill()
    process.wait()
    process.stdout.close()
    assert "note" not in _columns(url)

    upgrade(url, _release(tmp_path, _EXPANDS))
    engine = engine_of(url)
    with engine.execution_options(**WRITES).begin() as connection:
        assert connection.execute(text("SELECT name, note FROM tenants")).all() == [("acme", None)]
    engine.dispose()


def test_the_command_says_what_is_to_do_and_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    asyncio.run(_baseline("sqlite:///rolegate.db"))
    release = _release(tmp_path, dedent(_EXPANDS).replace("op.", "    op."))
    assert store(["upgrade", "--check", "--json"], release) == 1
    step = {"revision": "later1", "about": "Change 1.", "number": None}
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert steps[-1] == step
    assert store(["upgrade"], release) == 0
    assert capsys.readouterr().out.endswith(
        f"later1 Change 1. (earlier releases keep working)\n{len(steps)} revisions done\n"
    )
    assert store(["upgrade", "--check"], release) == 0
    assert capsys.readouterr().out == "0 revisions to do\n"
