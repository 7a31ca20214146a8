"""Two tenants, each with an index that only it may search, and an index that both may search: no
passage of a tenant's index reaches the other tenant, at any door.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
from google.protobuf.json_format import MessageToJson
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import retrieval_service_pb2 as retrieval_pb
from rolegate.v1.document_filter_pb2 import DocumentFilter
from rolegate.v1.execution_service_pb2_grpc import ExecutionServiceStub
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from router.access import Tenant, new_key
from router.errors import BadConfig
from router.store import Database, SQLAccounts
from router.trace.identity import SCOPES
from serving.cli.mcp import mcp_server
from serving.cli.options import document_filter
from serving.composition import running_gateway
from serving.config.config import Config
from serving.config.file import load_config
from serving.retrieval.build import build_index
from serving.retrieval.embedder import Vectors
from tests.openai_server import ChatRequest, Reply, serving, writes
from tests.ports import free_port
from tests.router.edge.pages.world import browsing, token

WORDS = {"acme": "Amaranth", "beta": "Belladonna", "shared": "Sorrel", "default": "Dandelion"}
"""The secret word in each index."""
QUESTION = "What is the password of the archive?"
ABSENT = "nowhere"
"""Name of an index that does not exist."""


def script(asked: ChatRequest) -> Reply:
    """Search for the question; open the first document if it may be opened; report, as evidence,
    everything that was found.
    """
    texts = asked.texts
    found = re.findall(r"The password of the archive is \w+\.", "\n".join(texts))
    evidence = "\n".join(dict.fromkeys(found))
    words = " ".join(dict.fromkeys(line.split()[-1].strip(".") for line in found))
    match asked.model, len(texts):
        case "delegator", 2 if "<columns>" in texts[1]:
            plan = '<ask column="password">What is the password of the archive {archive}?</ask>'
            reply = f"{plan}<stop/>Enough evidence<stop>"
        case "delegator", 2:
            reply = f'<search>["{QUESTION}"]</search>'
        case "delegator", _:
            reply = "<stop/>Enough evidence<stop>"
        case "executor", 2:
            reply = f"<search>{QUESTION}</search>"
        case "executor", 4 if documents := re.findall("<name>([^<]+)</name>", texts[-1]):
            reply = f'<access document="{documents[-1]}">the password</access>'
        case "executor", _:
            answer = words
            if "\n- " in texts[1]:  # the columns of a table, each of which has one word
                answer = f"password: {words.partition(' ')[0]}\nlast: {words.rpartition(' ')[2]}"
            reply = f"<answer>{answer}</answer><evidence>{evidence}</evidence>"
        case _:
            reply = f"<answer>{words}</answer>"
    return Reply.of(reply)


@dataclass
class Caller:
    """A tenant, or the operator, with its key."""

    tenant: str | None
    key: str
    stack: AsyncExitStack
    address: str
    door: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def client(self) -> AsyncClient:
        return AsyncClient(self.address, api_key=self.key)


@dataclass
class Address:
    """Where a browser finds the pages."""

    address: str


@dataclass
class World:
    """A gateway with four indexes, and its callers by name."""

    config: Config
    database: Database
    callers: dict[str, Caller] = field(default_factory=dict)

    @property
    def accounts(self) -> SQLAccounts:
        return SQLAccounts(self.database)


class Constant:
    """An embedder for which all texts are alike."""

    identity = "vectors"
    dimension = 8
    max_tokens = 256

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(text) for text in texts]

    def embed(self, texts: Sequence[str], *, queries: bool) -> Vectors:
        return np.full((len(texts), 8), 8**-0.5, np.float32)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four indexes of one document each."""
    folder = tmp_path_factory.mktemp("indexes")
    for name, word in WORDS.items():
        text = f"The password of the archive is {word}. It is kept in a safe of the archive.\n"
        (folder / f"{name}.txt").write_text(text, "utf-8")
        document = (folder / f"{name}.txt").rename(folder / "archive.txt")
        build_index([document], folder / name, Constant())
    return folder


