"""Tools with fixed answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from router.errors import ToolFailed
from router.search.tools import Tool, ToolOutput


class FixedTools:
    """Tools that answer from a mapping of joined arguments to outputs; other calls fail."""

    def __init__(
        self, tools: Sequence[Tool], outputs: Mapping[str, ToolOutput | ToolFailed]
    ) -> None:
        self._tools = tools
        self._outputs = outputs
        self.called: list[tuple[str, Mapping[str, Any]]] = []
        """All calls, in order."""

    async def available(self) -> Sequence[Tool]:
        """Return all tools."""
        return self._tools

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolOutput:
        """Look the arguments up."""
        await asyncio.sleep(0)
        self.called.append((tool.name, arguments))
        key = " ".join(map(str, arguments.values()))
        output = self._outputs.get(key, ToolFailed(f"nothing at {key}", endpoint=tool.server))
        if isinstance(output, ToolFailed):
            raise output
        return output

    @asynccontextmanager
    async def session(self) -> AsyncIterator["FixedTools"]:
        """Yield these tools; they keep no state."""
        yield self
