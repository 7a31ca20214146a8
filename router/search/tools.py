"""Protocol of the tools that an executor may call, such as opening a page, reading a file or
running a query.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from router.errors import JSON_ERRORS
from router.frozen import Frozen
from router.models.model import Function, encodable
from router.protocol import Passage

_MAX_DESCRIPTION = 1000
_MAX_PARAMETERS = 10_000
"""`_MAX_DESCRIPTION`: max characters of a tool's description; the rest is cut off.
`_MAX_PARAMETERS`: max characters of a tool's JSON schema. A tool with a longer schema is not
offered to the model.
"""
_PASSAGE_CHARS = 2000
_ENDS = ("\n\n", "\n", ". ", " ")
"""Strings after which a text may be cut into passages, best first."""


class Tool(Frozen):
    """A tool, as its server describes it."""

    server: str
    """The name of the tool's server in the config."""
    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of the tool's arguments."""

    def arguments(self, text: str) -> dict[str, Any] | None:
        """Parse the arguments in the JSON text `text`. Return None if the text is not a JSON
        object, or if a required argument is missing, or if an argument is unknown and the schema
        forbids unknown arguments. The server checks everything else.
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


class ToolOutput(Frozen):
    """The result of a tool call."""

    text: str
    """The texts of the result's content parts, joined and cut to a max length."""
    title: str = ""
    """Title of the source; empty if the server gives none."""
    address: str = ""
    """The URL or path of the source; empty if the server gives none."""


class Tools(Protocol):
    """The tools that one executor may use, from all servers that it has access to."""

    async def available(self) -> Sequence[Tool]:
        """Return the tools that can be called now. Tools of servers that are down are left out."""

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolOutput:
        """Call `tool` and return its result. Raises `ToolFailed` if the tool's server is down,
        exits, times out, returns too much, breaks the protocol, or reports a failure.
        """

    def session(self) -> AbstractAsyncContextManager["Tools"]:
        """Open a session: the same tools, for one executor and one sub-query. State that a tool
        keeps, such as an open page, ends with the session.
        """


def offered(tools: Iterable[Tool]) -> dict[str, tuple[Tool, Function]]:
    """Return the tools by the names under which a model calls them, each with its description for
    the model. A name consists of letters, digits, `_` and `-`. If two tools share a name, the later
    tool's name is prefixed with the name of its server.
    """
    functions = dict[str, tuple[Tool, Function]]()
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
    """Split the first `max_chars` characters of a tool's output into passages, in order. The text
    is cut at the ends of lines or sentences where possible. `call`: the title of the passages if
    the output has none.
    """
    text = encodable(output.text[:max_chars])
    title = encodable(output.title or call)[:_PASSAGE_CHARS]
    address = encodable(output.address)[:_PASSAGE_CHARS]
    key = f"{tool.server}:{tool.name}:{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    passages = list[Passage]()
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
