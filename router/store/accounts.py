"""Storage of tenants, of keys and of the audit log in a database."""

import time
from collections.abc import Collection

import msgspec
from sqlalchemy import Connection, func, select

from router.access import ACT, CLOCK_SKEW_S, LAST_EVENT, AuditEvent, Key, Spent, Tenant
from router.store.database import Database, storable
from router.store.projection import put
from router.store.schema import AUDIT, KEYS, SPENDING, TENANTS, struct_of, structs

_LONGEST_TARGET = 200
"""Max characters of a target in the audit log. Names in refused requests may be longer."""


class SQLAccounts:
    """Implements `Accounts` with a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keys(self) -> list[Key]:
        """See `Accounts.keys`."""
        return await self._database.read(_keys, behind=True)

    async def add_key(self, key: Key) -> bool:
        """See `Accounts.add_key`."""

        def add(connection: Connection) -> bool:
            first = not connection.scalar(select(func.count()).select_from(KEYS))
            known = connection.scalars(select(TENANTS.c.name)).all()
            if key.tenant is not None and key.tenant not in known:
                connection.execute(TENANTS.insert().values(_row(Tenant(key.tenant))))
            _insert(connection, key)
            note(connection)
            return first

        return await self._database.write(add)

    async def expire_key(
        self, key_id: str, at: float | None, successor: Key | None = None
    ) -> Key | None:
        """See `Accounts.expire_key`."""
        valid = KEYS.c.revoked_at.is_(None) | (KEYS.c.revoked_at > time.time() + CLOCK_SKEW_S)
        expired = KEYS.update().where(KEYS.c.key_id == key_id, valid).values(revoked_at=at)

        def expire(connection: Connection) -> Key | None:
            if not connection.execute(expired).rowcount:
                return None
            if successor:
                _insert(connection, successor)
            note(connection)
            return next(key for key in _keys(connection) if key.key_id == key_id)

        return await self._database.write(expire)

    async def tenants(self) -> list[Tenant]:
        """See `Accounts.tenants`."""
        every = select(TENANTS).order_by(TENANTS.c.name)

        def read(connection: Connection) -> list[Tenant]:
            rows = connection.execute(every).mappings()
            return [struct_of(Tenant, row, indexes=row["indexes"].split(",")) for row in rows]

        return await self._database.read(read, behind=True)

    async def set_tenant(self, tenant: Tenant, only: Collection[str] | None = None) -> None:
        """See `Accounts.set_tenant`."""
        row = _row(tenant)

        def write(connection: Connection) -> None:
            note(connection)
            if only is not None:
                # The name is written too, so that the statement is valid if nothing changes.
                changed = {name: row[name] for name in ("name", *only)}
                stored = TENANTS.update().where(TENANTS.c.name == tenant.name)
                if connection.execute(stored.values(changed)).rowcount:
                    return
            put(connection, TENANTS, [row])

        await self._database.write(write)

    async def note(self) -> None:
        """See `Accounts.note`."""
        await self._database.write(note)

    async def audit(self, size: int, before: int = LAST_EVENT) -> list[AuditEvent]:
        """See `Accounts.audit`."""
        number = AUDIT.c.number
        newest = select(AUDIT).where(number < before).order_by(number.desc()).limit(size)
        return await self._database.read(
            lambda connection: structs(connection, AuditEvent, newest), behind=True
        )

    async def spending(self, tenant: str) -> list[Spent]:
        """See `Accounts.spending`."""
        of_tenant = (
            select(SPENDING).where(SPENDING.c.tenant == tenant).order_by(SPENDING.c.period.desc())
        )
        return await self._database.read(lambda connection: structs(connection, Spent, of_tenant))


def note(connection: Connection) -> None:
    """Write the current act, if there is one, to the audit log. Of two transactions that choose the
    same number, PostgreSQL refuses one, and `Database.write` repeats it.
    """
    if act := ACT.get():
        last = connection.scalar(select(func.max(AUDIT.c.number))) or 0
        target = storable(act.target[:_LONGEST_TARGET])
        row = msgspec.structs.asdict(act) | {"number": last + 1, "target": target}
        connection.execute(AUDIT.insert().values(row))


def _row(tenant: Tenant) -> dict[str, object]:
    return {**msgspec.structs.asdict(tenant), "indexes": ",".join(tenant.indexes)}


def _insert(connection: Connection, key: Key) -> None:
    row = {**msgspec.structs.asdict(key), "scopes": ",".join(sorted(key.scopes))}
    connection.execute(KEYS.insert().values(row))


def _keys(connection: Connection) -> list[Key]:
    rows = connection.execute(select(KEYS).order_by(KEYS.c.created_at, KEYS.c.key_id))
    return [struct_of(Key, row, scopes=row["scopes"].split(",")) for row in rows.mappings()]