def _write(folder: Path, built: Path, models: str, door: str) -> Path:
    """Write a config with the indexes in `built`."""
    (folder / "prompt.txt").write_text("Do it.\n", "utf-8")
    roles = {"delegation": "delegator", "execution": "executor", "answer": "answerer"}
    tables = [
        f'[roles.{role}]\nmodel = "{model}"\nbase_url = "{models}"\nprompt = "prompt.txt"'
        for role, model in roles.items()
    ]
    tables += [
        f'[{"retrieval" if name == "default" else f"indexes.{name}"}]\nindex = "{built / name}"'
        for name in WORDS
    ]
    embedder = f'base_url = "{models}"\nmodel = "vectors"\ndimension = 8'
    tables.append(f"[retrieval.embedder]\n{embedder}")
    search = "[search]\naccess = true\nmax_searches = 3\nmax_turns = 5\n"
    server = f'[server]\nstore = "sqlite:///runs.db"\nhttp = "{door}"\n'
    (folder / "my.toml").write_text("\n".join([server, search, *tables]), "utf-8")
    return folder / "my.toml"


@pytest.fixture
async def world(tmp_path: Path, built: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(serving(recording=False))
        models.plays(writes(script))
        door = f"127.0.0.1:{free_port()}"
        config = load_config(_write(tmp_path, built, models.base_url, door))
        database = await Database.open(config.server.store)
        stack.push_async_callback(database.close)
        world = World(config, database)
        keys = {}
        for tenant in ("acme", "beta", None):
            keys[tenant or "operator"], key = new_key(tenant, SCOPES)
            await world.accounts.add_key(key)
        for tenant in ("acme", "beta"):
            await world.accounts.set_tenant(Tenant(tenant, indexes=(tenant, "shared")))
        gateway = running_gateway(config, "127.0.0.1:0", lambda _line: None, door)
        address = await stack.enter_async_context(gateway)
        for name, key_text in keys.items():
            tenant = None if name == "operator" else name
            world.callers[name] = Caller(tenant, key_text, stack, address, f"http://{door}")
        yield world


Door = Callable[[Caller, tuple[str, ...]], Awaitable[str]]
"""Asks at a door for an index, or without naming one; returns the whole response as text."""


async def _ask(caller: Caller, index: tuple[str, ...]) -> str:
    async with caller.client() as client:
        answer = await client.ask(QUESTION, index=index)
        run = await client.run(answer.run_id, trace=True)
        return MessageToJson(answer) + MessageToJson(run)


async def _stream(caller: Caller, index: tuple[str, ...]) -> str:
    async with caller.client() as client:
        return "".join(
            [MessageToJson(event) async for event in client.stream(QUESTION, index=index)]
        )


async def _execute(caller: Caller, index: tuple[str, ...]) -> str:
    async with grpc.aio.insecure_channel(caller.address) as channel:
        request = execution_pb.ExecuteRequest(sub_query=QUESTION, index=index)
        metadata = tuple(caller.headers.items())
        return MessageToJson(
            await ExecutionServiceStub(channel).Execute(request, metadata=metadata)
        )


async def _table(caller: Caller, index: tuple[str, ...]) -> str:
    async with caller.client() as client:
        table = await client.table(
            "archives", "archive*, password", [["the archive", ""]], index=index, closed=True
        )
        run = await client.run(table.message.run_id, trace=True)
        return MessageToJson(table.message) + MessageToJson(run)


async def _search(caller: Caller, index: tuple[str, ...]) -> str:
    async with caller.client() as client:
        return "".join(map(MessageToJson, await client.search(QUESTION, 10, index=index)))


async def _search_document(caller: Caller, index: tuple[str, ...]) -> str:
    """Search every document that any index has."""
    texts = ""
    async with grpc.aio.insecure_channel(caller.address) as channel:
        for document in ("archive.txt", *(f"{name}:archive.txt" for name in WORDS)):
            request = retrieval_pb.SearchRequest(queries=["?"], document=document, index=index)
            metadata = tuple(caller.headers.items())
            texts += MessageToJson(
                await RetrievalServiceStub(channel).Search(request, metadata=metadata)
            )
    return texts


async def _chat(caller: Caller, index: tuple[str, ...], model: str = "rolegate") -> str:
    """Ask the OpenAI-compatible server, whose requests name at most one index."""
    body = {
        "model": ":".join((model, *index[:1])),
        "messages": [{"role": "user", "content": QUESTION}],
    }
    async with (
        aiohttp.ClientSession(headers=caller.headers) as session,
        session.post(f"{caller.door}/v1/chat/completions", json=body) as response,
    ):
        return await response.text()


async def _chat_executor(caller: Caller, index: tuple[str, ...]) -> str:
    return await _chat(caller, index, "rolegate-executor")


async def _option(caller: Caller, index: tuple[str, ...], **documents: str) -> str:
    """Ask the OpenAI-compatible server, with the indexes and a filter as an option."""
    body: dict[str, object] = {
        "model": "rolegate",
        "rolegate": {"index": index, "filter": documents},
    }
    asked: dict[str, dict[str, object]] = {
        "chat/completions": {"messages": [{"role": "user", "content": QUESTION}]},
        "responses": {"input": QUESTION},
    }
    replies = []
    async with aiohttp.ClientSession(headers=caller.headers) as session:
        for path, question in asked.items():
            url = f"{caller.door}/v1/{path}"
            async with session.post(url, json={**body, **question}) as response:
                replies.append(await response.text())
    first, second = replies
    assert words(first) == words(second)
    return second


async def _mcp(caller: Caller, index: tuple[str, ...]) -> str:
    """Call the tools of the MCP server."""
    from mcp import Client

    async with caller.client() as client, Client(mcp_server(client, 60.0)) as agent:
        found = await agent.call_tool("search", {"query": QUESTION, "index": list(index)})
        answer = await agent.call_tool("ask", {"question": QUESTION, "index": list(index)})
        return f"{found} {answer}"


DOORS: dict[str, Door] = {
    "ask": _ask,
    "stream": _stream,
    "execute": _execute,
    "table": _table,
    "search": _search,
    "search a document": _search_document,
    "chat": _chat,
    "chat with an executor": _chat_executor,
    "options of chats and responses": _option,
    "mcp": _mcp,
}


async def tried(door: Door, caller: Caller, *index: str) -> str:
    """Return the response, or the error, as text."""
    try:
        return await door(caller, index)
    except GatewayError as error:
        return f"{error.code.name}: {error}"
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name}: {error.details()}"


