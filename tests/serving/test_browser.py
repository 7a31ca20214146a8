"""A browser as a tool: Playwright's MCP server with chromium, on pages that no search can read."""

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace
from rolegate.client import AsyncClient
from rolegate.v1 import table_service_pb2 as table_pb

from router.edge.grpc.server import Server
from router.errors import ToolFailed
from router.protocol import Passage
from router.search.tools import Tools
from serving.composition import running_gateway
from serving.config.check import problems
from serving.config.config import RetrievalConfig, ServerConfig
from serving.retrieval.services import RetrievalServicer
from tests.openai_server import MODEL, ChatRequest, OpenAIServer, Reply, serving, writes
from tests.playwright_server import EXAMPLE, LACKING, browses, example, pages, tool_server
from tests.router.deployment import STOP, block, report
from tests.router.retriever import one_index
from tests.serving.tools.pools import tools_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(LACKING), reason=f"{LACKING} not installed"),
]
KEEPER = "Who keeps the lighthouse {lighthouse}?"
KEEPERS = {"Brannock": "Ysolde Marr", "Jarl Stack": "Una Kestrin", "Norrby": "Tessa Ford"}
"""The lighthouses that the documents name, with their keepers, whom only the pages name."""
ELSEWHERE = '<escalate to="browser">the register is in a browser only</escalate>'
DOCUMENT = Passage("d1", "Lighthouses", (EXAMPLE / "documents/lighthouses.md").read_text("utf-8"))


def searches(asked: str, turns: list[str]) -> str:
    """Return the next turn of a worker that searches: it knows the lighthouses' names only."""
    if not turns:
        return "<search>lighthouses</search>"
    names = [name for name in KEEPERS if name in turns[-1]]
    if asked.startswith("Which"):
        return report("\n".join(names), "among them Brannock, Jarl Stack and Norrby")
    return ELSEWHERE


def manages(step: str, turns: list[str], start: str) -> str:
    """Return the next turn of a manager, whose workers get a question each and begin at `start`."""
    if not turns:
        return block(
            *(f"{question} {start}".strip() for question in re.findall(r"\w[^?]+\?", step))
        )
    if "<escalate_to>browser" in turns[-1]:
        return ELSEWHERE
    answers, points = (
        re.findall(f"<{tag}>(.*?)</{tag}>", turns[-1], re.DOTALL) for tag in ("answer", "evidence")
    )
    return report("\n".join(answers), *points)


def leads(question: str, turns: list[str]) -> str:
    """Return the next turn of the delegator of an answer."""
    return STOP if turns else f'<search manager="search">{question}</search>'


def plans(turns: list[str]) -> str:
    """Return the next turn of the delegator of a table."""
    if turns:
        return STOP
    return block("Which lighthouses are there?") + f'<ask column="keeper">{KEEPER}</ask>'


def script(place: str, request: ChatRequest) -> str:
    """Return the next turn of the model whose system prompt the request has."""
    system, asked, *turns = request.texts
    text = html.unescape(asked)
    if system.startswith("You are a manager"):
        browser = "Your workers have a browser" in system
        return manages(text, turns, f"Start at {place}/index.html." if browser else "")
    if system.startswith("You are the executor"):
        tools = "browser_click" in system
        return browses(request.texts) if tools else searches(text, turns)
    if system.startswith("You are the delegator"):
        return plans(turns) if "fills tables" in system else leads(text, turns)
    (answer,) = re.findall("<answer>(.*?)</answer>", text, re.DOTALL)[-1:]
    return f"<answer>{answer}</answer>"


@asynccontextmanager
async def asked(folder: Path) -> AsyncIterator[tuple[AsyncClient, OpenAIServer, str]]:
    """Yield a client of the example's gateway with scripted models, these, and the address of the
    pages.
    """
    retrieval = Server(None, RetrievalServicer(one_index({"lighthouses": [DOCUMENT]})))
    async with serving() as server, pages() as place:
        port = await retrieval.start("127.0.0.1:0")
        server.plays(writes(lambda request: Reply.of(script(place, request))))
        config = example(folder, place)
        names = ("delegation", "execution", "answer")
        roles = {
            name: replace(getattr(config.roles, name), base_url=server.base_url, model=MODEL)
            for name in names
        }
        config = replace(
            config,
            roles=replace(config.roles, **roles),
            retrieval=RetrievalConfig(address=f"127.0.0.1:{port}"),
            server=ServerConfig(store=f"sqlite:///{folder}/runs.db"),
        )
        assert problems(config) == []
        async with (
            running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
            AsyncClient(address) as client,
        ):
            yield client, server, place
        await retrieval.drain(0)


def reads_pages(body: dict[str, Any]) -> bool:
    """Return whether a request's prompt has a part of a page."""
    return any("[ref=" in message["content"] for message in body["messages"])


