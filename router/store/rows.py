"""Calls and runs as rows of `calls` and `runs`, by the fields of their structs."""

from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Row, RowMapping, Select

from router.errors import StoreFailed
from router.models.model import TOKEN_COUNTS
from router.store.schema import CALLS, RESERVED
from router.trace import Call, Run
from router.trace.values import brief, whole

Value = TypeVar("Value", bound=msgspec.Struct)
_CALL = CALLS.c.keys()


def call_row(call: Call) -> dict[str, object]:
    """A call as a row."""
    row = {name: getattr(call, name, None) for name in _CALL}
    row |= {name: getattr(call.usage, name, None) for name in TOKEN_COUNTS}
    row |= {column: getattr(call.reserved, name) for column, name in RESERVED.items()}
    row["executor_version"] = call.executor_version or ""
    return row


def struct_of(struct: type[Value], row: RowMapping, **others: object) -> Value:
    """A struct whose fields are columns, but for `others`."""
    fields = {name: row[name] for name in struct.__struct_fields__ if name in row}
    return msgspec.convert(fields | others, struct)


def structs(connection: Connection, struct: type[Value], query: Select[Any]) -> list[Value]:
    """Read a struct from each row of a query, whose columns are its fields."""
    return [struct_of(struct, row) for row in connection.execute(query).mappings()]


def trace_of(run: Run) -> bytes:
    """MessagePack. Executions are left out of the events, as the result holds them."""
    return msgspec.msgpack.encode(msgspec.structs.replace(run, events=brief(run.events)))


def run_of(row: Row[Any]) -> Run:
    """The run that a row of all columns of `runs` holds; without a trace, one without calls. Raises `StoreFailed`."""
    if row.trace is None:
        missing: dict[str, object] = {"error": "", "result": None, "settings": {}}
        request_id = row.request_id or ""
        return struct_of(Run, row._mapping, id=row.run_id, request_id=request_id, calls=(), **missing)
    try:
        run = msgspec.msgpack.decode(row.trace, type=Run)
    except msgspec.DecodeError as error:
        raise StoreFailed(f"The trace of run {row.run_id} is damaged; see `rolegate store check`.") from error
    return msgspec.structs.replace(run, events=whole(run.events, run.result))
