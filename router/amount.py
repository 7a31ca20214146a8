"""Tokens with their cost."""

import msgspec


class Amount(msgspec.Struct, frozen=True):
    """What is spent, reserved, or allowed."""

    tokens: int = 0
    """Prompt and completion together."""
    nano_usd: int | None = 0
    """Billionths of a dollar; None where the price is not known, which is not zero."""

    def __add__(self, other: "Amount") -> "Amount":
        unknown = self.nano_usd is None or other.nano_usd is None
        return Amount(self.tokens + other.tokens, None if unknown else (self.nano_usd or 0) + (other.nano_usd or 0))


NOTHING = Amount()
