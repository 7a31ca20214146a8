"""`rolegate mcp`: an MCP server through which agents call a running gateway."""

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal

import msgspec
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field
from rolegate.client import AsyncClient, AsyncStream, Connection, GatewayError
from rolegate.client.requests import ChatMessage
from rolegate.client.text import place
from rolegate.v1 import evidence_pb2

from router.edge.rendering import CitedAnswer, answer_from_proto, event_line, table_from_proto
from router.errors import BadConfig
from serving.cli.command import parse
from serving.cli.options import ConnectionOptions, Seconds, connection, document_filter
from serving.retrieval.services import MAX_TOP_K

_Index = Annotated[
    list[str], Field(description="Names of the indexes to search; if empty, all that you may use.")
]
_Filter = Annotated[
    list[str],
    Field(
        description="Search only documents with these properties: title=TEXT, author=TEXT, "
        "path=PREFIX, tag=TAG, date=2026-11, date>=2026-11-21, date<=2026."
    ),
]
_NONE: list[Any] = []
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)


class HistoryMessage(BaseModel, extra="forbid"):
    """A message of the conversation that precedes the question."""

    role: Literal["user", "assistant"]
    content: str


_NO_HISTORY: list[HistoryMessage] = []


class MCPOptions(ConnectionOptions):
    """Let agents ask a running gateway and search its documents, over the Model Context Protocol.

    Start a gateway with `rolegate serve`, and put this into the configuration of the MCP client:

    {"mcpServers": {"rolegate": {
      "command": "rolegate", "args": ["mcp", "--address", "127.0.0.1:50551"]
    }}}

    The server speaks MCP on its standard input and output, and logs to the standard error stream.
    """

    timeout: Seconds | None = None
    """End a question or a search after this many seconds (default: the gateway's limit)."""


def mcp(arguments: Sequence[str]) -> int:
    """Run `rolegate mcp`: serve MCP until the standard input ends; return the exit status."""
    options = parse(MCPOptions, "mcp", arguments)
    asyncio.run(_serve(connection(options, options.address), options.timeout))
    return 0


async def _serve(to: Connection, timeout_s: float | None) -> None:
    async with AsyncClient(to) as client:
        await mcp_server(client, timeout_s).run_stdio_async()


def mcp_server(client: AsyncClient, timeout_s: float | None) -> MCPServer:
    """Return an MCP server with the tools `ask`, `table` and `search`, which call the gateway of
    `client`. If the gateway returns an error, the tool's result is that error.
    """
    # The library has no option to refuse unknown arguments
    ArgModelBase.model_config["extra"] = "forbid"
    server = MCPServer("rolegate", version=version("rolegate"), log_level="WARNING")

    @server.tool(annotations=_READS)
    async def ask(
        question: Annotated[str, Field(description="One question, in plain words.")],
        context: Context[Any, Any],
        history: Annotated[
            list[HistoryMessage],
            Field(description="Earlier questions and answers that the question refers to."),
        ] = _NO_HISTORY,
        index: _Index = _NONE,
        filter: _Filter = _NONE,
    ) -> CallToolResult:
        """Answer a question from the indexed documents, and return the answer with its sources.
        Searches several times if necessary.
        """
        try:
            messages = [ChatMessage(role=sent.role, content=sent.content) for sent in history]
            only = document_filter(filter)
            stream = client.stream(question, timeout_s, history=messages, index=index, filter=only)
            return _cited(answer_from_proto(await _followed(stream, context)))
        except (GatewayError, BadConfig) as error:
            return _failed(error)

    @server.tool(annotations=_READS)
    async def table(
        question: Annotated[str, Field(description="Description of the rows, in plain words.")],
        columns: Annotated[
            list[str],
            Field(description="Names; `city*` is a key column, `founded:integer` holds integers."),
        ],
        context: Context[Any, Any],
        rows: Annotated[
            list[list[str]], Field(description="Known rows; their empty texts are filled in.")
        ] = _NONE,
        closed: Annotated[bool, Field(description="Fill only `rows`; add no rows.")] = False,
        *,
        index: _Index = _NONE,
        filter: _Filter = _NONE,
    ) -> CallToolResult:
        """Find all things of one kind in the indexed documents. Return a table with a row for each
        thing, a value for each column, and the sources of the values.
        """
        try:
            stream = client.stream_table(
                question,
                columns,
                rows,
                closed=closed,
                index=index,
                filter=document_filter(filter),
            )
            return _cited(table_from_proto(await _followed(stream, context)))
        except (GatewayError, BadConfig, ValueError) as error:
            return _failed(error)

    @server.tool(annotations=_READS)
    async def search(
        query: Annotated[str, Field(description="What the passages should be about.")],
        top_k: Annotated[
            int, Field(ge=1, le=MAX_TOP_K, description="How many passages to return.")
        ] = 5,
        index: _Index = _NONE,
        filter: _Filter = _NONE,
    ) -> CallToolResult:
        """Search the indexed documents. Return the passages nearest in meaning to a query, best
        first.
        """
        try:
            only = document_filter(filter)
            passages = await client.search(query, top_k, timeout_s, index=index, filter=only)
        except (GatewayError, BadConfig) as error:
            return _failed(error)
        texts = [
            f"[{number}] {_heading(passage)}\n{passage.text}"
            for number, passage in enumerate(passages, 1)
        ]
        text = "\n\n".join(texts) or "No passages were found."
        fields = [
            {
                "title": passage.title,
                "document": passage.document,
                "page": passage.page or None,
                "location": passage.location,
                "text": passage.text,
            }
            for passage in passages
        ]
        return _result(text, {"passages": fields})

    return server


async def _followed(stream: AsyncStream[Any], context: Context[Any, Any]) -> Any:
    """Report the events of a run as the progress of the tool call; return the run's result.
    `stream`: the events; the last event contains the result.
    """
    async with stream as events:
        async for event in events:
            if line := event_line(event):
                await context.report_progress(event.event_number, message=line.strip())
    return event.done


def _cited(cited: CitedAnswer) -> CallToolResult:
    return _result(cited.text, msgspec.to_builtins(cited))


def _failed(error: Exception) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=str(error))], is_error=True)


def _result(text: str, structured: Any) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], structured_content=structured)


def _heading(passage: evidence_pb2.Passage) -> str:
    where = place(passage.title, passage.page or None, passage.location)
    return f"{where} ({passage.document})" if passage.document else where
