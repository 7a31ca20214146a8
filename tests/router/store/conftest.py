"""Fixtures: a database of each kind, empty for each test."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from router.store import Database, LogJournal
from router.testing.postgres import postgres_binaries, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """Return a function that creates a database on the tests' own server and returns its URL."""
    if postgres_binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with running_postgres(durable=False) as server:
        yield server.new


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    new_database: Callable[[], str] = request.getfixturevalue("postgres")
    return new_database()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """An open database."""
    database = await Database.open(url)
    yield database
    await database.close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep logs of gateways on PostgreSQL in a temporary home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
async def journal(database: Database) -> AsyncIterator[LogJournal]:
    """A journal that writes to the database."""
    async with LogJournal.writing(database) as journal:
        yield journal


@pytest.fixture
def _open_to_all() -> Iterator[None]:
    """Set the umask so that all users may read and write new files by default."""
    before = os.umask(0)
    yield
    os.umask(before)
