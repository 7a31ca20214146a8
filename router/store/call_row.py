"""A call as a row of the table `calls`."""

from sqlalchemy import RowMapping

from router.amount import Amount
from router.call import Call, OpenedCall
from router.model import Usage


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
