"""Identities of callers: the tenant and the scopes of an API key."""

from collections.abc import Sequence
from typing import Literal, get_args

from router.errors import BadRequest
from router.frozen import Frozen
from router.trace.scope import (
    DEFAULT_INDEX,
    UPLOADS,
    DocumentFilter,
    Scope,
    no_index,
    uploads_of,
)

KeyScope = Literal["ask", "documents", "operate", "train"]
"""Scope of a key: a group of actions that the key permits. `ask`: send questions, and see the runs
of the key's tenant. `documents`: upload, list and delete the tenant's documents. `operate`:
administer the gateway. `train`: export traces.
"""
SCOPES: frozenset[KeyScope] = frozenset(get_args(KeyScope))
DEFAULT_TENANT = "default"
"""The tenant of requests without a key, or with a key that belongs to no tenant."""

SHADOW_TENANT = "shadow"
"""The tenant of shadow runs, which the gateway makes to try executor versions. It has no keys."""


class Identity(Frozen):
    """The caller of a request, as identified by the API key."""

    tenant: str | None
    """The key's tenant; None for the operator, who sees all tenants' runs."""
    scopes: frozenset[KeyScope]
    key_id: str = ""
    """Id of the key; empty if the gateway uses no keys."""
    indexes: tuple[str, ...] = (DEFAULT_INDEX,)
    """Names of the indexes that the tenant may search, sorted. The operator may search all indexes,
    but a request of the operator that names no index searches only these.
    """
    address: str = ""
    """Address from which the request came, for the audit log; empty if unknown."""

    @property
    def books_on(self) -> str:
        """The tenant to whose quotas the caller's requests are charged. For the operator, this is
        the default tenant.
        """
        return self.tenant or DEFAULT_TENANT

    def sees(self, tenant: str) -> bool:
        """Return True if the caller may see runs of `tenant`."""
        return self.tenant is None or self.tenant == tenant

    def scope(self, index: Sequence[str], only: DocumentFilter) -> Scope:
        """Return the scope (indexes and documents to search) of a request of the caller. `index`:
        names of indexes; empty for all indexes of the tenant. `only`: the documents to search.
        Raises `NotFound` for an index that the caller may not search, and `BadRequest` for the
        uploads of several tenants.
        """
        for name in index:
            if not self.may_search(name):
                raise no_index(name)
        names = sorted({self._in_scopes(name) for name in index}) or self.indexes
        if sum("/" in name for name in names) > 1:  # only an operator may search them at all
            raise BadRequest(
                f"index: has uploads of several tenants ({', '.join(names[:3])[:200]} …); name one."
            )
        return Scope(tuple(names), only)

    def may_search(self, index: str) -> bool:
        """Return True if the caller may search the index of this name."""
        return self.tenant is None or self._in_scopes(index) in self.indexes

    def _in_scopes(self, index: str) -> str:
        own = uploads_of(self.books_on)
        return own if index == UPLOADS and own in self.indexes else index


SHADOW = Identity(SHADOW_TENANT, frozenset())
"""The identity of shadow runs, which try executor versions."""
LOCAL = Identity(None, SCOPES)
"""The identity of every caller, if the gateway has no keys. Such a gateway serves only its own
machine.
"""
