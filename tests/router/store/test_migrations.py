"""A database of an older release is brought up to date, with all that is in it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url

from router.amount import NOTHING
from router.errors import BadConfig
from router.ledger.usage import UsageQuery
from router.models.model import Usage
from router.runs.archive import RunFilter
from router.store import database as migration
from router.store.archive import SQLArchive
from router.store.check import check
from router.store.database import WRITES, Database, engine_of
from router.store.schema import METADATA, RUNS
from router.store.usage import SQLUsages
from router.store.versions import SQLVersionBook
from router.trace.run import Run
from tests.router.store.entries import rows, spent
from tests.router.store.stored import ANSWER, call, run, run_row

OLD_TABLES = [
    """CREATE TABLE runs (run_id VARCHAR NOT NULL PRIMARY KEY, kind VARCHAR NOT NULL, request VARCHAR NOT NULL,
    status VARCHAR NOT NULL, started_at FLOAT NOT NULL, duration_s FLOAT NOT NULL, trace {bytes} NOT NULL)""",
    "CREATE INDEX ix_runs_started_at ON runs (started_at)",
    """CREATE TABLE calls (run_id VARCHAR NOT NULL REFERENCES runs (run_id), number INTEGER NOT NULL,
    role VARCHAR NOT NULL, model VARCHAR NOT NULL, endpoint VARCHAR NOT NULL, purpose VARCHAR NOT NULL,
    attempt INTEGER NOT NULL, sub_query INTEGER, outcome VARCHAR NOT NULL, prompt_tokens INTEGER, cached_tokens INTEGER,
    completion_tokens INTEGER, reasoning_tokens INTEGER, lower_bound INTEGER NOT NULL, started_at FLOAT NOT NULL,
    duration_s FLOAT NOT NULL, PRIMARY KEY (run_id, number))""",
    """CREATE TABLE feedback (feedback_id VARCHAR NOT NULL PRIMARY KEY,
    run_id VARCHAR NOT NULL REFERENCES runs (run_id), given_at FLOAT NOT NULL, accepted BOOLEAN, score FLOAT,
    gold_answer VARCHAR NOT NULL, comment VARCHAR NOT NULL)""",
    "CREATE INDEX ix_feedback_run_id ON feedback (run_id)",
]
"""As the release before made them, which did not write down which schema that was."""
DAY_S = 86400.0
OLD_CALLS: list[dict[str, Any]] = [
    {
        "role": "delegation",
        "model": "big",
        "endpoint": "http://b",
        "purpose": "first",
        "attempt": 1,
        "sub_query": None,
        "outcome": "completed",
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "cached_tokens": 3, "reasoning_tokens": None},
        "lower_bound": False,
        "started_at": 40 * DAY_S + 3599.5,
        "duration_s": 0.5,
    },
]
OLD_CALLS.append({**OLD_CALLS[0], "usage": None, "outcome": "unavailable", "attempt": 2, "purpose": "retry"})
OLD_CALLS.append({**OLD_CALLS[0], "lower_bound": True, "outcome": "cancelled", "started_at": 41 * DAY_S})


def _old_run(run_id: str, result: object) -> dict[str, Any]:
    return {
        "id": run_id,
        "kind": "answer",
        "request": "why?",
        "status": "finished" if result else "failed",
        "error": "" if result else "no",
        "result": result,
        "settings": {"answer": {"model": "fixed", "prompt_sha256": "0" * 64}},
        "calls": OLD_CALLS,
        "started_at": 40 * DAY_S,
        "duration_s": 2.5,
    }


def _old_database(url: str, *, feedback: bool = True) -> None:
    address = make_url(url)
    postgres = address.get_backend_name() == "postgresql"
    engine = create_engine(address.set(drivername="postgresql+psycopg") if postgres else address)
    with engine.begin() as connection:
        for statement in OLD_TABLES[: None if feedback else 3]:
            connection.exec_driver_sql(statement.format(bytes="BYTEA" if postgres else "BLOB"))
        for run_id, result in (("run-1", ANSWER), ("run-2", None)):
            run = _old_run(run_id, result)
            row = {name: run[name] for name in ("kind", "request", "status", "started_at", "duration_s")}
            connection.execute(
                text("INSERT INTO runs VALUES (:run_id, :kind, :request, :status, :started_at, :duration_s, :trace)"),
                {"run_id": run_id, **row, "trace": msgspec.msgpack.encode(run)},
            )
            for number, call in enumerate(OLD_CALLS):
                usage = call["usage"] or dict.fromkeys(OLD_CALLS[0]["usage"])
                values = {**call, **usage, "run_id": run_id, "number": number, "lower_bound": int(call["lower_bound"])}
                connection.execute(
                    text(
                        "INSERT INTO calls VALUES (:run_id, :number, :role, :model, :endpoint, :purpose, :attempt,"
                        " :sub_query, :outcome, :prompt_tokens, :cached_tokens, :completion_tokens, :reasoning_tokens,"
                        " :lower_bound, :started_at, :duration_s)"
                    ),
                    values,
                )
        if feedback:
            connection.execute(text("INSERT INTO feedback VALUES ('feedback-1', 'run-1', 5.0, true, 0.5, 'no', 'é')"))
    engine.dispose()


def _differences(database: Database) -> Any:
    options = {"compare_type": True, "compare_server_default": True}
    return database.read(
        lambda connection: compare_metadata(MigrationContext.configure(connection, opts=options), METADATA)
    )


async def test_migrations_lead_to_the_schema(database: Database) -> None:
    """A new database has the tables that the code is written for."""
    assert await _differences(database) == []


@pytest.mark.parametrize("feedback", [True, False])
async def test_an_older_database(url: str, *, feedback: bool) -> None:
    """Keeps its runs, calls and feedback, also where it is so old that it has no table for feedback."""
    _old_database(url, feedback=feedback)

    database = await Database.open(url)

    assert await _differences(database) == []
    kept = [("feedback-1", "run-1", 5.0, True, 0.5, "no", "é")] if feedback else []
    assert await rows(database, "SELECT * FROM feedback") == kept
    assert await rows(database, "SELECT run_id, tenant, request_id, status, outcome FROM runs ORDER BY run_id") == [
        ("run-1", "default", None, "finished", "answered"),
        ("run-2", "default", None, "failed", ""),
    ]
    assert (await check(database)).problems == []
    await database.close()


async def test_the_runs_of_an_older_database(url: str) -> None:
    """Are read like those of today; what nobody wrote down then is unknown."""
    _old_database(url)
    database = await Database.open(url)
    archive = SQLArchive(database)

    known = {"role": "delegation", "model": "big", "deployment": "http://b", "executor_version": None}
    unknown = {"sub_query": None, "max_tokens": 0, "reserved": NOTHING, "nano_usd": None, "first_token_s": None}
    first = {**known, **unknown, "usage": Usage(7, 5, 3), "started_at": 40 * DAY_S + 3599.5}
    calls = (
        call("run-2", 0, **first),
        call("run-2", 1, **{**first, "usage": None, "outcome": "unavailable", "attempt": 2, "purpose": "retry"}),
        call(
            "run-2",
            2,
            **{**first, "usage": Usage(7, 5, 3, lower_bound=True), "outcome": "cancelled", "started_at": 41 * DAY_S},
        ),
    )
    run = msgspec.convert({**_old_run("run-2", None), "calls": calls}, Run)
    assert [told.run async for told in archive.export(RunFilter())][1] == run
    assert (await archive.load("run-1")).result == ANSWER
    await database.close()


async def test_what_an_older_database_had_spent(url: str) -> None:
    """Is summed by hours, days and months, so that it counts."""
    _old_database(url)
    database = await Database.open(url)

    (row,) = (await SQLUsages(database).usage(UsageQuery())).rows
    assert (row.attempts, row.attempts_without_usage, row.prompt_tokens, row.wasted_tokens) == (6, 2, 28, 24)
    assert await rows(database, "SELECT hour, attempts FROM usage_hours ORDER BY hour") == [(960, 4), (984, 2)]
    assert await spent(database) == {
        "1970-02-10": (2, 24, 0, 0, 0),
        "1970-02-11": (0, 24, 0, 0, 0),
        "1970-02": (2, 48, 0, 0, 0),
    }
    await database.close()


async def test_a_newer_database_is_left_alone(url: str) -> None:
    """Whoever opens it hears that this release is too old for it."""
    database = await Database.open(url)
    await database.write(lambda connection: connection.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    await database.close()

    with pytest.raises(BadConfig, match=r"(?s)^server\.store: .*schema 9999.*up to 0003.*newer rolegate"):
        await Database.open(url)


@pytest.mark.parametrize(
    "tables",
    [
        ["CREATE TABLE x (a INTEGER)"],
        ["CREATE TABLE runs (id INTEGER)", "CREATE TABLE tenants (id INTEGER)"],
        [
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
            "INSERT INTO alembic_version VALUES ('0001')",
        ],
    ],
)
async def test_a_database_of_another_program(url: str, tables: list[str]) -> None:
    """Is left as it was, and whoever opens it hears so."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg") if "postgres" in url else url)
    with engine.begin() as connection:
        for statement in tables:
            connection.exec_driver_sql(statement)
    file = Path(make_url(url).database or "")
    before = sorted(inspect(engine).get_table_names()), "postgres" in url or file.read_bytes()

    with pytest.raises(
        BadConfig, match=r"^server\.store: .*another program's.*name another file, or an empty database"
    ):
        await Database.open(url)

    assert (sorted(inspect(engine).get_table_names()), "postgres" in url or file.read_bytes()) == before
    engine.dispose()


async def test_a_database_is_opened_again(url: str) -> None:
    """What was kept is there after a restart."""
    for already in ([], [(1,)]):
        database = await Database.open(url)
        assert await rows(database, "SELECT pid FROM gateways") == already
        await database.write(
            lambda connection: connection.execute(
                text("INSERT INTO gateways VALUES ('g', 'h', 1, 1.0) ON CONFLICT DO NOTHING")
            )
        )
        await database.close()


def _database_of_0002(url: str) -> None:
    engine = engine_of(url)
    with engine.execution_options(**WRITES).begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(migration.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
        assert not inspect(connection).has_table("executor_versions")
        connection.execute(RUNS.insert().values(run_row(run("run-1"), trace=True)))
    engine.dispose()


async def test_a_database_from_before_versions_of_the_executor(url: str) -> None:
    """Gets their tables, and keeps what it has."""
    _database_of_0002(url)

    database = await Database.open(url)

    assert await _differences(database) == []
    assert await SQLArchive(database).load("run-1") == run("run-1")
    assert await SQLVersionBook(database).versions() == []
    assert (await check(database)).problems == []
    await database.close()