def words(text: str) -> set[str]:
    """Return the names of the indexes whose secret words are in a text."""
    return {name for name, word in WORDS.items() if word in text}


@pytest.mark.parametrize("door", DOORS)
async def test_every_door_shows_the_indexes_of_the_tenant_only(world: World, door: str) -> None:
    """Each tenant is asked twice, so that no cache mixes them up either."""
    for _ in range(2):
        for name in ("acme", "beta"):
            response = await tried(DOORS[door], world.callers[name])
            assert words(response) == {name, "shared"}


@pytest.mark.parametrize("door", DOORS)
async def test_a_request_names_one_of_its_indexes(world: World, door: str) -> None:
    acme = world.callers["acme"]
    assert words(await tried(DOORS[door], acme, "shared")) == {"shared"}
    assert words(await tried(DOORS[door], acme, "acme")) == {"acme"}
    assert words(await tried(DOORS[door], world.callers["operator"], "beta")) == {"beta"}


@pytest.mark.parametrize("door", DOORS)
async def test_another_tenant_s_index_is_like_one_that_does_not_exist(
    world: World, door: str
) -> None:
    """The errors are equal except for the name, and contain no secret word."""
    acme = world.callers["acme"]
    absent = await tried(DOORS[door], acme, ABSENT)
    assert "does not exist, or you may not use it" in absent
    assert words(absent) == set()
    for name in ("beta", "default"):
        foreign = await tried(DOORS[door], acme, name)
        assert foreign.replace(name, ABSENT) == absent


