"""Tokens and money by role, at given prices."""

from collections.abc import Container, Iterable, Mapping

import msgspec

from benchmarks.study.cells import SweepCell
from executor_sft.call_cache import CallCache
from router.trace import Call, Price, RoleName
from router.trace.call import RoleTotal, added, layer_of, totals
from serving.config.prices import price_of

Prices = Mapping[str, Price | None]
_DIGITS = 16


def prices_in(cell: SweepCell) -> Prices:
    """Return the prices of all roles and the judge; None if unknown. May block for seconds, by an
    import.
    """
    return {name: price_of(role, cell.config.prices) for name, role in cell.roles_and_judge.items()}


def spent(calls: Iterable[Call], prices: Prices) -> tuple[RoleTotal, ...]:
    """Sum up calls by role, model and manager, at these prices, as the calls have no costs
    yet.
    """

    def priced(call: Call) -> Call:
        manages = layer_of(call) == "management"
        price = prices.get(f"managers.{call.manager}" if manages else call.role)
        nano_usd = price.cost(call.usage) if price and call.usage else None
        return msgspec.structs.replace(call, nano_usd=nano_usd)

    return tuple(totals(map(priced, calls)))


def first_calls(
    calls: Iterable[Call],
    memories: Mapping[str, CallCache],
    booked: Container[str],
    others: Iterable[Call],
) -> dict[str, Call]:
    """Return the calls that were paid for, each once, by a key that is stable across runs of a
    sweep. Calls are left out if their key is in `booked` or if one of `others` made the same call.
    `memories`: call caches by name; a call in two caches was paid for twice.
    """

    def key(call: Call) -> str:
        for name, memory in memories.items():
            if cached := memory.key(call):
                return f"{name} {cached[:_DIGITS]}"
        return call.request_id

    other_keys = set(map(key, others))
    keyed = {key(call): call for call in calls}
    return {
        name: call for name, call in keyed.items() if name not in other_keys and name not in booked
    }


def merged(totals_of_rows: Iterable[RoleTotal]) -> list[RoleTotal]:
    """Sum up totals by role, model and manager, in the order of their first appearance."""
    groups: dict[tuple[RoleName, str, str], list[RoleTotal]] = {}
    for total in totals_of_rows:
        groups.setdefault((total.role, total.model, total.manager), []).append(total)
    return [msgspec.structs.replace(group[0], **added(group)) for group in groups.values()]


def tokens(spent_totals: Iterable[RoleTotal], role: RoleName | None = None) -> int:
    """Return the prompt and completion tokens of one role or of all."""
    return sum(
        total.prompt_tokens + total.completion_tokens
        for total in spent_totals
        if role in (None, total.role)
    )
