"""What is left of a request's own budget."""

from collections import Counter
from typing import Literal

import msgspec

from router.amount import NOTHING, Amount, Remaining
from router.errors import BudgetExhausted
from router.trace import RoleName


class Budget(msgspec.Struct, frozen=True):
    """The limits that a client sets for its request; None is no limit."""

    max_total_tokens: int | None = None
    """Prompt and completion tokens of all calls together."""
    max_nano_usd: int | None = None
    """Billionths of a dollar."""
    role_tokens: dict[RoleName, int] = {}
    """The same as `max_total_tokens`, for single roles."""


UNLIMITED = Budget()


class Allowance:
    """Reserves the worst case of every call before it is made, so that no budget is ever exceeded.

    A part is held back for the answerer, whose calls may take it.
    """

    def __init__(self, budget: Budget = UNLIMITED) -> None:
        self._budget = budget
        self._taken = NOTHING
        self._held = NOTHING
        self._by_role: Counter[RoleName] = Counter()
        self._under_way = 0

    @property
    def limited(self) -> bool:
        """Whether anything is limited at all."""
        return self._budget != UNLIMITED

    def reserve(self, role: RoleName, amount: Amount) -> None:
        """Take `amount` from what is left. Raises `BudgetExhausted`, and takes nothing, where
        that is too little.
        """
        held = NOTHING if role == "answer" else self._held
        self._check(role, amount, self._taken + held + amount)
        self._taken += amount
        self._by_role[role] += amount.tokens
        self._under_way += 1

    def take(self, role: RoleName, spent: Amount) -> None:
        """Count what was spent before."""
        self._taken += Amount(spent.tokens, spent.nano_usd or 0)
        self._by_role[role] += spent.tokens

    def settle(self, role: RoleName, reserved: Amount, charged: Amount) -> None:
        """Give back what of `reserved` was not spent."""
        spent = 0 if charged.nano_usd is None else charged.nano_usd - (reserved.nano_usd or 0)
        self._taken += Amount(charged.tokens - reserved.tokens, spent)
        self._by_role[role] += charged.tokens - reserved.tokens
        self._under_way -= 1

    def reserve_for_answer(self, amount: Amount) -> Amount:
        """Keep `amount` for the answerer; what was kept before. Raises `BudgetExhausted`; then
        that still is.
        """
        self._check("answer", amount, self._taken + amount)
        before = self._held
        self._held = amount
        return before

    def _check(self, role: RoleName, amount: Amount, wanted: Amount) -> None:
        """`amount`: what is new. `wanted`: all that would then be taken or held."""
        budget = self._budget
        of_role = self._by_role[role] + amount.tokens
        cap = budget.role_tokens.get(role)
        tokens = budget.max_total_tokens
        nano_usd = budget.max_nano_usd
        limits: tuple[tuple[Literal["tokens", "nano_usd"], str, int | None, int | None], ...] = (
            ("tokens", f"role_budgets: {cap} tokens for {role}", cap, of_role),
            ("tokens", f"max_total_tokens: {tokens} tokens", tokens, wanted.tokens),
            (
                "nano_usd",
                f"max_cost_nano_usd: {(nano_usd or 0) / 1e9:.9f} dollars",
                nano_usd,
                wanted.nano_usd,
            ),
        )
        for of, said, limit, total in limits:
            if limit is None or (total is not None and total <= limit):
                continue
            new = getattr(amount, of)
            left = None if total is None or new is None else Remaining(of, limit - total + new)
            lacking = f": {left.against(amount)}" if left else ""
            refusal = f"budget.{said} do not suffice for another call{lacking}."
            raise BudgetExhausted(refusal, contended=self._under_way > 0, left=left)