async def test_an_operator_searches_the_default_index_unless_it_names_others(world: World) -> None:
    """So does a tenant whose indexes were never set. The operator may name all indexes. Without a
    name, its requests search the indexes of the tenant `default`.
    """
    operator = world.callers["operator"]
    assert words(await tried(_search, operator)) == {"default"}
    assert words(await tried(_search, operator, *WORDS)) == set(WORDS)
    await world.accounts.set_tenant(Tenant("default", indexes=("default", "shared")))
    await world.accounts.set_tenant(Tenant("beta"))
    assert words(await _until(_search, world.callers["beta"], "default")) == {"default"}
    assert words(await _until(_search, operator, "shared")) == {"default", "shared"}


async def _until(door: Door, caller: Caller, name: str) -> str:
    """Ask until an index is searched: settings of tenants reach a gateway within a second."""
    while name not in words(response := await tried(door, caller)):
        pass
    return response


async def test_passages_of_several_indexes_are_merged_by_rank(world: World) -> None:
    """Their documents and ids are named after their indexes."""
    async with world.callers["acme"].client() as client:
        passages = await client.search(QUESTION, 10)
        (own,) = await client.search(QUESTION, 10, index="acme")
    assert [passage.document for passage in passages] == ["acme:archive.txt", "shared:archive.txt"]
    assert [passage.score for passage in passages] == pytest.approx([1 / 61, 1 / 61])
    assert passages[0].passage_id == own.passage_id
    assert own.passage_id.startswith("acme:")
    assert own.document == "acme:archive.txt"


async def test_a_run_belongs_to_its_indexes(world: World) -> None:
    """A repeated `request_id` for another index is another request. The trace names the indexes."""
    async with world.callers["acme"].client() as client:
        first = await client.ask(QUESTION, request_id="mine", index="acme")
        again = await client.ask(QUESTION, request_id="mine", index=["acme"])
        assert again.run_id == first.run_id
        with pytest.raises(GatewayError, match="already belongs to another request"):
            await client.ask(QUESTION, request_id="mine", index="shared")
        trace = json.loads((await client.run(first.run_id, trace=True)).trace_json)
    assert trace["scope"]["indexes"] == ["acme"]


async def test_reports_are_shared_within_the_same_indexes_only(world: World) -> None:
    """A report of one index is no report of another index."""
    shared = []
    async with world.callers["acme"].client() as client:
        for index in ("acme", "acme", "shared", ("acme", "shared"), ("shared", "acme")):
            answer = await client.ask(QUESTION, index=index)
            shared.append(bool(answer.results[0].shared_from))
    assert shared == [False, True, False, False, True]


async def test_a_filter_narrows_the_search(world: World) -> None:
    """The documents that do not have its properties are not found. It also applies to answers."""
    async with world.callers["acme"].client() as client:
        nothing = await client.search(QUESTION, filter=DocumentFilter(path_prefix="other"))
        both = await client.search(QUESTION, filter=DocumentFilter(path_prefix="archive"))
        answer = await client.ask(QUESTION, filter=DocumentFilter(title="no such title"))
        with pytest.raises(GatewayError, match="from_date must be a date such as 2026"):
            await client.search(QUESTION, filter=DocumentFilter(from_date="soon"))
    assert words(await _option(world.callers["acme"], (), title="no such title")) == set()
    assert words(await _option(world.callers["acme"], (), path_prefix="archive")) != set()
    assert list(nothing) == []
    assert len(both) == 2
    assert words(MessageToJson(answer)) == set()


