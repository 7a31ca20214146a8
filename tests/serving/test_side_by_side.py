"""Gateways that share a PostgreSQL: a run of one of them can be watched, read, repeated and
cancelled at each of the others.
"""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from google.protobuf.json_format import MessageToJson
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.run_service_pb2 import RUN_STATUS_CANCELLED

from benchmarks.gateway import at_once, canned_config, played
from benchmarks.reliability.testbed import COLUMNS, tabular
from router.access import Tenant
from router.store import Database, SQLAccounts
from router.testing.openai_server import Behaviour, ChatRequest, OpenAIServer, Reply, writes
from router.testing.postgres import postgres_binaries, running_postgres
from serving.composition import running_gateway
from serving.config.file import load_config
from tests.router.clock import ended
from tests.router.store.entries import rows

pytestmark = pytest.mark.postgres
QUESTION = "When was the director of Heat born?"
SOON_S = 2.0
PASSAGE = "Heat is a film by Michael Mann, who was born in Chicago in 1943."


async def everything(events: AsyncIterable[Any]) -> list[str]:
    """Return all events of a stream, as JSON. Rows are left out of the events, because those that
    are read after the end of a run do not have them.
    """
    texts = []
    async for event in events:
        if event.WhichOneof("event") == "row_changed":
            event.row_changed.ClearField("row")
        texts.append(MessageToJson(event))
    return texts


def of_both(asked: ChatRequest) -> Reply:
    """Answer questions, and fill tables with what stands in the only passage."""
    about = asked.texts[1]
    if "<columns>" not in about and "shelf" not in about and " made" not in about:
        return at_once(asked)
    text = tabular(asked)
    if text.startswith("<answer>"):
        answer = "Heat\nChicago" if "shelf" in about else "maker: Michael Mann\nmade: 1943"
        text = f"<answer>{answer}</answer>\n<evidence>{PASSAGE}</evidence>"
    return Reply.of(text)


@dataclass
class Pair:
    """Two gateways, each with a client, and their models."""

    models: OpenAIServer
    first: AsyncClient
    second: AsyncClient
    database: Database
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a model is waiting."""
    let: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets the model go on."""

    def hold(self, at: int) -> None:
        """Let the models wait before call number `at`, counted from 0."""
        play = writes(of_both)
        numbers = count()

        async def waiting(request: web.Request) -> web.StreamResponse:
            if next(numbers) == at:
                self.held.set()
                await self.let.wait()
            return await play(request)

        self.models.plays(waiting)

    async def begun(self, work: Any, at: int = 5) -> tuple[asyncio.Task[Any], str]:
        """Begin `work` at the first gateway, whose models wait before call number `at`. Return its
        task, and the identifier of its run.
        """
        self.hold(at)
        task = asyncio.ensure_future(work)
        await ended(self.held.wait())
        ((run_id,),) = await rows(self.database, "SELECT run_id FROM runs WHERE status = 'running'")
        return task, run_id


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[], str]]:
    """Function that creates an empty database, and returns its URL."""
    if postgres_binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    with running_postgres(durable=False) as running:
        yield running.new


@asynccontextmanager
async def pair_of(url: str, folder: Path) -> AsyncIterator[Pair]:
    """Run two gateways on the database at `url`."""
    play: Behaviour = writes(of_both)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        models, retrieval = await enter(played(play))
        server = {"store": url, "log": f"{folder}/logs"}
        config = load_config(canned_config(folder, [models.base_url], retrieval, server=server))

        async def client() -> AsyncClient:
            gateway = running_gateway(config, "127.0.0.1:0", lambda _line: None)
            return await enter(AsyncClient(await enter(gateway)))

        database = await Database.open(url)
        stack.push_async_callback(database.close)
        pair = Pair(models, await client(), await client(), database)
        stack.callback(pair.let.set)
        yield pair


@pytest.fixture
async def pair(server: Callable[[], str], tmp_path: Path) -> AsyncIterator[Pair]:
    async with pair_of(server(), tmp_path) as pair:
        yield pair


async def test_a_run_is_watched_live_at_another_gateway(pair: Pair) -> None:
    """The events are those of its own gateway, and arrive within two seconds."""
    answer, run_id = await pair.begun(pair.first.ask(QUESTION))
    own = asyncio.create_task(everything(pair.first.watch(run_id)))
    elsewhere = aiter(pair.second.watch(run_id))
    async with asyncio.timeout(SOON_S):
        first = [await anext(elsewhere) for _ in range(6)]
    assert first[0].run_started.run_id == run_id
    pair.let.set()
    last = [event async for event in elsewhere]
    assert [*map(MessageToJson, first + last)] == await own
    assert json.loads(MessageToJson(await answer)) == json.loads((await own)[-1])["done"]


