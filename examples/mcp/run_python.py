"""An MCP server that runs Python in Monty, an interpreter without files, network and processes.

    pip install pydantic-monty
    python examples/mcp/run_python.py [--seconds 5] [--megabytes 100]

Monty knows a part of Python and of its standard library. Variables are kept from call to call: set
`own_sessions = true`, so that each worker has its own. The standard streams carry the protocol.
"""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.mcpserver import MCPServer
from pydantic_monty import AsyncMonty, AsyncMontySession, CollectString, MontyError


def run_python(seconds: float, megabytes: int) -> MCPServer:
    """The server. A call may take `seconds`, and all its variables together `megabytes`."""
    sessions: list[AsyncMontySession] = []

    @asynccontextmanager
    async def lifespan(_server: MCPServer) -> AsyncIterator[None]:
        limits = {"max_feed_duration_secs": seconds, "max_memory": megabytes * 1_000_000}
        async with AsyncMonty() as pool, pool.checkout(limits=limits) as session:
            sessions.append(session)
            yield

    server = MCPServer("run_python", log_level="WARNING", lifespan=lifespan)

    @server.tool()
    async def python(code: str) -> str:
        """Run Python code. Returns what it prints, and the value of its last expression. There are
        no files, no network and no packages.
        """
        printed = CollectString()
        try:
            value = repr(await sessions[-1].feed_run(code, print_callback=printed))
        except MontyError as error:
            value = str(error)  # not a failed call, because a worker does not see why a call failed
        return f"{printed.output}{value}"

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--megabytes", type=int, default=100)
    given = parser.parse_args()
    run_python(given.seconds, given.megabytes).run("stdio")
