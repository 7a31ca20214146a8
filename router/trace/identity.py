"""Identities of callers."""

from typing import Literal, get_args

import msgspec

KeyScope = Literal["ask", "operate", "train"]
"""`ask`: put questions, and see what became of one's own. `operate`: run the gateway. `train`:
export traces.
"""
SCOPES: frozenset[KeyScope] = frozenset(get_args(KeyScope))
DEFAULT_TENANT = "default"
"""The tenant of runs without a key, or with one of no tenant."""

SHADOW_TENANT = "shadow"
"""The tenant of runs that nobody asked for; nobody has a key to it."""


class Identity(msgspec.Struct, frozen=True):
    """A key's owner."""

    tenant: str | None
    """None for the operator, who sees every tenant's runs."""
    scopes: frozenset[KeyScope]
    key_id: str = ""
    """Empty where no keys are in use."""

    @property
    def books_on(self) -> str:
        """The tenant that what it asks is booked to."""
        return self.tenant or DEFAULT_TENANT

    def sees(self, tenant: str) -> bool:
        """True where runs of `tenant` are its own to see."""
        return self.tenant is None or self.tenant == tenant


SHADOW = Identity(SHADOW_TENANT, frozenset())
"""The trials of executor versions."""
LOCAL = Identity(None, SCOPES)
"""The caller of a gateway that has no keys: someone on this machine."""