async def _command(caller: Caller, *arguments: str, typed: str = "") -> str:
    """Return everything that a command prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, *arguments, "--address", caller.address),
        env={**os.environ, "ROLEGATE_API_KEY": caller.key, "COLUMNS": "200"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate(typed.encode())
    return out.decode()


COMMAND = "import sys; from serving.cli.main import main; sys.exit(main())"
COMMANDS = {
    "ask": (QUESTION,),
    "search": (QUESTION,),
    "chat": (),
    "table": ("archives", "--columns", "archive*, password, last", "--closed", "--rows"),
}


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_chooses_index_and_documents(
    world: World, command: str, tmp_path: Path
) -> None:
    """Without options, the tenant's indexes are searched."""
    rows = tmp_path / "rows.csv"
    rows.write_text("archive,password,last\nthe archive,,\n", "utf-8")
    arguments = [command, *COMMANDS[command], *([str(rows)] if command == "table" else [])]
    acme = world.callers["acme"]

    async def found(*options: str) -> set[str]:
        return words(await _command(acme, *arguments, *options, typed=f"{QUESTION}\n"))

    everything, chosen, filtered, nothing = await asyncio.gather(
        found(),
        found("--index", "acme"),
        found("--index", "shared", "--filter", "path=archive"),
        found("--filter", "path=archive", "--filter", "date>=2026-11"),
    )
    expected = (
        {"acme", "shared"},
        {"acme"},
        {"shared"},
        set[str](),
    )
    assert (everything, chosen, filtered, nothing) == expected
    refused = await _command(acme, *arguments, "--filter", "autor=Ada", typed=f"{QUESTION}\n")
    assert "rolegate: filter 'autor=Ada': is not a filter; write title=TEXT" in refused


async def test_the_tools_of_mcp_take_a_filter(world: World) -> None:
    """A property that does not exist is the tool's error."""
    from mcp import Client

    calls: dict[str, dict[str, Any]] = {
        "search": {"query": QUESTION},
        "ask": {"question": QUESTION},
        "table": {
            "question": "archives",
            "columns": ["archive*", "password", "last"],
            "rows": [["the archive", "", ""]],
            "closed": True,
        },
    }
    async with (
        world.callers["acme"].client() as client,
        Client(mcp_server(client, 60.0)) as agent,
    ):
        for tool, arguments in calls.items():
            for properties, expected in (
                (["path=archive"], {"acme", "shared"}),
                (["tag=x"], set()),
            ):
                result = await agent.call_tool(tool, arguments | {"filter": properties})
                assert words(str(result)) == expected
            refused = await agent.call_tool(tool, arguments | {"filter": ["date=2026", "date=1"]})
            assert refused.is_error
            assert "filter 'date=1': only tag may be given twice" in str(refused)


@pytest.mark.parametrize(
    ("properties", "only"),
    [
        (["title = The lease", "path=a/=b"], DocumentFilter(title="The lease", path_prefix="a/=b")),
        (["tag=a", "tag=b"], DocumentFilter(tags=["a", "b"])),
        (["date=2026-11"], DocumentFilter(from_date="2026-11", to_date="2026-11")),
        (["date>=2026", "date<=2027"], DocumentFilter(from_date="2026", to_date="2027")),
        ([], DocumentFilter()),
    ],
)
def test_a_filter_that_a_person_types(properties: list[str], only: DocumentFilter) -> None:
    assert document_filter(properties) == only


@pytest.mark.parametrize("text", ["date", "=x", "author=", "tag>=x", "author= ", ""])
def test_a_filter_that_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="write title=TEXT"):
        document_filter([text])


async def test_models_are_listed_with_the_indexes_of_the_caller(world: World) -> None:
    async def listed(name: str) -> list[str]:
        caller = world.callers[name]
        async with (
            aiohttp.ClientSession(headers=caller.headers) as session,
            session.get(f"{caller.door}/v1/models") as response,
        ):
            return [model["id"] for model in (await response.json())["data"]]

    own = ["rolegate", "rolegate-executor", "rolegate-table"]
    assert await listed("acme") == [*own, "rolegate:acme", "rolegate:shared"]
    assert await listed("operator") == [*own, *(f"rolegate:{name}" for name in sorted(WORDS))]


