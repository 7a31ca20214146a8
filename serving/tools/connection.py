"""A connection to an MCP server, by the official SDK: its tools, and calls of them as outputs
or failures.
"""

import asyncio
import os
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
from router.models.failures import Secrets
from router.search.tools import Tool, ToolOutput
from serving.config.config import ToolServerConfig
from serving.config.secrets import api_key
from serving.tools.pool import reason
from serving.tools.transports import child_process, http_client

_MOST_PAGES = 50
_REASON_CHARS = 500
_MOST_BYTES = 1 << 20
"""Of a message, beside what its text may take; then it is passed over, and its call fails."""
_US = types.Implementation(name="rolegate", version=version("rolegate"))


@asynccontextmanager
async def connect(name: str, config: ToolServerConfig) -> AsyncIterator["MCPConnection"]:
    """Start the program of a section, or connect to its address, as long as the context is open.
    What goes wrong is a `ConnectionError`, also where the task that has entered is cancelled.
    """
    stale = asyncio.Event()
    most = _MOST_BYTES + 4 * config.max_chars
    headers = {header: api_key(variable) or "" for header, variable in config.headers.items()}
    environment = {name: os.environ[name] for name in config.env if name in os.environ}
    secrets = Secrets(None, {"env": environment, "headers": headers}, config.url or "")

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            stale.set()

    try:
        async with AsyncExitStack() as stack:
            transport: Transport
            if config.url is None:
                transport = child_process(config.command, environment, most, ended=stale)
            else:
                http = await stack.enter_async_context(http_client(headers, config.timeout_s, most))
                transport = streamable_http_client(
                    config.url, http_client=http, max_sse_event_size=most
                )
            # The handshake is what every server knows, and it has changes of the list told unasked.
            client = Client(
                transport, mode="legacy", cache=None, client_info=_US, message_handler=on_message
            )
            await stack.enter_async_context(client)
            yield MCPConnection(name, client, stale, config.max_chars, secrets)
    except Exception as error:
        raise ConnectionError(secrets.hidden(reason(error))[:_REASON_CHARS]) from error


class MCPConnection:
    """A `Connection` of the pool, over a client of the SDK."""

    def __init__(
        self, server: str, client: Client, stale: asyncio.Event, max_chars: int, secrets: Secrets
    ) -> None:
        self.stale = stale
        self._server = server
        self._client = client
        self._max_chars = max_chars
        self._secrets = secrets

    async def tools(self) -> list[Tool]:
        """List all tools, over some pages."""
        page = await self._client.list_tools()
        listed = page.tools
        for _ in range(_MOST_PAGES):
            if page.next_cursor is None:
                break
            page = await self._client.list_tools(cursor=page.next_cursor)
            listed += page.tools
        told = ([tool.name, tool.description or "", tool.input_schema] for tool in listed)
        return [Tool(self._server, *_hidden(each, self._secrets)) for each in told]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool; a task that is cancelled has the server told so. Raises `ToolFailed`."""
        asked = types.CallToolRequest(
            params=types.CallToolRequestParams(name=name, arguments=dict(arguments))
        )
        try:
            msgspec.json.encode(arguments)
        except (ValueError, TypeError):  # half a surrogate pair; it would end the transport
            raise self._failed("the arguments are no JSON") from None
        try:
            # Not `call_tool`, which holds outputs against schemas of the server's, with whatever
            # patterns it likes.
            result = await self._client.session.send_request(asked, types.CallToolResult)
        except (MCPError, ValueError, RuntimeError, OSError) as error:
            self.stale.set()
            said = (
                "answered with something that is no result"
                if isinstance(error, ValueError)
                else reason(error)
            )
            raise self._failed(said) from error
        output = output_of(result, self._max_chars, self._secrets)
        if result.is_error:
            raise self._failed(output.text)
        return output

    def _failed(self, said: str) -> ToolFailed:
        return ToolFailed(
            self._secrets.hidden(said)[:_REASON_CHARS], endpoint=f"tools.{self._server}"
        )


def _hidden(value: Any, secrets: Secrets) -> Any:
    """A JSON value without secrets in any of its texts."""
    match value:
        case str():
            return secrets.hidden(value)
        case list():
            return [_hidden(each, secrets) for each in value]
        case dict():
            return {secrets.hidden(name): _hidden(each, secrets) for name, each in value.items()}
    return value


def output_of(result: types.CallToolResult, max_chars: int, secrets: Secrets) -> ToolOutput:
    """The texts of a result without secrets, cut off after `max_chars`. A resource that is alone,
    or a link to one, names what was read; pictures and sounds are left out.
    """
    texts = []
    named = []
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
        texts = [msgspec.json.encode(_hidden(result.structured_content, secrets)).decode()]
    # Half of one would not be known
    text, title, address = map(secrets.hidden, ("\n".join(texts), title, address))
    return ToolOutput(text[:max_chars], title, address)
