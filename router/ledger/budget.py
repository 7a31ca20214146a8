"""The budget of a request, and its enforcement."""

from collections import Counter
from typing import Literal

from router.amount import NOTHING, Amount, Remaining
from router.errors import BudgetExhausted
from router.frozen import Frozen
from router.trace import RoleName


class Budget(Frozen):
    """Limits that a client sets for its request. None means no limit."""

    max_total_tokens: int | None = None
    """Max sum of the prompt and completion tokens of all calls."""
    max_nano_usd: int | None = None
    """Max cost of all calls, in billionths of a dollar."""
    role_tokens: dict[RoleName, int] = {}
    """Max sum of the prompt and completion tokens of all calls of a role, by role. For roles that
    are not listed, only `max_total_tokens` applies.
    """


UNLIMITED = Budget()


class Allowance:
    """Enforces the budget of one run. Before each call, its worst case (the max amount that it can
    cost) is reserved here, so that the budget is never exceeded.

    A part of the budget can be reserved for the answerer. Only calls of the answerer may use it.
    """

    def __init__(self, budget: Budget = UNLIMITED) -> None:
        self._budget = budget
        self._taken = NOTHING
        self._held = NOTHING
        self._by_role = Counter[RoleName]()
        self._under_way = 0

    @property
    def limited(self) -> bool:
        """True if the budget has any limit."""
        return self._budget != UNLIMITED

    def reserve(self, role: RoleName, amount: Amount) -> None:
        """Reserve `amount` for a call. Raises `BudgetExhausted`; then nothing is reserved."""
        held = NOTHING if role == "answer" else self._held
        self._check(role, amount, self._taken + held + amount)
        self._taken += amount
        self._by_role[role] += amount.tokens
        self._under_way += 1

    def take(self, role: RoleName, spent: Amount) -> None:
        """Count an amount spent before an interruption: by the run that this run resumes."""
        self._taken += Amount(spent.tokens, spent.nano_usd or 0)
        self._by_role[role] += spent.tokens

    def settle(self, role: RoleName, reserved: Amount, charged: Amount) -> None:
        """Count the amount `charged` for an ended call, instead of the amount `reserved`."""
        spent = 0 if charged.nano_usd is None else charged.nano_usd - (reserved.nano_usd or 0)
        self._taken += Amount(charged.tokens - reserved.tokens, spent)
        self._by_role[role] += charged.tokens - reserved.tokens
        self._under_way -= 1

    def reserve_for_answer(self, amount: Amount) -> Amount:
        """Reserve `amount` for the answerer, in place of the amount reserved before, and return
        that earlier amount. Raises `BudgetExhausted`; then the earlier reservation stays.
        """
        self._check("answer", amount, self._taken + amount)
        before = self._held
        self._held = amount
        return before

    def _check(self, role: RoleName, amount: Amount, wanted: Amount) -> None:
        """Raise `BudgetExhausted` if a call of `role` would exceed a limit. `amount`: the call's
        worst case. `wanted`: the total of the run including `amount`.
        """
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
        for of, name, limit, total in limits:
            if limit is None or (total is not None and total <= limit):
                continue

            added = getattr(amount, of)
            left = None if total is None or added is None else Remaining(of, limit - total + added)
            rest = f": {left.against(amount)}" if left else ""
            message = f"budget.{name} are not enough for another call{rest}; raise this limit."
            raise BudgetExhausted(message, contended=self._under_way > 0, left=left)
