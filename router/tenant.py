"""A tenant: whose requests they are, and what it may spend."""

import msgspec


class Tenant(msgspec.Struct, frozen=True):
    """One tenant's settings; None is no limit. Days and months are UTC's."""

    name: str
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    nano_usd_per_day: int | None = None
    """Billionths of a dollar."""
    nano_usd_per_month: int | None = None
    requests_per_day: int | None = None
    requests_per_month: int | None = None
    runs_in_flight: int | None = None
    redact: bool = False
    """Keep the figures of its runs, and none of their texts."""
    training: bool = True
    """Whether its runs may train an executor."""

    @property
    def limited(self) -> bool:
        """Whether anything of what it spends is limited, so that it must be reserved before."""
        limits = (self.tokens_per_day, self.tokens_per_month, self.nano_usd_per_day, self.nano_usd_per_month)
        return any(limit is not None for limit in limits)
