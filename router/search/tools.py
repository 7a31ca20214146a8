"""The protocol of tools that a worker may call, such as opening a page, reading a file or running a
query.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from router.errors import JSON_ERRORS
from router.models.model import Function, encodable
from router.protocol import Passage

_MAX_DESCRIPTION = 1000
_MAX_PARAMETERS = 10_000
"""Max characters of a tool's description, which is cut, and of its JSON schema, beyond which the
tool is not offered.
"""
_PASSAGE_CHARS = 2000
_ENDS = ("\n\n", "\n", ". ", " ")
"""Marks after which a text is cut, best first."""


class Tool(msgspec.Struct, frozen=True):
    """A tool as its server describes it."""

    server: str
    """The name of its server in the config."""
    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments."""

    def arguments(self, text: str) -> dict[str, Any] | None:
        """Parse the arguments in a JSON text. Return None if it is invalid, or if an argument is
        missing, unknown, or of the wrong type at the first level. The server checks the rest of its
        schema.
        """
        try:
            given = msgspec.json.decode(text or "{}", type=dict[str, Any])
        except JSON_ERRORS:
            return None
        known = self.parameters.get("properties")
        required = self.parameters.get("required")
        if isinstance(required, list) and any(name not in list(given) for name in required):
            return None
        closed = self.parameters.get("additionalProperties") is False
        if closed and given.keys() - (known if isinstance(known, dict) else ()):
            return None
        return given


class ToolOutput(msgspec.Struct, frozen=True):
    """The result of a tool call."""

    text: str
    """The joined texts of its content; bounded."""
    title: str = ""
    """Empty if the server gives none."""
    address: str = ""
    """The URL or path of the source; empty if the server gives none."""


class Tools(Protocol):
    """The tools of one worker, from all servers that it may use."""

    async def available(self) -> Sequence[Tool]:
        """Return the tools that may be called. A server that is down has none."""

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call a tool. Raises `ToolFailed` if its server is down, died, timed out, returned too
        much, broke the protocol, or reported a failure.
        """


def offered(tools: Iterable[Tool]) -> dict[str, tuple[Tool, Function]]:
    """Return the tools by names that a model may write: letters, digits, `_` and `-`. If two tools
    share a name, the later one is prefixed with its server's name.
    """
    functions: dict[str, tuple[Tool, Function]] = {}
    for tool in tools:
        name = _plain(tool.name)
        if name in functions:
            name = _plain(f"{tool.server}_{tool.name}")
        schema = encodable(json.dumps(tool.parameters, ensure_ascii=False))
        description = encodable(tool.description)[:_MAX_DESCRIPTION]
        if len(schema) <= _MAX_PARAMETERS:
            functions.setdefault(name, (tool, Function(name, description, schema)))
    return functions


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def passages_of(
    tool: Tool,
    call: str,
    output: ToolOutput,
    max_chars: int,
) -> tuple[Passage, ...]:
    """Return the first `max_chars` characters of an output as passages, in order. They are cut at
    ends of lines and sentences, and nothing between them is lost. `call`: the title of an output
    that has none.
    """
    text = encodable(output.text[:max_chars])
    title = encodable(output.title or call)[:_PASSAGE_CHARS]
    address = encodable(output.address)[:_PASSAGE_CHARS]
    key = f"{tool.server}:{tool.name}:{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    passages: list[Passage] = []
    start = 0
    while start < len(text):
        end = start + _PASSAGE_CHARS
        if end < len(text):
            middle = start + _PASSAGE_CHARS // 2
            ends = (text.rfind(mark, middle, end - len(mark)) + len(mark) for mark in _ENDS)
            end = next((boundary for boundary in ends if boundary > middle), end)
        passages.append(
            Passage(f"{key}#{len(passages) + 1}", title, text[start:end], document=address)
        )
        start = end
    return tuple(passage for passage in passages if passage.text.strip())
