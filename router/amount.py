"""Amounts of tokens and of money, and the rest of a limit on tokens or on money."""

from typing import Literal

from router.frozen import Frozen


class Amount(Frozen, gc=False):
    """An amount of tokens and money that is spent, reserved or allowed."""

    tokens: int = 0
    """Prompt and completion tokens together."""
    nano_usd: int | None = 0
    """Billionths of a dollar; None if the cost is unknown, which does not mean zero."""

    def __add__(self, other: "Amount") -> "Amount":
        unknown = self.nano_usd is None or other.nano_usd is None
        return Amount(
            self.tokens + other.tokens,
            None if unknown else (self.nano_usd or 0) + (other.nano_usd or 0),
        )


class Remaining(Frozen):
    """The rest of a limit on tokens or on money."""

    of: Literal["tokens", "nano_usd"]
    """The unit of `count`."""
    count: int
    """The number of tokens, or of billionths of a dollar, that are left. Negative if the limit was
    lowered after more than the new limit had been spent.
    """

    def holds(self, amount: Amount) -> bool:
        """Return whether `amount` fits into the rest of the limit. An unknown cost counts as 0."""
        return (getattr(amount, self.of) or 0) <= self.count

    def against(self, amount: Amount) -> str:
        """Return a phrase for an error message, such as `5 tokens are left, and 8 tokens are
        needed`. `amount`: the amount that is needed. A negative rest is stated as 0.
        """
        needed = getattr(amount, self.of)
        needs = f", and {self._shown(needed)} are needed" if needed else ""
        return f"{self._shown(max(0, self.count))} are left{needs}"

    def _shown(self, count: int) -> str:
        return f"{count} tokens" if self.of == "tokens" else f"{count / 1e9:.9f} dollars"


NOTHING = Amount()
"""No tokens and no money."""
