"""What many runs have spent."""

import msgspec

from router.ledger import RoleTotal


class UsageReport(msgspec.Struct, frozen=True):
    """Tokens of the runs of a span of time."""

    runs: int
    totals: tuple[RoleTotal, ...]
    """By role and model, in the order in which they first spent."""
