"""Full and read-only disks: errors of clients, stored records, and the next start."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from rolegate.client import AsyncClient, GatewayError

from benchmarks.gateway import OnePassage, at_once, canned_config
from router.errors import RolegateError
from router.store import Database, LogJournal, opened
from router.store.check import check
from serving.composition import running_gateway
from serving.config.file import load_config
from tests.openai_server import serving, writes
from tests.router.store.disks import filled, small_disk
from tests.router.store.entries import NOW, cut_short, ended, rows, start
from tests.router.store.entries import opened as before
from tests.router.store.stored import run


class Store:
    """A store whose database and log are on separate disks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "runs.db.log"
        self.url = f"sqlite:///{folder / 'runs.db'}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Give each disk more room than the threshold of a full one."""
    store = Store(tmp_path / "disk")
    with small_disk(store.folder, "80m"), small_disk(store.log, "80m"):
        yield store


@asynccontextmanager
async def asking(store: Store) -> AsyncIterator[AsyncClient]:
    """Open a client of a gateway with played models."""
    async with serving(recording=False) as server:
        server.plays(writes(at_once))
        config = load_config(canned_config(store.folder, [server.base_url], "127.0.0.1:9"))
        gateway = running_gateway(config, "127.0.0.1:0", lambda _: None, retriever=OnePassage())
        async with gateway as address, AsyncClient(address) as client:
            yield client


async def until(client: AsyncClient, message: str) -> None:
    """Ask until the request is refused with these words and a reason that clients know."""
    async with asyncio.timeout(10):
        while True:
            try:
                await client.ask("Who?")
            except GatewayError as error:
                assert (error.reason, message in str(error)) == ("STORE_FAILED", True), error
                return


async def statuses(store: Store, run_ids: list[str]) -> set[str]:
    """Return the status of some runs in the store."""
    async with opened(store.url) as database:
        assert (await check(database)).problems == []
        status_of = dict(await rows(database, "SELECT run_id, status FROM runs"))
    return {status_of[run_id] for run_id in run_ids}


async def test_with_a_full_log_disk_questions_are_refused_until_there_is_room(store: Store) -> None:
    """The error says what to do. Earlier answers can be read meanwhile."""
    async with asking(store) as client:
        answered = [(await client.ask("Who?")).run_id]
        with filled(store.log):
            await until(client, "The disk of the log")
            assert (await client.run(answered[0])).run.run_id == answered[0]
        async with asyncio.timeout(10):
            while len(answered) < 2:
                try:
                    answered.append((await client.ask("Who?")).run_id)
                except GatewayError as error:
                    assert error.reason == "STORE_FAILED"
    assert await statuses(store, answered) == {"finished"}


async def test_with_a_full_database_disk_questions_are_answered_from_the_log(store: Store) -> None:
    """The database catches up when there is room. Reading has to wait."""
    async with asking(store) as client:
        answered = [(await client.ask("Who?")).run_id]
        with filled(store.folder):
            answered += [(await client.ask("Who?")).run_id for _ in range(3)]
            with pytest.raises(
                GatewayError, match="has not yet copied all finished runs"
            ) as caught:
                await client.run(answered[-1])
            assert caught.value.reason == "STORE_FAILED"
        async with asyncio.timeout(10):
            while True:
                try:
                    assert (await client.run(answered[-1])).run.run_id == answered[-1]
                    break
                except GatewayError as error:
                    assert error.reason == "STORE_FAILED"
    assert await statuses(store, answered) == {"finished"}


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Make a folder read-only while the context is open."""
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("log full", "The disk of the log .* is full; make room, or move the log"),
        (
            "database full",
            "cannot open .*; check .* its disk has space",
        ),
        ("log read-only", "The log .* cannot be written .Read-only file system"),
        (
            "database read-only",
            "cannot open .*; check that its server runs, or that its file can be written",
        ),
    ],
)
async def test_a_start_without_room_names_the_disk_and_changes_nothing(
    store: Store, what: str, message: str
) -> None:
    """With room again, all records are there, and the run in progress is closed."""
    database = await Database.open(store.url)
    async with cut_short(database) as journal:
        for number in range(3):
            await journal.begin(start(f"run-{number}"))
            await journal.open(before(call := ended(f"run-{number}")))
            if number:
                await journal.finish(run(f"run-{number}", NOW, [call]))
    await database.close()
    disk = store.log if what.startswith("log") else store.folder
    with (
        filled(disk) if what.endswith("full") else read_only(disk),
        pytest.raises(RolegateError, match=message),
    ):
        database = await Database.open(store.url)
        try:
            async with LogJournal.writing(database):
                pass
        finally:
            await database.close()
    database = await Database.open(store.url)
    async with LogJournal.writing(database):
        run_rows = await rows(database, "SELECT run_id, status FROM runs ORDER BY run_id")
        assert run_rows == [("run-0", "interrupted"), ("run-1", "finished"), ("run-2", "finished")]
        assert (await check(database)).problems == []
    await database.close()
