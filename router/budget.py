"""What one request may spend."""

import msgspec

from router.call import RoleName


class Budget(msgspec.Struct, frozen=True):
    """The limits that a client sets for its request; None is no limit."""

    max_total_tokens: int | None = None
    """Prompt and completion tokens of all calls together."""
    max_nano_usd: int | None = None
    """Billionths of a dollar."""
    role_tokens: dict[RoleName, int] = {}
    """The same as `max_total_tokens`, for single roles."""


UNLIMITED = Budget()
