"""Tokens and money by role, at given prices."""

from collections.abc import Container, Iterable, Mapping

import msgspec

from benchmarks.study.cells import Cell
from executor_sft.call_cache import CallCache
from router.trace import Call, Price, RoleName
from router.trace.call import RoleTotal, added, layer_of, totals
from serving.config.prices import price_of

Prices = Mapping[str, Price | None]
_DIGITS = 16


def prices_in(cell: Cell) -> Prices:
    """Return the prices of all roles and the judge; None where nobody knows it. May block for
    seconds, by an import.
    """
    return {name: price_of(role, cell.config.prices) for name, role in cell.roles_and_judge.items()}


def spent(calls: Iterable[Call], prices: Prices) -> tuple[RoleTotal, ...]:
    """Sum up calls by role, model and manager, at these prices: the calls of a workbench carry
    none.
    """

    def priced(call: Call) -> Call:
        price = prices.get(
            f"managers.{call.manager}" if layer_of(call) == "management" else call.role
        )
        return msgspec.structs.replace(
            call, nano_usd=price.cost(call.usage) if price and call.usage else None
        )

    return tuple(totals(map(priced, calls)))


def first_calls(
    calls: Iterable[Call],
    memories: Mapping[str, CallCache],
    booked: Container[str],
    beside: Iterable[Call],
) -> dict[str, Call]:
    """Those of `calls` that were paid for, each once, by a key that is the same in every run of a
    sweep: not those whose keys are `booked`, nor those that one of `beside` asked too. `memories`:
    by a name, as a call that two of them keep was paid for twice.
    """

    def key(call: Call) -> str:
        known = ((name, memory.key(call)) for name, memory in memories.items())
        return next(
            (f"{name} {found[:_DIGITS]}" for name, found in known if found), call.request_id
        )

    others = set(map(key, beside))
    return {
        name: call for call in calls if (name := key(call)) not in others and name not in booked
    }


def merged(many: Iterable[RoleTotal]) -> list[RoleTotal]:
    """Sum up by role, model and manager, in the order of their first appearance."""
    groups: dict[tuple[RoleName, str, str], list[RoleTotal]] = {}
    for one in many:
        groups.setdefault((one.role, one.model, one.manager), []).append(one)
    return [msgspec.structs.replace(group[0], **added(group)) for group in groups.values()]


def tokens(many: Iterable[RoleTotal], role: RoleName | None = None) -> int:
    """Count what was read and written, in one role or in all."""
    return sum(
        one.prompt_tokens + one.completion_tokens for one in many if role in (None, one.role)
    )
