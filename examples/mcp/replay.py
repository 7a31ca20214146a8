"""An MCP server that answers calls as they were answered before, from lines of JSON.

    python examples/mcp/replay.py calls.jsonl --server web [--misses misses.jsonl]

Each line has `server`, `tool`, `arguments` and `result`, a text. A call that is not among them
fails, and is written to the file of misses, as a line without a result; so misses are counted, and
can be recorded.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool


def replay(calls: Path, name: str, misses: Path | None) -> Server[Any]:
    """The server that stands in for the server `name`."""
    lines = [
        line
        for line in map(json.loads, calls.read_text("utf-8").splitlines())
        if line["server"] == name
    ]
    results = {(line["tool"], _key(line["arguments"])): line["result"] for line in lines}
    schemas: dict[str, dict[str, Any]] = {}
    for line in lines:
        schemas.setdefault(line["tool"], {}).update(dict.fromkeys(line["arguments"], True))
    missed = 0

    async def list_tools(_context: object, _params: object) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(name=tool, input_schema={"type": "object", "properties": of})
                for tool, of in schemas.items()
            ]
        )

    async def call_tool(_context: object, params: CallToolRequestParams) -> CallToolResult:
        nonlocal missed
        arguments = params.arguments or {}
        if (result := results.get((params.name, _key(arguments)))) is not None:
            return CallToolResult(content=[TextContent(text=result)])
        missed += 1
        if misses:
            with misses.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({"server": name, "tool": params.name, "arguments": arguments}) + "\n"
                )
        return CallToolResult(
            content=[TextContent(text=f"miss {missed}: not in {calls.name}")], is_error=True
        )

    return Server(name, on_list_tools=list_tools, on_call_tool=call_tool)


def _key(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True)


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("calls", type=Path)
    parser.add_argument("--server", required=True)
    parser.add_argument("--misses", type=Path)
    given = parser.parse_args()
    asyncio.run(_serve(replay(given.calls, given.server, given.misses)))
