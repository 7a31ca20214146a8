"""Pools of faulty servers, and calls to them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from router.calls import Readiness
from router.errors import ToolFailed
from router.search.tools import Tool, Tools
from serving.config.config import ToolServerConfig
from serving.tools.pool import ToolPool, tool_pool

DO = Tool("web", "do", "", {})


def faulty(start: str = "", **more: Any) -> ToolServerConfig:
    """Return the config section of a faulty server; `start`: a fault from its start."""
    script = str(Path(__file__).with_name("faulty_server.py"))
    return ToolServerConfig(
        command=(sys.executable, "-I", "-S", script, start), **{"allow": ("do",), **more}
    )


@asynccontextmanager
async def pool_of(**servers: ToolServerConfig) -> AsyncIterator[tuple[ToolPool, Readiness]]:
    """Open a pool that restarts servers without a pause."""
    readiness = Readiness()
    async with tool_pool(servers, readiness, first_pause_s=0.01) as pool:
        yield pool, readiness


@asynccontextmanager
async def tools_of(
    config: ToolServerConfig, name: str = "web"
) -> AsyncIterator[tuple[Tools, Readiness]]:
    """Yield the tools of one running server."""
    async with pool_of(**{name: config}) as (pool, readiness):
        await pool.view([name]).available()
        yield pool.view([name]), readiness


async def done(tools: Tools, fault: str = "", server: str = "web") -> str:
    """Call a tool; return the text of its output, or its failure."""
    try:
        async with asyncio.timeout(20):
            return (await tools.call(Tool(server, "do", "", {}), {"fault": fault})).text
    except ToolFailed as error:
        return f"failed: {error.args[0]}"


async def state(tools: Tools) -> dict[str, Any]:
    """Return the counters of a server."""
    counters: dict[str, Any] = json.loads(await done(tools, "state"))
    return counters


async def until(readiness: Readiness, *, down: bool, name: str = "web") -> None:
    """Wait until a server is down, or up."""
    async with asyncio.timeout(20):
        async for _ in readiness.changes():
            if (f"tools.{name}" in readiness.all) == down:
                return
