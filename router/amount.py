"""Tokens with their cost."""

from typing import Literal

import msgspec


class Amount(msgspec.Struct, frozen=True, gc=False):
    """Tokens and money that are spent, reserved, or allowed."""

    tokens: int = 0
    """Prompt and completion together."""
    nano_usd: int | None = 0
    """Billionths of a dollar; None if the price is unknown, which is not zero."""

    def __add__(self, other: "Amount") -> "Amount":
        unknown = self.nano_usd is None or other.nano_usd is None
        return Amount(
            self.tokens + other.tokens,
            None if unknown else (self.nano_usd or 0) + (other.nano_usd or 0),
        )


class Remaining(msgspec.Struct, frozen=True):
    """The rest of a limit, in tokens or in money."""

    of: Literal["tokens", "nano_usd"]
    count: int

    def holds(self, amount: Amount) -> bool:
        """Return whether `amount` fits."""
        return (getattr(amount, self.of) or 0) <= self.count

    def against(self, amount: Amount) -> str:
        """Describe, for an error message, how much is left and how much `amount` needs. A limit
        that was lowered below what is spent leaves 0.
        """
        needed = getattr(amount, self.of)
        needs = f", and {self._shown(needed)} are needed" if needed else ""
        return f"{self._shown(max(0, self.count))} are left{needs}"

    def _shown(self, count: int) -> str:
        return f"{count} tokens" if self.of == "tokens" else f"{count / 1e9:.9f} dollars"


NOTHING = Amount()
