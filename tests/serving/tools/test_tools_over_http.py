"""Servers at addresses: the SDK's own one, and one that fails in all the ways of HTTP."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from aiohttp import web
from mcp.server.mcpserver import Context, MCPServer

from router.errors import ToolFailed
from router.search.tools import Tool
from serving.config.config import ToolServerConfig
from tests.serving.tools.faulty_server import message, said
from tests.serving.tools.faulty_server import tools as listed
from tests.serving.tools.pools import done, tools_of, until

_JSON: dict[str, Any] = {"content_type": "application/json"}


class FaultyHTTP:
    """A server that answers as the fault of a call says."""

    def __init__(self) -> None:
        self.sessions = 0
        self.keys = set[str | None]()
        self.cancelled = asyncio.Event()

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Receive a message."""
        request_body = await request.json()
        number = request_body.get("id")
        params = request_body.get("params", {})
        self.keys.add(request.headers.get("X-Key"))
        match request_body["method"]:
            case "initialize":
                self.sessions += 1
                about = {
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "faulty", "version": "1"},
                }
                text = message(
                    id=number, result={"protocolVersion": params["protocolVersion"], **about}
                )
                return web.Response(
                    text=text, headers={"Mcp-Session-Id": str(self.sessions)}, **_JSON
                )
            case "tools/list" if request.headers["Mcp-Session-Id"] == str(self.sessions):
                return web.Response(text=message(id=number, result={"tools": listed()}), **_JSON)
            case "tools/call" if request.headers["Mcp-Session-Id"] == str(self.sessions):
                return await self.called(request, number, params["arguments"]["fault"])
            case "notifications/cancelled":
                self.cancelled.set()
        return web.Response(status=404 if number else 202)

    async def called(self, request: web.Request, number: int, fault: str) -> web.StreamResponse:
        """Answer a call, or not."""
        if fault == "silent":
            await asyncio.Event().wait()
        if fault == "breaks" and request.transport:
            request.transport.abort()
        self.sessions += fault == "forgets"
        answer = said(number, "done")
        events = {"content_type": "text/event-stream"}
        long = said(number, "x" * 10_000_000)
        replies: dict[str, dict[str, Any]] = {
            "long": {"text": long, **_JSON},
            "inflated": {
                "body": gzip.compress(long.encode()),
                "headers": {"Content-Encoding": "gzip"},
                **_JSON,
            },
            "invalid": {"text": answer[:-9], **_JSON},
            "status": {"status": 500, "text": "<html>"},
            "page": {"text": "<html>", "content_type": "text/html"},
            "long event": {"text": f"data: {long}\n\n", **events},
            "half an event": {"text": f"data: {answer}\n", **events},
            "event": {"text": f"data: {answer}\n\n", **events},
        }
        return web.Response(**replies.get(fault, {"text": answer, **_JSON}))


@asynccontextmanager
async def faulty_http(**more: Any) -> AsyncIterator[tuple[FaultyHTTP, ToolServerConfig]]:
    """A faulty server on a free port, with the section that names it."""
    server = FaultyHTTP()
    app = web.Application()
    app.router.add_post("/mcp", server.post)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        yield server, ToolServerConfig(url=url, allow=("do",), **more)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "fault",
    ["breaks", "long", "inflated", "invalid", "status", "page", "long event", "half an event"],
)
async def test_a_fault_over_http_fails_one_call_only(fault: str) -> None:
    """The call fails quickly, concurrent calls succeed, and the connection stays open."""
    async with (
        faulty_http(timeout_s=15) as (server, config),
        tools_of(config) as (tools, readiness),
    ):
        failed, *beside = await asyncio.gather(
            done(tools, fault), done(tools, "event"), done(tools)
        )
        assert failed.startswith("failed: ")
        assert "took more" not in failed
        assert beside == ["done"] * 2
        assert (server.sessions, readiness.all) == (1, {})


async def test_a_silent_server_over_http_times_out() -> None:
    """The call is cancelled at the server, and later calls work."""
    async with faulty_http(timeout_s=3) as (server, config), tools_of(config) as (tools, _):
        assert await done(tools, "silent") == "failed: the call took over 3 s; raise `timeout_s`"
        async with asyncio.timeout(5):
            await server.cancelled.wait()
        assert await done(tools) == "done"


async def test_a_lost_session_fails_one_call_only() -> None:
    """Then a new session is opened."""
    async with faulty_http() as (_, config), tools_of(config) as (tools, readiness):
        assert await done(tools, "forgets") == "done"
        assert await done(tools) == "failed: Session terminated"
        await until(readiness, down=True)
        await until(readiness, down=False)
        assert await done(tools) == "done"


async def test_headers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has them, stripped of white space."""
    monkeypatch.setenv("A_KEY_OF_THE_SERVER", " simsalabim\n")
    headers = {"X-Key": "A_KEY_OF_THE_SERVER"}
    async with faulty_http(headers=headers) as (server, config), tools_of(config) as (tools, _):
        assert await done(tools) == "done"
        assert server.keys == {"simsalabim"}


def quickstart() -> MCPServer:
    """The server of the SDK's quickstart, and a tool that changes its tools."""
    server = MCPServer("Demo", log_level="WARNING")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    async def learn(context: Context[Any, Any]) -> str:
        """Learn to subtract."""
        server.add_tool(lambda a, b: a - b, name="subtract", description="Subtract.")
        await context.session.send_tool_list_changed()
        return "learnt"

    return server


@asynccontextmanager
async def serving_quickstart() -> AsyncIterator[str]:
    """Serve it over streamable HTTP and yield its address."""
    server = uvicorn.Server(
        uvicorn.Config(quickstart().streamable_http_app(), log_level="warning", ws="none")
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            await running


async def test_a_server_of_the_sdk_works() -> None:
    """Its tools are listed and called, announced tools appear, and wrong arguments fail."""
    async with serving_quickstart() as url:
        config = ToolServerConfig(url=url, allow=("add", "learn", "subtract"), timeout_s=15)
        async with tools_of(config) as (tools, _):
            add, learn = await tools.available()
            assert (add.name, add.description, set(add.parameters["properties"])) == (
                "add",
                "Add two numbers.",
                {"a", "b"},
            )
            assert (await tools.call(add, {"a": 2, "b": 3})).text == "5"
            with pytest.raises(ToolFailed, match="Error executing tool add"):
                await tools.call(add, {"a": "two"})
            assert (await tools.call(learn, {})).text == "learnt"
            async with asyncio.timeout(10):
                while len(await tools.available()) < 3:
                    await tools.call(add, {"a": 0, "b": 0})
            assert (await tools.call(Tool("web", "subtract", "", {}), {"a": 3, "b": 2})).text == "1"
