"""What calls cost at given prices."""

from collections.abc import Iterable, Mapping

import msgspec

from benchmarks.study.cell import Prepared
from router.trace.call import Call, Price, RoleName, RoleTotal, added, totals
from serving.config.prices import price_of

Prices = Mapping[RoleName, Price | None]


def prices_in(prepared: Prepared) -> Prices:
    """Of all roles and the judge; None where nobody knows it. May block for seconds, by an import."""
    roles, config = dict(prepared.roles), prepared.config
    if config.distillation.judge is not None:
        roles["judge"] = config.distillation.judge
    return {name: price_of(role, config.prices) for name, role in roles.items()}


def spent(calls: Iterable[Call], prices: Prices) -> tuple[RoleTotal, ...]:
    """By role and model, at these prices: the calls of a workbench carry none."""

    def priced(call: Call) -> Call:
        price = prices.get(call.role)
        return msgspec.structs.replace(call, nano_usd=price.cost(call.usage) if price and call.usage else None)

    return tuple(totals(map(priced, calls)))


def merged(many: Iterable[RoleTotal]) -> list[RoleTotal]:
    """Sums by role and model, in the order of their first appearance."""
    groups: dict[tuple[RoleName, str], list[RoleTotal]] = {}
    for one in many:
        groups.setdefault((one.role, one.model), []).append(one)
    return [_sum(group) for group in groups.values()]


def dollars(many: Iterable[RoleTotal]) -> float | None:
    """Their cost; None where that of any call is unknown."""
    every = list(many)
    if any(one.attempts_without_cost for one in every):
        return None
    return sum(one.nano_usd or 0 for one in every) / 1e9


def _sum(group: list[RoleTotal]) -> RoleTotal:
    return RoleTotal(role=group[0].role, model=group[0].model, **added(group))
