"""A run as the bytes that are stored of it."""

from typing import Any

import msgspec
from sqlalchemy import Row

from router.call import Call
from router.errors import StoreFailed
from router.events import Event, Reported, brief
from router.execution import Execution
from router.result import Result
from router.run import Run
from router.trajectory import Trajectory


def trace_of(run: Run) -> bytes:
    """MessagePack. Executions are left out of the events, as the result holds them."""
    return msgspec.msgpack.encode(msgspec.structs.replace(run, events=brief(run.events)))


def run_of(row: Row[Any], calls: tuple[Call, ...] = ()) -> Run:
    """The run that a row of all columns of `runs` holds; without a trace, one of `calls`. Raises `StoreFailed`."""
    if row.trace is None:
        return Run(
            id=row.run_id,
            kind=row.kind,
            request=row.request,
            status=row.status,
            error="",
            result=None,
            settings={},
            calls=calls,
            started_at=row.started_at,
            duration_s=row.duration_s,
            tenant=row.tenant,
            request_id=row.request_id or "",
        )
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
