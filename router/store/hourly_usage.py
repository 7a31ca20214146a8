"""What ended calls add to the sums of their hours."""

from collections.abc import Iterable

from router.call import Call
from router.role_total import totals

_HOUR_S = 3600


def hourly_usage(calls: Iterable[Call]) -> list[dict[str, object]]:
    """Rows of `usage_hours`."""
    groups: dict[tuple[str, int, str, str, str, str], list[Call]] = {}
    for call in calls:
        hour = int(call.started_at // _HOUR_S)
        key = call.tenant, hour, call.role, call.model, call.deployment, call.executor_version or ""
        groups.setdefault(key, []).append(call)
    return [_row(hour, calls) for (_, hour, *_), calls in groups.items()]


def _row(hour: int, calls: list[Call]) -> dict[str, object]:
    (total,), call = totals(calls), calls[0]
    return {
        "tenant": call.tenant,
        "hour": hour,
        "role": call.role,
        "model": call.model,
        "deployment": call.deployment,
        "executor_version": call.executor_version or "",
        "attempts": total.attempts,
        "attempts_without_usage": total.attempts_without_usage,
        "attempts_without_cost": total.attempts_without_cost,
        "prompt_tokens": total.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "cached_tokens": total.cached_tokens,
        "reasoning_tokens": total.reasoning_tokens,
        "wasted_tokens": total.wasted_tokens,
        "nano_usd": total.nano_usd,
    }
