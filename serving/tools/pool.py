"""One pool of MCP servers for all runs: kept running, their tools listed, calls of them within
limits.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from router.background import background_tasks
from router.calls import Readiness
from router.errors import ToolFailed
from router.search.tools import Tool, ToolOutput, Tools
from serving.config.config import ToolServerConfig

_LONGEST_PAUSE_S = 60.0
_GOOD_AFTER_S = 60.0
"""Pauses before a server is started again double up to the longest; once it has run so long,
they begin anew.
"""


class Connection(Protocol):
    """A server that was reached."""

    stale: asyncio.Event
    """Set where the list of tools may have changed, or the server may be gone: time to ask for
    the list.
    """

    async def tools(self) -> Sequence[Tool]:
        """List all tools. Raises anything."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool. Raises `ToolFailed`."""


Connect = Callable[[str, ToolServerConfig], AbstractAsyncContextManager[Connection]]
"""Reaches the server of a name and a section, as long as the context is open; raises anything."""


class ToolPool:
    """The servers of a gateway."""

    def __init__(self, servers: Mapping[str, "_Server"]) -> None:
        self._servers = servers

    def view(self, names: Collection[str]) -> Tools:
        """The tools of some servers, for a worker."""
        return _View({name: self._servers[name] for name in names})


@asynccontextmanager
async def tool_pool(
    configs: Mapping[str, ToolServerConfig], readiness: Readiness, *, first_pause_s: float = 1.0
) -> AsyncIterator[ToolPool]:
    """Start servers and keep them running while the context is open; one that is down is told to
    `readiness`, as `tools.NAME`, and keeps nothing else from working. `first_pause_s`: before a
    server is started again.
    """
    if not configs:
        yield ToolPool({})
        return
    from serving.tools.connection import connect  # needs the extra mcp

    servers = {name: _Server(name, config, readiness) for name, config in configs.items()}
    async with background_tasks(
        *(server.keep(connect, first_pause_s) for server in servers.values())
    ):
        try:
            yield ToolPool(servers)
        finally:
            for server in servers.values():
                server.closing = True


class _Server:
    def __init__(self, name: str, config: ToolServerConfig, readiness: Readiness) -> None:
        self._name = name
        self._config = config
        self._readiness = readiness
        self._places = asyncio.Semaphore(config.max_in_flight)
        self._connection: Connection | None = None
        self._tools: dict[str, Tool] = {}
        self._tried = asyncio.Event()
        self._why: str | None = None
        self.closing = False

    async def available(self) -> Sequence[Tool]:
        """The tools that it lists and that are allowed; once its first start has succeeded, or
        not.
        """
        await self._tried.wait()
        return tuple(self._tools.values())

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool, as soon as there is a place. Raises `ToolFailed`."""
        await self._tried.wait()
        async with self._places:
            if (connection := self._connection) is None:
                raise ToolFailed(f"is down: {self._why}", endpoint=f"tools.{self._name}")
            if name not in self._tools:
                raise ToolFailed(
                    "there is no such tool, or it is not allowed", endpoint=f"tools.{self._name}"
                )
            try:
                async with asyncio.timeout(self._config.timeout_s):
                    return await connection.call(name, arguments)
            except TimeoutError:
                connection.stale.set()  # is it still there?
                said = f"took more than {self._config.timeout_s:g} s"
                raise ToolFailed(said, endpoint=f"tools.{self._name}") from None

    async def keep(self, connect: Connect, first_pause_s: float) -> None:
        """Keep it running, and its list fresh, until it is cancelled."""
        loop = asyncio.get_running_loop()
        pause_s = first_pause_s
        start_s = self._config.timeout_s
        while True:
            began = loop.time()
            try:
                async with (
                    asyncio.timeout(start_s) as limit,
                    connect(self._name, self._config) as connection,
                ):
                    while True:
                        connection.stale.clear()
                        listed = await connection.tools()
                        limit.reschedule(None)
                        self._say(connection, listed)
                        # A server may say with each list that there is another one
                        await asyncio.sleep(first_pause_s)
                        await connection.stale.wait()
                        limit.reschedule(loop.time() + start_s)
            except Exception as error:
                if self.closing:  # the SDK may turn a cancellation into an error of its own
                    return
                self._say(None, (), reason(error))
            if loop.time() - began > _GOOD_AFTER_S:
                pause_s = first_pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _say(
        self, connection: Connection | None, listed: Sequence[Tool], why: str | None = None
    ) -> None:
        self._connection = connection
        self._why = why
        self._tools = {tool.name: tool for tool in listed if tool.name in self._config.allow}
        self._tried.set()
        self._readiness.say(f"tools.{self._name}", [], why)


class _View:
    def __init__(self, servers: Mapping[str, _Server]) -> None:
        self._servers = servers

    async def available(self) -> Sequence[Tool]:
        """The tools of all its servers, in their order."""
        return [tool for server in self._servers.values() for tool in await server.available()]

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool of one of its servers. Raises `ToolFailed`."""
        if (server := self._servers.get(tool.server)) is None:
            raise ToolFailed(
                "is not among the servers that may be called here", endpoint=f"tools.{tool.server}"
            )
        return await server.call(tool.name, arguments)


def reason(error: BaseException) -> str:
    """The first of the errors that a task group or a single call has raised, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = " ".join(str(error).split())
    return said or (
        "did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    )
