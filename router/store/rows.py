"""Calls and runs as rows of `calls` and `runs`, by the fields of their structs."""

from typing import Any, TypeVar

import msgspec
from sqlalchemy import Row, RowMapping

from router.errors import StoreFailed
from router.models.model import TOKEN_COUNTS
from router.store.schema import CALLS, RESERVED
from router.trace import Call, Event, Execution, Run, Trajectory
from router.trace.call import OpenedCall
from router.trace.values import Reported, Result, brief

Value = TypeVar("Value", bound=msgspec.Struct)
_STILL_OPEN = {"outcome": "open", "counted": "", "wasted_tokens": 0, "duration_s": 0.0}
_OPENED_CALL = tuple(each.name for each in CALLS.c if each.name in (*OpenedCall.__struct_fields__, *RESERVED))
ENDED_CALL = tuple(column.name for column in CALLS.c if column.name not in _OPENED_CALL)
"""The columns that are written when a call ends."""


def opened_row(call: OpenedCall) -> dict[str, object]:
    """A call that has not ended, as far as it is known."""
    return {name: _value(call, name) for name in _OPENED_CALL} | _STILL_OPEN


def ended_row(call: Call) -> dict[str, object]:
    """The columns that change when a call ends, of the row that `_run_id` and `_number` name."""
    return {"_run_id": call.run_id, "_number": call.number, **{name: _value(call, name) for name in ENDED_CALL}}


def _value(call: Any, column: str) -> object:
    """The value of a call in a column: its own, that of a part of it, or an empty string for no version."""
    if column in TOKEN_COUNTS:
        return getattr(call.usage, column, None)
    if column in RESERVED:
        return getattr(call.reserved, RESERVED[column])
    value = getattr(call, column)
    return "" if value is None and column == "executor_version" else value


def call_of(row: RowMapping) -> Call:
    """The call that a row of all columns holds; an open one as `interrupted`. Raises `StoreFailed`."""
    counted = row["counted"]
    flags = {flag: counted == flag for flag in ("lower_bound", "estimated")}
    try:
        return struct_of(
            Call,
            row,
            executor_version=row["executor_version"] or None,
            reserved={name: row[column] for column, name in RESERVED.items()},
            outcome="interrupted" if row["outcome"] == "open" else row["outcome"],
            usage=None if counted in ("", "impossible") else {name: row[name] for name in TOKEN_COUNTS} | flags,
            impossible_usage=counted == "impossible",
        )
    except msgspec.ValidationError as error:
        raise StoreFailed(f"The row of call {row['run_id']}-{row['number']} is damaged: {error}.") from error


def struct_of(struct: type[Value], row: RowMapping, **others: object) -> Value:
    """A struct whose fields are columns, but for `others`."""
    fields = {name: row[name] for name in struct.__struct_fields__ if name in row}
    return msgspec.convert(fields | others, struct)


def trace_of(run: Run) -> bytes:
    """MessagePack. Executions are left out of the events, as the result holds them."""
    return msgspec.msgpack.encode(msgspec.structs.replace(run, events=brief(run.events)))


def run_of(row: Row[Any], calls: tuple[Call, ...] = ()) -> Run:
    """The run that a row of all columns of `runs` holds; without a trace, one of `calls`. Raises `StoreFailed`."""
    if row.trace is None:
        missing: dict[str, object] = {"error": "", "result": None, "settings": {}}
        request_id = row.request_id or ""
        return struct_of(Run, row._mapping, id=row.run_id, request_id=request_id, calls=calls, **missing)
    try:
        run = msgspec.msgpack.decode(row.trace, type=Run)
    except msgspec.DecodeError as error:
        raise StoreFailed(f"The trace of run {row.run_id} is damaged; see `rolegate store check`.") from error
    return msgspec.structs.replace(run, events=tuple(_with_execution(event, run.result) for event in run.events))


def _with_execution(event: Event, result: Result | None) -> Event:
    if not isinstance(event, Reported):
        return event
    executions = result.executions if isinstance(result, Trajectory) else ()
    execution: Execution | None = executions[event.index] if event.index < len(executions) else None
    return Reported(event.index, execution)
