"""What a role has spent."""

from collections.abc import Iterable

import msgspec

from router.call import Call, RoleName


class RoleTotal(msgspec.Struct, frozen=True):
    """Tokens of one role with one model."""

    role: RoleName
    model: str
    attempts: int
    attempts_without_usage: int
    attempts_without_cost: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    reasoning_tokens: int | None
    wasted_tokens: int
    nano_usd: int | None
    """Billionths of a dollar; None where no attempt's cost is known."""


def totals(calls: Iterable[Call]) -> list[RoleTotal]:
    """Sums by role and model, in the order in which roles first spent."""
    groups: dict[tuple[RoleName, str], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.role, call.model), []).append(call)
    return [_total(role, model, members) for (role, model), members in groups.items()]


def _total(role: RoleName, model: str, calls: list[Call]) -> RoleTotal:
    known = [call.usage for call in calls if call.usage is not None]
    return RoleTotal(
        role=role,
        model=model,
        attempts=len(calls),
        attempts_without_usage=len(calls) - len(known),
        attempts_without_cost=sum(call.nano_usd is None for call in calls),
        prompt_tokens=sum(usage.prompt_tokens for usage in known),
        completion_tokens=sum(usage.completion_tokens for usage in known),
        cached_tokens=sum_known([usage.cached_tokens for usage in known]),
        reasoning_tokens=sum_known([usage.reasoning_tokens for usage in known]),
        wasted_tokens=sum(call.wasted_tokens for call in calls),
        nano_usd=sum_known([call.nano_usd for call in calls]),
    )


def sum_known(counts: list[int | None]) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