@pytest.mark.parametrize("right", ["beta", "shared"])
async def test_the_page_of_a_run_searches_the_indexes_of_the_run(world: World, right: str) -> None:
    """A right answer that only other indexes have is in no document of the run, also for the
    operator. After the tenant has lost the index, nothing is searched.
    """
    acme = world.callers["acme"]
    async with acme.client() as client:
        run_id = (await client.ask(QUESTION, index="acme")).run_id
        await client.feedback(run_id, accepted=False, right_answer=WORDS[right])
    for caller in (acme, world.callers["operator"]):
        page = await _page(caller, f"/runs/{run_id}")
        assert "The right answer was lost by <b>the documents</b>" in page
        assert f"archive is {WORDS[right]}" not in page
    await world.accounts.set_tenant(Tenant("acme", indexes=("shared",)))
    while "acme" in words(await tried(_search, acme)):
        pass
    assert "The right answer was lost by <b>delegation or retrieval</b>" in await _page(
        acme, f"/runs/{run_id}"
    )


async def _page(caller: Caller, path: str) -> str:
    """Return a page as a signed-in browser gets it."""
    address = Address(caller.door.removeprefix("http://"))
    async with browsing(address, caller.key) as session, session.get(path) as response:
        return await response.text()


async def test_a_page_asks_the_indexes_of_its_user(world: World) -> None:
    """The form for questions searches the tenant's indexes, like a request that names none."""
    acme = world.callers["acme"]
    address = Address(acme.door.removeprefix("http://"))
    async with browsing(address, acme.key) as session:
        form = {"question": QUESTION, "csrf": await token(session, "/ask")}
        async with session.post("/ask", data=form, allow_redirects=False) as response:
            location = response.headers["Location"]
        run_id = location.rpartition("/")[2]
        async with acme.client() as client:
            events = [MessageToJson(event) async for event in client.watch(run_id)]
            trace = (await client.run(run_id, trace=True)).trace_json
        async with session.get(f"/runs/{run_id}") as response:
            shown = await response.text()
    assert words("".join(events)) == words(trace) == words(shown) == {"acme", "shared"}


async def test_a_page_offers_the_indexes_of_its_user(world: World) -> None:
    """The chosen one is searched, and a follow-up question searches it again."""
    acme = world.callers["acme"]
    address = Address(acme.door.removeprefix("http://"))
    async with browsing(address, acme.key) as session:
        async with session.get("/ask") as response:
            offered = re.findall("<option>(.*?)</option>", await response.text())
        form = {"question": QUESTION, "csrf": await token(session, "/ask"), "index": "acme"}
        async with session.post("/ask", data=form, allow_redirects=False) as response:
            path = response.headers["Location"]
        async with acme.client() as client:
            events = [MessageToJson(event) async for event in client.watch(path.rpartition("/")[2])]
        async with session.get(path) as response:
            shown = await response.text()
        form["index"] = "beta"
        async with session.post("/ask", data=form) as response:
            refused = (response.status, await response.text())
    assert offered == ["acme", "shared"]
    assert words("".join(events)) == words(shown) == {"acme"}
    assert '<input type="hidden" name="index" value="acme">' in shown
    assert refused[0] == 404
    assert "does not exist, or you may not use it" in refused[1]


async def test_no_list_or_export_shows_another_tenant_s_index(world: World) -> None:
    """Runs of a tenant are listed and exported to that tenant only."""
    for name in ("acme", "beta"):
        await tried(_ask, world.callers[name])
    for name in ("acme", "beta"):
        async with world.callers[name].client() as client:
            listed = "".join([MessageToJson(run) async for run in client.runs()])
            exported = "".join([MessageToJson(run) async for run in client.export()])
        assert words(listed + exported) == {name, "shared"}


async def test_a_detached_table_keeps_its_indexes(world: World) -> None:
    """Its cells are from the index that its request named."""
    async with world.callers["acme"].client() as client:
        run_id = await client.begin_table(
            "archives", "archive*, password", [["the archive", ""]], index="shared", closed=True
        )
        async for _event in client.watch(run_id):
            pass
        table = await client.get_table(run_id)
    assert words(MessageToJson(table.message)) == {"shared"}
