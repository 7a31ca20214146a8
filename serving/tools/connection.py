"""A connection to one MCP server through the official SDK, to list the server's tools and to call
them. Outputs of tools are cut to a max length, and secrets that the server was given are masked in
them.
"""

import asyncio
import os
import re
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
from router.frozen import Frozen
from router.models.failures import Secrets
from router.search.tools import Tool, ToolOutput
from serving.config.config import ToolServerConfig
from serving.config.secrets import api_key
from serving.tools.failures import reason
from serving.tools.transports import child_process, http_client

_MAX_PAGES = 50
"""Max pages of a tool list after the first page."""
_REASON_CHARS = 500
_OVERHEAD_BYTES = 1 << 20
"""Max bytes of a message in addition to the bytes of the longest allowed text."""
_PAGE = re.compile("^- Page URL: (?P<address>.*)\n- Page Title: (?P<title>.*)", re.MULTILINE)
"""Matches the address and title of the open page in an output of Playwright's MCP server. The
server reports them nowhere else. The text of a web page cannot imitate these lines, because in
Playwright's snapshots each text comes after the role of its element.
"""
_CLIENT_INFO = types.Implementation(name="rolegate", version=version("rolegate"))


@asynccontextmanager
async def connect(name: str, config: ToolServerConfig) -> AsyncIterator["MCPConnection"]:
    """Open a connection to a tool server: start its program, or connect to its URL. `name`: the
    server's name in the config, NAME of `[tools.NAME]`.

    Raises `ConnectionError` for every failure, also if the SDK fails because the surrounding task
    was cancelled.
    """
    stale = asyncio.Event()
    max_bytes = _OVERHEAD_BYTES + 4 * config.max_chars
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
                transport = child_process(config.command, environment, max_bytes, ended=stale)
            else:
                http = http_client(headers, config.timeout_s, max_bytes)
                await stack.enter_async_context(http)
                transport = streamable_http_client(
                    config.url, http_client=http, max_sse_event_size=max_bytes
                )

            # All servers support the legacy handshake. With it, a server announces changes of its
            # tool list, and the client need not subscribe to them.
            client = Client(
                transport,
                mode="legacy",
                cache=None,
                client_info=_CLIENT_INFO,
                message_handler=on_message,
            )
            await stack.enter_async_context(client)
            yield MCPConnection(
                name,
                client,
                stale,
                config.max_chars,
                secrets,
            )
    except Exception as error:
        raise ConnectionError(secrets.hidden(reason(error))[:_REASON_CHARS]) from error


class MCPConnection(Frozen):
    """An open connection to an MCP server."""

    server: str
    """The server's name in the config."""
    client: Client
    stale: asyncio.Event
    """Event that is set when the tools must be listed again: the list may have changed, or it is
    unclear whether the server still answers.
    """
    max_chars: int
    """Max characters of a tool's output. Longer outputs are cut off."""
    secrets: Secrets
    """Strings that are masked in outputs and errors."""

    async def tools(self) -> list[Tool]:
        """Return the server's tools. A server may send the list in pages; at most the first page
        and `_MAX_PAGES` further pages are read.
        """
        page = await self.client.list_tools()
        listed = page.tools
        for _ in range(_MAX_PAGES):
            if page.next_cursor is None:
                break
            page = await self.client.list_tools(cursor=page.next_cursor)
            listed += page.tools

        descriptions = ([tool.name, tool.description or "", tool.input_schema] for tool in listed)
        return [Tool(self.server, *_hidden(fields, self.secrets)) for fields in descriptions]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool and return its output. Cancelling the task also cancels the call at the
        server. Raises `ToolFailed` if the call fails or the tool reports an error.
        """
        request = types.CallToolRequest(
            params=types.CallToolRequestParams(name=name, arguments=dict(arguments))
        )
        try:
            msgspec.json.encode(arguments)
        except (ValueError, TypeError):  # sending them would end the connection to the server
            raise self._failed(
                "a text in the arguments has half of a surrogate pair; call the tool without it"
            ) from None

        try:
            # `call_tool` is not used: it checks outputs against the server's schemas, and regular
            # expressions in a schema may take exponential time.
            result = await self.client.session.send_request(request, types.CallToolResult)
        except ValueError as error:
            self.stale.set()
            raise self._failed(
                "the server's answer is not a valid MCP tool result; update the server"
            ) from error
        except (MCPError, RuntimeError, OSError) as error:
            self.stale.set()
            raise self._failed(reason(error)) from error

        output = output_of(result, self.max_chars, self.secrets)
        if result.is_error:
            raise self._failed(output.text)

        info = self.client.server_info
        if info and info.name == "Playwright" and (page := _PAGE.search(output.text)):
            output = ToolOutput(output.text, page["title"], page["address"])
        return output

    def _failed(self, message: str) -> ToolFailed:
        return ToolFailed(
            self.secrets.hidden(message)[:_REASON_CHARS],
            endpoint=f"tools.{self.server}",
        )


def _hidden(value: Any, secrets: Secrets) -> Any:
    """Return a JSON value with the secrets in all its strings masked."""
    match value:
        case str():
            return secrets.hidden(value)
        case list():
            return [_hidden(item, secrets) for item in value]
        case dict():
            return {secrets.hidden(name): _hidden(item, secrets) for name, item in value.items()}
    return value


def output_of(result: types.CallToolResult, max_chars: int, secrets: Secrets) -> ToolOutput:
    """Return the texts of a tool's result, joined and with secrets masked. Only the first
    `max_chars` characters are kept. Images and audio are left out.

    If the result contains exactly one resource, or one link to a resource, the output also has the
    title and the address of this resource.
    """
    texts = []
    resources = []
    for part in result.content:
        match part:
            case types.TextContent(text=text):
                texts.append(text)
            case types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=text)):
                texts.append(text)
                resources.append(("", str(uri)))
            case types.ResourceLink(uri=uri, title=title, name=name):
                resources.append((title or name, str(uri)))

    title, address = resources[0] if len(resources) == 1 else ("", "")
    if len(resources) > 1:
        texts += [f"{title} {address}".strip() for title, address in resources]
    if not texts and result.structured_content is not None:
        texts = [msgspec.json.encode(_hidden(result.structured_content, secrets)).decode()]

    # Mask secrets before the text is cut: half a secret would not be recognised.
    text, title, address = map(secrets.hidden, ("\n".join(texts), title, address))
    return ToolOutput(text[:max_chars], title, address)
