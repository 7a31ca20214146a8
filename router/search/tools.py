"""Tools that a worker may call, as the search sees them: a page opened, a file read, a query
run elsewhere.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from router.errors import JSON_ERRORS
from router.models.model import Function
from router.protocol import Passage
from router.protocol.tags import encodable

_MOST_DESCRIPTION = 1000
_MOST_PARAMETERS = 10_000
"""Characters of a tool's description, of which the rest is cut, and of its schema as JSON, without
which it is not offered.
"""
_PASSAGE_CHARS = 2000
_ENDS = ("\n\n", "\n", ". ", " ")
"""Where a text is best cut, from the best to the worst."""
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


class Tool(msgspec.Struct, frozen=True):
    """A tool, as its server describes it."""

    server: str
    """The name of its server in the config."""
    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments."""

    def arguments(self, text: str) -> dict[str, Any] | None:
        """The arguments in a JSON text; None where it is none, or where one is missing, unknown or
        of another type at its first level. More of the schema, which is the server's, is not looked
        at here.
        """
        try:
            given = msgspec.json.decode(text or "{}", type=dict[str, Any])
        except JSON_ERRORS:
            return None
        known = self.parameters.get("properties")
        required = self.parameters.get("required")
        known = known if isinstance(known, dict) else {}
        required = required if isinstance(required, list) else []
        closed = self.parameters.get("additionalProperties") is False
        if any(name not in list(given) for name in required) or (
            closed and given.keys() - known.keys()
        ):
            return None
        return (
            given if all(_fits(value, known.get(name)) for name, value in given.items()) else None
        )


def _fits(value: object, schema: object) -> bool:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(
        isinstance(kind, str) and kind in _TYPES for kind in kinds
    ):
        return True
    if isinstance(value, bool):
        return "boolean" in kinds
    return any(isinstance(value, _TYPES[kind]) for kind in kinds)


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
        """Call a tool. Raises `ToolFailed`: its server is down, died, took too long, answered too
        much, broke the protocol, or says itself that the call failed.
        """


def offered(tools: Iterable[Tool]) -> dict[str, tuple[Tool, Function]]:
    """The tools by names that a model may write: letters, digits, `_` and `-`. Of two of one name,
    the later one has its server's before it.
    """
    found: dict[str, tuple[Tool, Function]] = {}
    for tool in tools:
        name = _plain(tool.name)
        name = _plain(f"{tool.server}_{tool.name}") if name in found else name
        schema = encodable(json.dumps(tool.parameters, ensure_ascii=False))
        if len(schema) <= _MOST_PARAMETERS:
            found.setdefault(
                name,
                (tool, Function(name, encodable(tool.description)[:_MOST_DESCRIPTION], schema)),
            )
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def passages_of(tool: Tool, call: str, output: ToolOutput, most_chars: int) -> tuple[Passage, ...]:
    """An output as passages, in its order: the first `most_chars` characters, cut where lines and
    sentences end, so that nothing of them is lost. `call`: the title of an output that has none.
    """
    text = encodable(output.text[:most_chars])
    title, address = (
        encodable(each)[:_PASSAGE_CHARS] for each in (output.title or call, output.address)
    )
    key = f"{tool.server}:{tool.name}:{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    found: list[Passage] = []
    at = 0
    while at < len(text):
        end = at + _PASSAGE_CHARS
        if end < len(text):
            middle = at + _PASSAGE_CHARS // 2
            ends = (text.rfind(mark, middle, end - len(mark)) + len(mark) for mark in _ENDS)
            end = next((each for each in ends if each > middle), end)
        found.append(Passage(f"{key}#{len(found) + 1}", title, text[at:end], document=address))
        at = end
    return tuple(each for each in found if each.text.strip())
