"""A call as a row of the table `calls`."""

from typing import Any

import msgspec
from sqlalchemy import Row, RowMapping

from router.amount import Amount
from router.errors import StoreFailed
from router.models.model import Usage
from router.trace.call import Call, OpenedCall
from router.trace.run import Run
from router.trace.values import Event, Execution, Reported, Result, Trajectory, brief


def opened_row(call: OpenedCall) -> dict[str, object]:
    """A call that has not ended, as far as it is known."""
    return {
        "run_id": call.run_id,
        "number": call.number,
        "tenant": call.tenant,
        "role": call.role,
        "model": call.model,
        "deployment": call.deployment,
        "executor_version": call.executor_version or "",
        "purpose": call.purpose,
        "attempt": call.attempt,
        "sub_query": call.sub_query,
        "outcome": "open",
        "wasted_tokens": 0,
        "max_tokens": call.max_tokens,
        "prompt_bound": call.prompt_bound,
        "reserved_tokens": call.reserved.tokens,
        "reserved_nano_usd": call.reserved.nano_usd,
        "started_at": call.started_at,
        "duration_s": 0.0,
    }


def ended_row(call: Call) -> dict[str, object]:
    """The columns that change when a call ends; it is told by `_run_id` and `_number`."""
    usage = call.usage
    return {
        "_run_id": call.run_id,
        "_number": call.number,
        "outcome": call.outcome,
        "counted": call.counted or None,
        "prompt_tokens": usage and usage.prompt_tokens,
        "cached_tokens": usage and usage.cached_tokens,
        "completion_tokens": usage and usage.completion_tokens,
        "reasoning_tokens": usage and usage.reasoning_tokens,
        "wasted_tokens": call.wasted_tokens,
        "nano_usd": call.nano_usd,
        "first_token_s": call.first_token_s,
        "duration_s": call.duration_s,
    }


def call_of(row: RowMapping) -> Call:
    """The ended call that a row of all columns holds."""
    return Call(
        run_id=row["run_id"],
        tenant=row["tenant"],
        number=row["number"],
        role=row["role"],
        model=row["model"],
        deployment=row["deployment"],
        executor_version=row["executor_version"] or None,
        purpose=row["purpose"],
        attempt=row["attempt"],
        sub_query=row["sub_query"],
        max_tokens=row["max_tokens"],
        prompt_bound=row["prompt_bound"],
        reserved=Amount(row["reserved_tokens"], row["reserved_nano_usd"]),
        started_at=row["started_at"],
        outcome=row["outcome"],
        usage=_usage(row),
        nano_usd=row["nano_usd"],
        first_token_s=row["first_token_s"],
        duration_s=row["duration_s"],
        impossible_usage=row["counted"] == "impossible",
    )


def _usage(row: RowMapping) -> Usage | None:
    if row["counted"] in (None, "impossible"):
        return None
    return Usage(
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        cached_tokens=row["cached_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        lower_bound=row["counted"] == "lower_bound",
        estimated=row["counted"] == "estimated",
    )


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
