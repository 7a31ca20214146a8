"""Tenants and keys, as they are stored."""

from typing import Protocol

import msgspec

from router.identity import KeyScope
from router.tenant import Tenant


class Key(msgspec.Struct, frozen=True):
    """An API key, as far as it is kept: its secret is not."""

    key_id: str
    """Public; a part of the key."""
    tenant: str | None
    """None for the operator's."""
    scopes: frozenset[KeyScope]
    label: str
    """What its owner is to know it by."""
    secret_sha256: str
    created_at: float
    """Unix time, seconds."""
    revoked_at: float | None = None
    """None while it is good."""


class Spent(msgspec.Struct, frozen=True):
    """What counts against a tenant's quotas."""

    period: str
    """A day or a month in UTC: 2026-11-21 or 2026-11."""
    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0
    """Billionths of a dollar."""
    reserved_tokens: int = 0
    """What running calls may come to at most."""
    reserved_nano_usd: int = 0


class Accounts(Protocol):
    """Keeps tenants and keys. Every method raises `StoreFailed`."""

    async def keys(self) -> list[Key]:
        """All keys, oldest first, revoked ones too."""

    async def add_key(self, key: Key) -> bool:
        """Keep a key, and its tenant where there is none of that name; whether it is the first of all keys."""

    async def revoke_key(self, key_id: str) -> Key | None:
        """The key, which is good no longer; None where there is none of that name."""

    async def tenants(self) -> list[Tenant]:
        """All of them, by name."""

    async def set_tenant(self, tenant: Tenant) -> None:
        """Keep a tenant's settings, in place of those it had."""

    async def spending(self, tenant: str) -> list[Spent]:
        """What the tenant has spent, newest first, one entry for each day and each month in which it asked."""
