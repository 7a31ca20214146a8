"""The MCP servers of a gateway: keep them running, list their tools, and limit concurrent calls.

A worker is an executor that works on one sub-query of a manager. All workers of all runs share one
connection to a server, unless the server has the setting `own_sessions`; then each worker has its
own connection.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from router.background import background_tasks
from router.calls import Readiness
from router.errors import ToolFailed
from router.search.tools import Tool, ToolOutput, Tools
from serving.config.config import ToolServerConfig
from serving.tools.failures import reason

if TYPE_CHECKING:
    from serving.tools.connection import MCPConnection

_FIRST_PAUSE_S = 1.0
"""Seconds before the first restart of a server."""
_MAX_PAUSE_S = 60.0
_STABLE_AFTER_S = 60.0
"""Seconds after which a running server counts as stable. Each restart of a server that was not
stable doubles the pause before the next restart, up to `_MAX_PAUSE_S`.
"""


class ToolPool:
    """The MCP servers of a gateway, or only the servers that one worker may use."""

    def __init__(self, servers: Mapping[str, "_Server"]) -> None:
        self._servers = servers

    def view(self, names: Collection[str]) -> Tools:
        """Return a pool with only the servers `names`, for the workers of one manager."""
        return ToolPool({name: self._servers[name] for name in names})

    async def available(self) -> Sequence[Tool]:
        """Return the allowed tools of all servers that are up, in the order of the servers."""
        return [tool for server in self._servers.values() for tool in await server.available()]

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool of one of the servers. Raises `ToolFailed`."""
        if (server := self._servers.get(tool.server)) is None:
            raise ToolFailed(
                "the worker's manager may not call this server; add it to `managers.NAME.tools`",
                endpoint=f"tools.{tool.server}",
            )
        return await server.call(tool.name, arguments)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Tools]:
        """Open a session for one worker, and yield the pool of tools that the worker may call. The
        worker gets its own connections to servers with `own_sessions`; connections to other servers
        are shared.
        """
        async with AsyncExitStack() as stack:
            yield ToolPool({name: server.within(stack) for name, server in self._servers.items()})


@asynccontextmanager
async def tool_pool(
    configs: Mapping[str, ToolServerConfig],
    readiness: Readiness,
    *,
    first_pause_s: float = _FIRST_PAUSE_S,
) -> AsyncIterator[ToolPool]:
    """Start the MCP servers in `configs`, and keep them running while the context is open.

    A server that is down is reported to `readiness` as `tools.NAME`. It does not affect the other
    servers. `first_pause_s`: seconds before the first restart of a server.
    """
    servers = {name: _Server(name, config, readiness) for name, config in configs.items()}
    async with _kept_running(servers.values(), first_pause_s):
        yield ToolPool(servers)


@asynccontextmanager
async def _kept_running(
    servers: Collection["_Server"], first_pause_s: float
) -> AsyncIterator[None]:
    """Start servers, and restart them when they end, while the context is open."""
    async with background_tasks(*(server.keep_running(first_pause_s) for server in servers)):
        try:
            yield
        finally:
            for server in servers:
                server.closing = True


class _Server:
    """One MCP server: its current connection, its allowed tools, and the limit on its calls."""

    def __init__(self, name: str, config: ToolServerConfig, readiness: Readiness) -> None:
        from serving.tools.connection import connect  # needs the extra mcp

        self._connect = connect
        self._endpoint = f"tools.{name}"
        self._name = name
        self._config = config
        self._readiness = readiness
        self._slots = asyncio.Semaphore(config.max_in_flight)
        self._connection: MCPConnection | None = None
        self._tools = dict[str, Tool]()
        self._started = asyncio.Event()
        """Set once the first start has succeeded or failed."""
        self._down_reason: str | None = None
        self.closing = False

    def within(self, stack: AsyncExitStack) -> "_Server":
        """Return the object through which one worker calls the server. With `own_sessions`, this is
        a new object with its own session, which ends when `stack` is closed; otherwise, it is this
        object.
        """
        return _OwnServer(self, stack) if self._config.own_sessions else self

    async def available(self) -> Sequence[Tool]:
        """Wait until the first start has succeeded or failed. Then return those tools of the server
        that its setting `allow` names; none if the server is down.
        """
        await self._started.wait()
        return tuple(self._tools.values())

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool, after waiting until fewer than `max_in_flight` calls are in flight. Raises
        `ToolFailed`.
        """
        await self._started.wait()
        async with self._slots:
            if (connection := self._connection) is None:
                raise ToolFailed(
                    f"the server is down: {self._down_reason}; retry later",
                    endpoint=self._endpoint,
                )
            if name not in self._tools:
                raise ToolFailed(
                    f"the server has no tool {name!r}, or `allow` omits it; correct either",
                    endpoint=self._endpoint,
                )
            try:
                async with asyncio.timeout(self._config.timeout_s):
                    return await connection.call(name, arguments)
            except TimeoutError:
                # Let `keep_running` list the tools, to see whether the server still answers
                connection.stale.set()
                raise ToolFailed(
                    f"the call took over {self._config.timeout_s:g} s; raise `timeout_s`",
                    endpoint=self._endpoint,
                ) from None

    async def keep_running(self, first_pause_s: float) -> None:
        """Start the server, restart it when it ends, and list its tools again when they may have
        changed. Runs until cancelled.
        """
        loop = asyncio.get_running_loop()
        pause_s = first_pause_s
        limit_s = self._config.timeout_s
        while True:
            started_at = loop.time()
            try:
                async with (
                    asyncio.timeout(limit_s) as limit,
                    self._connect(self._name, self._config) as connection,
                ):
                    while True:
                        connection.stale.clear()
                        tools = await connection.tools()
                        limit.reschedule(None)
                        self._update(connection, tools)
                        # Pause, because some servers announce a change after each listing
                        await asyncio.sleep(first_pause_s)
                        await connection.stale.wait()
                        limit.reschedule(loop.time() + limit_s)
            except Exception as error:
                if self.closing:  # the SDK may turn a cancellation into its own error
                    return
                self._update(None, (), reason(error))

            if loop.time() - started_at > _STABLE_AFTER_S:
                pause_s = first_pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _update(
        self,
        connection: "MCPConnection | None",
        tools: Sequence[Tool],
        down_reason: str | None = None,
    ) -> None:
        """Set the current connection and its tools, and report to `readiness` whether the server is
        up. `connection`: None if the server is down for `down_reason`.
        """
        self._connection = connection
        self._down_reason = down_reason
        self._tools = {tool.name: tool for tool in tools if tool.name in self._config.allow}
        self._started.set()
        self._readiness.report(self._endpoint, [], down_reason)


class _OwnServer(_Server):
    """A worker's own session with a server. It starts with the worker's first call of a tool,
    because many workers call none, and ends with the worker. The tools are those that `shared`, the
    server's shared connection, has listed.
    """

    def __init__(self, shared: _Server, stack: AsyncExitStack) -> None:
        super().__init__(shared._name, shared._config, Readiness())
        self._shared = shared
        self._stack = stack
        self._opened = False

    async def available(self) -> Sequence[Tool]:
        """Return the allowed tools, as the shared connection has listed them."""
        return await self._shared.available()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool. The first call waits until fewer than `max_in_flight` sessions with the
        server are open, and then starts the session. Raises `ToolFailed`.
        """
        if not self._opened:
            self._opened = True
            await self._stack.enter_async_context(self._shared._slots)
            await self._stack.enter_async_context(_kept_running([self], _FIRST_PAUSE_S))
        return await super().call(name, arguments)
