"""What the same tokens would have cost with other models."""

from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.study.traffic import Traffic
from router.models.model import Usage
from router.trace.call import Price, RoleName, RoleTotal

PUBLISHED_RATIO = 4758 / 7577
"""Executor tokens of the distilled model over those of the frontier model that it replaces (TBSS Fig. 3)."""


class CostRow(msgspec.Struct, frozen=True):
    """A role with a model."""

    role: RoleName
    model: str
    attempts: int
    attempts_without_usage: int
    prompt_tokens: float
    cached_tokens: float | None
    """Of the prompt tokens; None where no endpoint said."""
    completion_tokens: float
    wasted_tokens: int
    dollars: float | None
    """None where the price or the usage of any call is unknown, which is not zero."""


class Costs(msgspec.Struct, frozen=True):
    """Of all roles."""

    rows: tuple[CostRow, ...]

    @property
    def dollars(self) -> float | None:
        """In all; None where any is unknown."""
        known = [row.dollars for row in self.rows if row.dollars is not None]
        return sum(known) if len(known) == len(self.rows) else None


def as_booked(traffic: Traffic, prices: Mapping[str, Price]) -> Costs:
    """At the prices of the time, or at those in `prices`."""
    return Costs(tuple(_row(one, one.model, prices.get(one.model)) for one in traffic.totals))


def what_if(
    traffic: Traffic, prices: Mapping[str, Price], instead: Mapping[RoleName, str], ratio: float = 1.0
) -> Costs:
    """With other models in some roles, each of which is in `prices`, reading and writing `ratio` times the tokens."""
    return Costs(
        tuple(
            _row(one, instead[one.role], prices[instead[one.role]], ratio)
            if one.role in instead
            else _row(one, one.model, prices.get(one.model))
            for one in traffic.totals
        )
    )


def saved_share(before: Costs, after: Costs) -> float | None:
    """Of the cost; None where it is not known, or nothing."""
    if before.dollars is None or after.dollars is None or before.dollars == 0:
        return None
    return 1 - after.dollars / before.dollars


def token_share(costs: Costs, roles: Sequence[RoleName]) -> float:
    """The share of all tokens that these roles read and wrote."""
    tokens = {id(row): row.prompt_tokens + row.completion_tokens for row in costs.rows}
    whole = sum(tokens.values())
    return sum(tokens[id(row)] for row in costs.rows if row.role in roles) / whole if whole else 0.0


def _row(one: RoleTotal, model: str, price: Price | None, ratio: float = 1.0) -> CostRow:
    prompt, completion = ratio * one.prompt_tokens, ratio * one.completion_tokens
    cached = None if one.cached_tokens is None else ratio * one.cached_tokens
    nano_usd: int | None = None
    if price is None and not one.attempts_without_cost:
        nano_usd = one.nano_usd
    elif price is not None and not one.attempts_without_usage:
        nano_usd = price.cost(Usage(round(prompt), round(completion), None if cached is None else round(cached)))
    return CostRow(
        one.role,
        model,
        one.attempts,
        one.attempts_without_usage,
        prompt,
        cached,
        completion,
        one.wasted_tokens,
        None if nano_usd is None else nano_usd / 1e9,
    )
