"""Tools that a worker may call, as the search sees them: a page opened, a file read, a query run elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec


class Tool(msgspec.Struct, frozen=True):
    """A tool, as its server describes it."""

    server: str
    """The name of its server in the config."""
    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments."""


class ToolOutput(msgspec.Struct, frozen=True):
    """What a call of a tool has returned."""

    text: str
    """The texts of its content, joined; bounded."""
    title: str = ""
    """Empty where the server names none."""
    address: str = ""
    """The URL or path of what was read; empty where the server names none."""


class Tools(Protocol):
    """The tools of one worker, of all servers that it may use."""

    async def available(self) -> Sequence[Tool]:
        """The tools that may be called. A server that is down has none."""

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool. Raises `ToolFailed`: its server is down, died, took too long, answered too much, broke the
        protocol, or says itself that the call failed.
        """
