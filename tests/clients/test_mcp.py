"""The official MCP client, unmodified, with `rolegate mcp`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent
from rolegate.client import AsyncClient

from serving.cli.mcp import mcp_server
from tests.ports import free_port
from tests.router.clock import ended
from tests.router.deployment import Deployment, HeldModel, Kept
from tests.router.edge.wire import whole_server
from tests.scripted_gateway import BORN, DEAD_QUESTION, DIRECTOR, QUESTION, ROOT, environment
from tests.scripted_model import ScriptedModel

CODE = "import sys; from serving.cli.main import main; sys.exit(main())"


@asynccontextmanager
async def client(address: str) -> AsyncIterator[Client]:
    """A client of an MCP server in this process."""
    async with (
        AsyncClient(address) as gateway_client,
        Client(mcp_server(gateway_client, 20.0), read_timeout_seconds=60) as connected,
    ):
        yield connected


@asynccontextmanager
async def client_of_command(address: str) -> AsyncIterator[Client]:
    """A client of an MCP server in another process."""
    arguments = ["-c", CODE, "mcp", "--address", address, "--timeout", "20"]
    server = StdioServerParameters(
        command=sys.executable, args=arguments, env=environment(), cwd=ROOT
    )
    async with Client(server, read_timeout_seconds=60) as connected:
        yield connected


def text_of(result: CallToolResult) -> str:
    """Return the only text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_tools_describe_purpose_and_arguments(gateway: str) -> None:
    async with client(gateway) as session:
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert session.server_info is not None
        assert session.server_info.version == version("rolegate")
    assert set(tools) == {"ask", "table", "search"}
    assert tools["ask"].input_schema["required"] == ["question"]
    assert tools["search"].input_schema["required"] == ["query"]
    assert tools["search"].input_schema["properties"]["top_k"]["default"] == 5
    assert all(tool.description for tool in tools.values())


async def test_an_answer_has_text_sources_and_values(gateway: str) -> None:
    """Progress is reported meanwhile."""
    reported: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        reported.append(message)

    async with client_of_command(gateway) as session:
        result = await session.call_tool("ask", {"question": QUESTION}, progress_callback=hear)
    assert not result.is_error
    assert text_of(result).splitlines() == [
        "in 1943",
        "",
        "Sources:",
        "[1] Heat: “Heat is a film by Michael Mann.”",
        "[2] Michael Mann: “Michael Mann was born in 1943.”",
    ]
    assert result.structured_content["outcome"] == "answered"
    assert [part["sub_query"] for part in result.structured_content["results"]] == [DIRECTOR, BORN]
    assert [citation["passage_id"] for citation in result.structured_content["citations"]] == [
        "p1",
        "p2",
    ]
    assert reported[:4] == [
        "round 1",
        f"→ 1. {DIRECTOR}",
        f"searched “{DIRECTOR}”: Heat",
        "← 1. Michael Mann",
    ]


async def test_a_table_is_markdown_and_values(gateway: str) -> None:
    """The Markdown has its sources, and known rows are sent unchanged. A refusal is an error."""
    reported: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        reported.append(message)

    arguments = {
        "question": "the cities of Vorland",
        "columns": ["city*", "founder", "founded:integer"],
    }
    async with client(gateway) as session:
        result = await session.call_tool("table", arguments, progress_callback=hear)
        closed = await session.call_tool(
            "table", {**arguments, "rows": [["Bel", "Bo", ""]], "closed": True}
        )
        refused = [
            text_of(await session.call_tool("table", {**arguments, "columns": [column]}))
            for column in ("city", "a:b")
        ]
    lines = text_of(result).splitlines()
    rows = ["| Krurou | Ana | 1200 |", "| Bel | Bo | 900 |", "```"]
    assert lines[:6] == [
        "```markdown",
        "| city | founder | founded |",
        "| --- | --- | --- |",
        *rows,
    ]
    assert "[1] Register: “The cities of Vorland are Krurou and Bel.” (Register)" in lines
    assert (result.structured_content["outcome"], closed.is_error) == ("filled", False)
    assert reported[0] == "→ 1. discover 0"
    assert [text.partition(";")[0] for text in refused] == [
        "columns: no key column given",
        "the type of column 'a:b' must be one of text, integer, number, date, url, boolean, "
        "choice, got 'b'.",
    ]


async def test_a_search_returns_passages(gateway: str) -> None:
    """They are a numbered text and values; an empty result is no error."""
    async with client(gateway) as session:
        result = await session.call_tool("search", {"query": BORN})
        nothing = await session.call_tool("search", {"query": "What is not there?", "top_k": 1})
    assert text_of(result) == "[1] Michael Mann\nMichael Mann was born in 1943."
    passage = {
        "title": "Michael Mann",
        "document": "",
        "page": None,
        "location": "",
        "text": "Michael Mann was born in 1943.",
    }
    assert result.structured_content == {"passages": [passage]}
    assert (nothing.is_error, text_of(nothing)) == (False, "No passages were found.")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (" ", "question is empty; write a question in plain words."),
        (DEAD_QUESTION, "delegation at http://127.0.0.1:9/v1: connection refused"),
    ],
)
async def test_a_refusal_is_the_tool_s_error(gateway: str, question: str, message: str) -> None:
    """The error has the gateway's message, and the server continues."""
    async with client(gateway) as session:
        result = await session.call_tool("ask", {"question": question})
        next_result = await session.call_tool("search", {"query": DIRECTOR})
    assert (result.is_error, text_of(result)) == (True, message)
    assert not next_result.is_error


@pytest.mark.parametrize(
    ("tool", "arguments", "unknown"),
    [
        ("ask", {"question": QUESTION, "filters": ["title=Heat"]}, "filters"),
        ("ask", {"question": QUESTION, "history": [{"role": "user", "content": "a", "x": 1}]}, "x"),
        ("table", {"question": "the cities", "columns": ["city*"], "row": []}, "row"),
        ("search", {"query": DIRECTOR, "topk": 1}, "topk"),
    ],
)
async def test_an_unknown_argument_is_refused(
    gateway: str, tool: str, arguments: dict[str, object], unknown: str
) -> None:
    """Otherwise a misspelt filter would silently widen the search."""
    async with client(gateway) as session:
        result = await session.call_tool(tool, arguments)
    assert result.is_error
    assert f"{unknown}\n  Extra inputs are not permitted" in text_of(result)


async def test_tools_are_listed_without_a_gateway() -> None:
    """A call's error says what to do."""
    address = f"127.0.0.1:{free_port()}"
    async with client(address) as session:
        result = await session.call_tool("search", {"query": "anything"})
    assert result.is_error
    assert text_of(result).startswith(
        f"no gateway answers at {address}; start one with `rolegate serve`"
    )


async def test_a_cancelled_call_cancels_its_run() -> None:
    """The run is stored as cancelled, and the server continues."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    server = whole_server(Deployment(model), store)
    async with client_of_command(f"127.0.0.1:{await server.start('127.0.0.1:0')}") as session:
        asking = asyncio.create_task(session.call_tool("ask", {"question": QUESTION}))
        await ended(model.called.wait())
        asking.cancel()
        await ended(model.cancelled.wait())
        run = await store.next()
        assert len((await session.list_tools()).tools) == 3
    await server.drain(0)
    assert (run.status, [call.outcome for call in run.calls]) == ("cancelled", ["cancelled"])
