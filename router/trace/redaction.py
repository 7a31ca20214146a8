"""Runs without their texts."""

from typing import TypeVar

import msgspec

from router.models import Completion, Message, Usage
from router.trace.call import Call
from router.trace.run import RoleSetting, Run
from router.trace.values import Execution, RunStarted, Trajectory

_WHOLE = (Call, Usage, RoleSetting, RunStarted)
_KEPT: dict[type[msgspec.Struct], frozenset[str]] = {
    Run: frozenset(("id", "kind", "status", "tenant", "request_id", "settings")),
    Trajectory: frozenset(("outcome", "topology")),
    Execution: frozenset(("outcome", "executor", "shared_from")),
    Message: frozenset(("role",)),
    Completion: frozenset(("finish_reason",)),
}
"""Fields that are no texts; strings of all others are emptied, so that a new field is left out until it stands here."""
Value = TypeVar("Value")


def redacted(run: Run) -> Run:
    """The run with all its figures, hashes, names of models and outcomes, and with every text empty."""
    return msgspec.structs.replace(_blank(run), redacted=True)


def _blank(value: Value) -> Value:
    if isinstance(value, str):
        return type(value)()
    if isinstance(value, tuple):
        return type(value)(map(_blank, value))
    if not isinstance(value, msgspec.Struct) or isinstance(value, _WHOLE):
        return value
    kept = _KEPT.get(type(value), frozenset())
    return msgspec.structs.replace(
        value, **{name: _blank(getattr(value, name)) for name in value.__struct_fields__ if name not in kept}
    )