async def test_a_table_is_watched_elsewhere_from_any_event_on(pair: Pair) -> None:
    """So a client whose connection broke can continue at another gateway."""
    filling, run_id = await pair.begun(pair.first.table(QUESTION, COLUMNS), at=9)
    own = asyncio.create_task(everything(pair.first.watch(run_id)))
    later = asyncio.create_task(everything(pair.second.watch(run_id, after=7)))
    table = await pair.second.get_table(run_id)
    assert table.rows == (await pair.first.get_table(run_id)).rows
    assert len(table.rows) > 0
    pair.let.set()
    events = await ended(own)
    assert len(events) > 12
    assert await ended(later) == events[7:]
    await filling


async def test_a_running_run_is_read_elsewhere_with_all_that_has_happened(pair: Pair) -> None:
    answer, run_id = await pair.begun(pair.first.ask(QUESTION))
    here = await pair.first.run(run_id, trace=True)
    elsewhere = await pair.second.run(run_id, trace=True)
    assert len(here.calls) == 5
    assert elsewhere == here
    pair.let.set()
    await answer
    assert await pair.second.run(run_id, trace=True) == await pair.first.run(run_id, trace=True)
    async with asyncio.timeout(10):
        while await rows(pair.database, "SELECT run_id FROM progress"):  # a gateway deletes it
            pass


async def test_a_cancellation_elsewhere_ends_the_run_soon(pair: Pair) -> None:
    """A second one has no effect, neither while the run ends nor later."""
    answer, run_id = await pair.begun(pair.first.ask(QUESTION))
    async with asyncio.timeout(SOON_S):
        await pair.second.cancel(run_id)
        await pair.second.cancel(run_id)
        with pytest.raises(GatewayError) as refused:
            await answer
    assert refused.value.reason == "RUN_CANCELLED"
    await pair.second.cancel(run_id)
    stored = await pair.second.run(run_id)
    assert (stored.run.status, len(stored.calls)) == (RUN_STATUS_CANCELLED, 6)
    with pytest.raises(GatewayError, match="was cancelled"):
        await everything(pair.second.watch(run_id))


async def test_a_request_that_waits_elsewhere_for_a_cancelled_run_is_cancelled(pair: Pair) -> None:
    """It does not begin the work again."""
    answer, run_id = await pair.begun(pair.first.ask(QUESTION, request_id="mine"))
    repeated = asyncio.create_task(pair.second.ask(QUESTION, request_id="mine"))
    await pair.second.run(run_id)  # takes longer than the request before it needs to begin to wait
    await pair.second.cancel(run_id)
    for request in (answer, repeated):
        with pytest.raises(GatewayError) as refused:
            await ended(request)
        assert refused.value.reason == "RUN_CANCELLED"
    assert await rows(pair.database, "SELECT run_id FROM runs") == [(run_id,)]


async def test_a_repeated_request_gets_its_answer_at_any_gateway(pair: Pair) -> None:
    """While the run is under way, and later; nothing is spent twice."""
    answer, run_id = await pair.begun(pair.first.ask(QUESTION, request_id="mine"))
    repeated = asyncio.create_task(pair.second.ask(QUESTION, request_id="mine"))
    streamed = asyncio.create_task(everything(pair.second.stream(QUESTION, request_id="mine")))
    with pytest.raises(GatewayError) as refused:
        await pair.second.ask("Who directed Heat?", request_id="mine")
    assert refused.value.reason == "REQUEST_ID_TAKEN"
    pair.let.set()
    whole = await answer
    assert await ended(repeated) == whole
    assert json.loads((await ended(streamed))[-1])["done"] == json.loads(MessageToJson(whole))
    assert await pair.second.ask(QUESTION, request_id="mine") == whole
    assert await rows(pair.database, "SELECT run_id FROM runs") == [(run_id,)]
    assert await rows(pair.database, "SELECT count(*) FROM calls") == [(8,)]


async def test_texts_of_a_redacted_run_stay_in_its_gateway(
    server: Callable[[], str], tmp_path: Path
) -> None:
    """Elsewhere, the run is seen as it will be stored."""
    url = server()
    database = await Database.open(url)
    await SQLAccounts(database).set_tenant(Tenant("default", redact=True))
    await database.close()
    async with pair_of(url, tmp_path) as pair:
        answer, run_id = await pair.begun(pair.first.ask(QUESTION))
        elsewhere = await pair.second.run(run_id, trace=True)
        assert len(elsewhere.calls) == 5
        assert "Heat" not in MessageToJson(elsewhere)
        watch = asyncio.create_task(everything(pair.second.watch(run_id)))
        assert "Heat" not in str(await rows(pair.database, "SELECT content FROM progress"))
        pair.let.set()
        await answer
        assert "Heat" not in "".join(await ended(watch))
