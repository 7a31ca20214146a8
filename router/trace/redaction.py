"""Redaction: removal of all texts from a run before it is stored."""

from functools import cache
from typing import TypeVar, cast

import msgspec
from msgspec.inspect import LiteralType, StructType, type_info
from msgspec.structs import replace

from router.models import Completion, Usage
from router.models.model import TokenIds
from router.trace.call import Call
from router.trace.run import RoleSetting, Run
from router.trace.scope import Scope
from router.trace.values import Execution, Reranking, RunStarted, ToolCall

_WHOLE = (Call, Usage, RoleSetting, RunStarted)
_NAMES: dict[type[msgspec.Struct], frozenset[str]] = {
    Run: frozenset(("id", "tenant", "key_id", "request_id", "settings", "resumed_from")),
    Execution: frozenset(("executor", "shared_from", "manager")),
    Completion: frozenset(("finish_reason",)),
    ToolCall: frozenset(("server", "tool")),
    Reranking: frozenset(("model",)),
    Scope: frozenset(("indexes",)),
}
"""String fields that redaction keeps, by struct. It also keeps enumerations (`Literal` fields). All
other strings are emptied, so a new field is redacted unless it is listed here.
"""
Value = TypeVar("Value")


def redacted(run: Run) -> Run:
    """Return the run with every text replaced by an empty string. Numbers, hashes, names of models,
    and outcomes are kept, and so is the error message of a run that was cancelled on request.
    """
    error = run.error if run.status == "cancelled" else ""
    return replace(_blank(run), redacted=True, error=error)


def _blank(value: Value) -> Value:
    if isinstance(value, str):
        return type(value)()
    if isinstance(value, TokenIds):
        return type(value)((), ())
    if isinstance(value, tuple):
        return type(value)(map(_blank, value))
    if not isinstance(value, msgspec.Struct) or isinstance(value, _WHOLE):
        return value
    kept = _kept(type(value))
    texts = (name for name in value.__struct_fields__ if name not in kept)
    return replace(value, **{name: _blank(getattr(value, name)) for name in texts})


@cache
def _kept(kind: type[msgspec.Struct]) -> frozenset[str]:
    enumerations = (
        field.name
        for field in cast(StructType, type_info(kind)).fields
        if LiteralType in map(type, getattr(field.type, "types", (field.type,)))
    )
    return _NAMES.get(kind, frozenset()).union(enumerations)
