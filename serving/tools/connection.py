"""A connection to an MCP server, by the official SDK: its tools, and calls of them as outputs or failures."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any

import msgspec
from mcp import Client, types
from mcp.client import IncomingMessage, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from router.errors import ToolFailed
from router.search.tools import Tool, ToolOutput
from serving.config.config import ToolServerConfig
from serving.config.secrets import api_key
from serving.tools.pool import reason
from serving.tools.transports import child_process, http_client

_NO_RESULT = "answered with something that is no result"
_MOST_PAGES = 50
_MOST_BYTES = 1 << 20
"""Of a message, beside what its text may take; then it is passed over, and its call fails."""


@asynccontextmanager
async def connect(name: str, config: ToolServerConfig) -> AsyncIterator["MCPConnection"]:
    """Start the program of a section, or connect to its address, as long as the context is open. Entering raises many
    things, such as `ExceptionGroup`, and so may whatever cancels the task that has entered.
    """
    stale, most = asyncio.Event(), _MOST_BYTES + 4 * config.max_chars

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            stale.set()

    async with AsyncExitStack() as stack:
        transport: Transport
        if config.url is None:
            transport = child_process(config.command, config.env, most, ended=stale)
        else:
            headers = {header: api_key(variable) or "" for header, variable in config.headers.items()}
            http = await stack.enter_async_context(http_client(headers, config.timeout_s, most))
            transport = streamable_http_client(config.url, http_client=http, max_sse_event_size=most)
        us = types.Implementation(name="rolegate", version=version("rolegate"))
        # The handshake is what every server knows, and it has changes of the list told unasked.
        client = Client(transport, mode="legacy", cache=None, client_info=us, message_handler=on_message)
        yield MCPConnection(name, await stack.enter_async_context(client), stale, config.max_chars)


class MCPConnection:
    """A `Connection` of the pool, over a client of the SDK."""

    def __init__(self, server: str, client: Client, stale: asyncio.Event, max_chars: int) -> None:
        self.stale = stale
        self._server, self._client, self._max_chars = server, client, max_chars

    async def tools(self) -> list[Tool]:
        """List all tools, over some pages."""
        page = await self._client.list_tools()
        listed = page.tools
        for _ in range(_MOST_PAGES):
            if page.next_cursor is None:
                break
            page = await self._client.list_tools(cursor=page.next_cursor)
            listed += page.tools
        return [Tool(self._server, tool.name, tool.description or "", tool.input_schema) for tool in listed]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool; a task that is cancelled has the server told so. Raises `ToolFailed`."""
        asked = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=dict(arguments)))
        try:
            msgspec.json.encode(arguments)
        except (ValueError, TypeError) as error:  # half a surrogate pair; it would end the transport
            raise ToolFailed("the arguments are no JSON", endpoint=f"tools.{self._server}") from error
        try:
            # Not `call_tool`, which holds outputs against schemas of the server's, with whatever patterns it likes.
            result = await self._client.session.send_request(asked, types.CallToolResult)
        except (MCPError, ValueError, RuntimeError, OSError) as error:
            self.stale.set()
            said = _NO_RESULT if isinstance(error, ValueError) else reason(error)
            raise ToolFailed(said, endpoint=f"tools.{self._server}") from error
        output = output_of(result, self._max_chars)
        if result.is_error:
            raise ToolFailed(reason(ValueError(output.text)), endpoint=f"tools.{self._server}")
        return output


def output_of(result: types.CallToolResult, max_chars: int) -> ToolOutput:
    """The texts of a result, cut off after `max_chars`. A resource that is alone, or a link to one, names what was
    read; pictures and sounds are left out.
    """
    texts, named = [], []
    for part in result.content:
        match part:
            case types.TextContent(text=text):
                texts.append(text)
            case types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=text)):
                texts.append(text)
                named.append(("", str(uri)))
            case types.ResourceLink(uri=uri, title=title, name=name):
                named.append((title or name, str(uri)))
    title, address = named[0] if len(named) == 1 else ("", "")
    if len(named) > 1:
        texts += [f"{title} {address}".strip() for title, address in named]
    if not texts and result.structured_content is not None:
        texts = [msgspec.json.encode(result.structured_content).decode()]
    return ToolOutput("\n".join(texts)[:max_chars], title, address)
