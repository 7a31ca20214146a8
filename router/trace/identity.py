"""Identities of callers."""

from typing import Literal, get_args

import msgspec

KeyScope = Literal["ask", "operate", "train"]
"""`ask`: send questions and see one's own runs. `operate`: run the gateway. `train`: export
traces.
"""
SCOPES: frozenset[KeyScope] = frozenset(get_args(KeyScope))
DEFAULT_TENANT = "default"
"""The tenant of requests without a key, or with a key of no tenant."""

SHADOW_TENANT = "shadow"
"""The tenant of runs that no client asked for; it has no keys."""


class Identity(msgspec.Struct, frozen=True):
    """The owner of a key."""

    tenant: str | None
    """None for the operator, who sees all tenants' runs."""
    scopes: frozenset[KeyScope]
    key_id: str = ""
    """Empty if no keys are in use."""

    @property
    def books_on(self) -> str:
        """The tenant to which its requests are booked."""
        return self.tenant or DEFAULT_TENANT

    def sees(self, tenant: str) -> bool:
        """Return whether it may see runs of `tenant`."""
        return self.tenant is None or self.tenant == tenant


SHADOW = Identity(SHADOW_TENANT, frozenset())
"""The identity of trials of executor versions."""
LOCAL = Identity(None, SCOPES)
"""The caller of a gateway without keys: someone on this machine."""
