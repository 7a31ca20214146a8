"""Tenants and keys in memory."""

from collections.abc import Collection, Mapping

import msgspec

from router.access import LAST_EVENT, Access, AuditEvent, Key, Spent, Tenant


class KeptAccounts:
    """An account store in memory that counts the reads of its keys."""

    def __init__(self, *keys: Key) -> None:
        self._keys = {key.key_id: key for key in keys}
        self.reads = 0

    async def keys(self) -> list[Key]:
        self.reads += 1
        return list(self._keys.values())

    async def add_key(self, key: Key) -> bool:
        first = not self._keys
        self._keys[key.key_id] = key
        return first

    async def revoke_key(self, key_id: str) -> Key | None:
        if key_id in self._keys:
            self._keys[key_id] = msgspec.structs.replace(self._keys[key_id], revoked_at=1.0)
        return self._keys.get(key_id)

    async def change_key(
        self, key_id: str, changes: Mapping[str, float | None], successor: Key | None = None
    ) -> Key | None:
        raise NotImplementedError

    async def tenants(self) -> list[Tenant]:
        return []

    async def set_tenant(self, tenant: Tenant, only: Collection[str] | None = None) -> None:
        raise NotImplementedError

    async def note(self) -> None:
        raise NotImplementedError

    async def audit(self, size: int, before: int = LAST_EVENT) -> list[AuditEvent]:
        return []

    async def spending(self, tenant: str) -> list[Spent]:
        return []

    def lose_all(self) -> None:
        """Remove all keys, like an operator who empties the table."""
        self._keys.clear()


def open_access() -> Access:
    """Return the access of a gateway that has no keys, so that it admits every caller."""
    return Access(KeptAccounts())