async def test_an_answer_comes_from_behind_a_click(tmp_path: Path) -> None:
    """The search manager hands on. Two workers with a browser each open the register, page through
    it, and press a button. Citations name the page; no page is in a prompt of a layer above.
    """
    question = " ".join(KEEPER.format(lighthouse=name) for name in ("Jarl Stack", "Norrby"))
    async with asked(tmp_path) as (client, server, place):
        answer = await client.ask(question, topology="host", no_cache=True)
        trace = json.loads((await client.run(answer.run_id, trace=True)).trace_json)
    (execution,) = trace["result"]["executions"]
    assert (execution["before"]["manager"], execution["before"]["outcome"]) == (
        "search",
        "escalated",
    )
    assert (execution["manager"], execution["outcome"]) == ("browser", "reported")
    assert answer.answer == "Una Kestrin Tessa Ford"
    assert {citation.document for citation in answer.citations} == {
        f"{place}/record.html?light=Jarl%20Stack",
        f"{place}/record.html?light=Norrby",
    }

    workers = execution["work"]["executions"]
    for worker, other in zip(workers, reversed(workers), strict=True):
        calls = [search["call"] for search in worker["searches"]]
        assert [call["error"] for call in calls] == [None] * len(calls)
        texts = [passage["text"] for search in worker["searches"] for passage in search["passages"]]
        assert all(other["report"]["answer"] not in text for text in texts)
    systems = {body["messages"][0]["content"][:20] for body in server.bodies}
    readers = {body["messages"][0]["content"][:20] for body in server.bodies if reads_pages(body)}
    assert (len(systems), readers) == (4, {"You are the executor"})


async def test_an_answer_comes_from_a_page_that_a_script_renders(tmp_path: Path) -> None:
    question = "Who is the superintendent of the district Skerries?"
    async with asked(tmp_path) as (client, _, place):
        answer = await client.ask(question, topology="host", no_cache=True)
    assert answer.answer == "Tove Harrane"
    assert [citation.document for citation in answer.citations] == [f"{place}/districts.html"]


async def test_a_table_s_cells_come_from_the_browser(tmp_path: Path) -> None:
    """The documents name the rows. The fills are asked of the search manager first, which hands
    them on.
    """
    async with asked(tmp_path) as (client, _, place):
        table = await client.table("All lighthouses.", "lighthouse*, keeper", no_cache=True)
    assert dict(table.rows) == KEEPERS
    cells = [row.cells[1] for row in table.message.rows]
    assert {cell.support for cell in cells} == {table_pb.SUPPORT_STATED}
    documents = {citation.document for cell in cells for citation in cell.citations}
    assert documents == {
        f"{place}/record.html?light={name.replace(' ', '%20')}" for name in KEEPERS
    }


async def seen(tools: Tools, tool: str, **arguments: str) -> str:
    """Call a tool of the browser; return what it shows."""
    (wanted,) = [known for known in await tools.available() if known.name == tool]
    return (await tools.call(wanted, arguments)).text


@pytest.mark.parametrize("own", [True, False])
async def test_two_workers_have_a_page_each_with_own_sessions_only(
    tmp_path: Path, *, own: bool
) -> None:
    """Without them, one worker reads what the other has opened."""
    async with pages() as place:
        config = tool_server(tmp_path, place, own_sessions=own)
        async with (
            tools_of(config, "browser") as (tools, _),
            tools.session() as first,
            tools.session() as second,
        ):
            for worker, light in ((first, "Kelder"), (second, "Norrby")):
                await seen(worker, "browser_navigate", url=f"{place}/record.html?light={light}")
            shown = await seen(first, "browser_snapshot")
    assert ("Record of Kelder" in shown, "Record of Norrby" in shown) == (own, not own)


def browsers(folder: Path) -> list[int]:
    """Return the processes, also of browsers, that run in `folder`."""
    running = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                running.append(int(process.name))
        except OSError:  # it has ended, or is another user's
            continue
    return running


async def test_no_process_outlives_a_cancelled_worker(tmp_path: Path) -> None:
    """It is cancelled while its browser waits for a page that never comes."""
    requested = asyncio.Event()

    async def hang(_request: web.Request) -> web.Response:
        requested.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with pages(web.get("/hang", hang)) as place:
        config = tool_server(tmp_path, place)
        async with tools_of(config, "browser") as (tools, _):
            listing = browsers(tmp_path)

            async def work() -> None:
                async with tools.session() as session:
                    await seen(session, "browser_navigate", url=f"{place}/hang")

            worker = asyncio.create_task(work())
            await requested.wait()
            assert len(browsers(tmp_path)) > 2 * len(listing)
            worker.cancel()
            await asyncio.wait([worker])
            assert browsers(tmp_path) == listing


async def test_a_browser_opens_no_files_of_the_machine(tmp_path: Path) -> None:
    """It writes files into its own folder only."""
    async with pages() as place:
        config = tool_server(tmp_path, place)
        async with tools_of(config, "browser") as (tools, _), tools.session() as session:
            with pytest.raises(ToolFailed, match="protocol is blocked"):
                await seen(session, "browser_navigate", url="file:///etc/passwd")
            await seen(session, "browser_navigate", url=f"{place}/index.html")
            with pytest.raises(ToolFailed, match="outside allowed roots"):
                await seen(session, "browser_snapshot", filename=f"{tmp_path.parent}/page.yml")
