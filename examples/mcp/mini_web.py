"""An MCP server with the pages of a corpus: its tool `fetch` reads one by its address, `mini://ID`,
or by its ID alone.

    python examples/mcp/mini_web.py serving/demo/corpus.jsonl [--blocked REGEX] [--delay-s SECONDS]

Each line of the corpus has `id`, `title` and `text`. The standard streams carry the protocol.
"""

import argparse
import asyncio
import json
import re
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ResourceLink, TextContent


def mini_web(corpus: Path, blocked: str | None, delay_s: float) -> MCPServer:
    """The server. Pages whose addresses match `blocked` are refused, each is read in `delay_s`
    seconds.
    """
    pages = {page["id"]: page for page in map(json.loads, corpus.read_text("utf-8").splitlines())}
    server = MCPServer("mini_web", log_level="WARNING")

    @server.tool()
    async def fetch(url: str) -> CallToolResult:
        """Read a page by its address."""
        await asyncio.sleep(delay_s)
        identity = url.removeprefix("mini://")
        if blocked and re.search(blocked, identity):
            return CallToolResult(
                content=[TextContent(text=f"403: {url} is blocked")], is_error=True
            )
        if (page := pages.get(identity)) is None:
            return CallToolResult(
                content=[TextContent(text=f"404: there is no page {url}")], is_error=True
            )
        link = ResourceLink(name=identity, title=page["title"], uri=f"mini://{identity}")
        return CallToolResult(content=[TextContent(text=page["text"]), link])

    return server


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--blocked", metavar="REGEX")
    parser.add_argument("--delay-s", type=float, default=0.0)
    given = parser.parse_args()
    mini_web(given.corpus, given.blocked, given.delay_s).run("stdio")
