"""Identities of callers: the tenant and the scopes of an API key."""

from typing import Literal, get_args

import msgspec

KeyScope = Literal["ask", "operate", "train"]
"""Scope of a key, which decides what its owner may do. `ask`: send questions, and see the runs of
the key's tenant. `operate`: administer the gateway. `train`: export traces.
"""
SCOPES: frozenset[KeyScope] = frozenset(get_args(KeyScope))
DEFAULT_TENANT = "default"
"""The tenant of requests without a key, or with a key that belongs to no tenant."""

SHADOW_TENANT = "shadow"
"""The tenant of shadow runs, which the gateway makes to try executor versions. It has no keys."""


class Identity(msgspec.Struct, frozen=True):
    """The caller of a request, as identified by the API key."""

    tenant: str | None
    """The key's tenant; None for the operator, who sees all tenants' runs."""
    scopes: frozenset[KeyScope]
    key_id: str = ""
    """Id of the key; empty if the gateway uses no keys."""

    @property
    def books_on(self) -> str:
        """The tenant to which the caller's requests are booked."""
        return self.tenant or DEFAULT_TENANT

    def sees(self, tenant: str) -> bool:
        """Return whether the caller may see runs of `tenant`."""
        return self.tenant is None or self.tenant == tenant


SHADOW = Identity(SHADOW_TENANT, frozenset())
"""The identity of shadow runs, which try executor versions."""
LOCAL = Identity(None, SCOPES)
"""The identity of every caller of a gateway without keys, which serves only its own machine."""
