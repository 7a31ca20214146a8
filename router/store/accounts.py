"""Storage of tenants and keys in a database."""

import time

import msgspec
from sqlalchemy import Connection, func, select

from router.access import Key, Spent, Tenant
from router.store.database import Database
from router.store.projection import put
from router.store.schema import KEYS, SPENDING, TENANTS, struct_of, structs


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
            row = {**msgspec.structs.asdict(key), "scopes": ",".join(sorted(key.scopes))}
            connection.execute(KEYS.insert().values(row))
            return first

        return await self._database.write(add)

    async def revoke_key(self, key_id: str) -> Key | None:
        """See `Accounts.revoke_key`. A key that was revoked before keeps its time of revocation."""

        def revoke(connection: Connection) -> Key | None:
            valid = (KEYS.c.key_id == key_id) & KEYS.c.revoked_at.is_(None)
            connection.execute(KEYS.update().where(valid).values(revoked_at=time.time()))
            return next((key for key in _keys(connection) if key.key_id == key_id), None)

        return await self._database.write(revoke)

    async def tenants(self) -> list[Tenant]:
        """See `Accounts.tenants`."""
        every = select(TENANTS).order_by(TENANTS.c.name)

        def read(connection: Connection) -> list[Tenant]:
            rows = connection.execute(every).mappings()
            return [struct_of(Tenant, row, indexes=row["indexes"].split(",")) for row in rows]

        return await self._database.read(read, behind=True)

    async def set_tenant(self, tenant: Tenant) -> None:
        """See `Accounts.set_tenant`."""
        await self._database.write(lambda connection: put(connection, TENANTS, [_row(tenant)]))

    async def spending(self, tenant: str) -> list[Spent]:
        """See `Accounts.spending`."""
        of_tenant = (
            select(SPENDING).where(SPENDING.c.tenant == tenant).order_by(SPENDING.c.period.desc())
        )
        return await self._database.read(lambda connection: structs(connection, Spent, of_tenant))


def _row(tenant: Tenant) -> dict[str, object]:
    return {**msgspec.structs.asdict(tenant), "indexes": ",".join(tenant.indexes)}


def _keys(connection: Connection) -> list[Key]:
    rows = connection.execute(select(KEYS).order_by(KEYS.c.created_at, KEYS.c.key_id))
    return [struct_of(Key, row, scopes=row["scopes"].split(",")) for row in rows.mappings()]
