"""Tenants and keys in a database."""

import time
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from router.access import Key, Spent, Tenant
from router.store.database import Database
from router.store.rows import struct_of
from router.store.schema import KEYS, SPENDING, TENANTS


class SQLAccounts:
    """`Accounts` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keys(self) -> list[Key]:
        """See `Accounts.keys`: one query of one small table."""
        return await self._database.read(_keys, behind=True)

    async def add_key(self, key: Key) -> bool:
        """See `Accounts.add_key`."""

        def add(connection: Connection) -> bool:
            first = not connection.scalar(select(func.count()).select_from(KEYS))
            if key.tenant is not None and _tenant(connection, key.tenant) is None:
                connection.execute(TENANTS.insert().values(msgspec.structs.asdict(Tenant(key.tenant))))
            row = {**msgspec.structs.asdict(key), "scopes": ",".join(sorted(key.scopes))}
            connection.execute(KEYS.insert().values(row))
            return first

        return await self._database.write(add)

    async def revoke_key(self, key_id: str) -> Key | None:
        """See `Accounts.revoke_key`; one that was revoked before stays as it is."""

        def revoke(connection: Connection) -> Key | None:
            good = (KEYS.c.key_id == key_id) & KEYS.c.revoked_at.is_(None)
            connection.execute(KEYS.update().where(good).values(revoked_at=time.time()))
            return next((key for key in _keys(connection) if key.key_id == key_id), None)

        return await self._database.write(revoke)

    async def tenants(self) -> list[Tenant]:
        """See `Accounts.tenants`."""

        def read(connection: Connection) -> list[Tenant]:
            rows = connection.execute(select(TENANTS).order_by(TENANTS.c.name))
            return [msgspec.convert(row, Tenant, from_attributes=True) for row in rows]

        return await self._database.read(read, behind=True)

    async def set_tenant(self, tenant: Tenant) -> None:
        """See `Accounts.set_tenant`."""

        def write(connection: Connection) -> None:
            row = msgspec.structs.asdict(tenant)
            if _tenant(connection, tenant.name) is None:
                connection.execute(TENANTS.insert().values(row))
            else:
                connection.execute(TENANTS.update().where(TENANTS.c.name == tenant.name).values(row))

        await self._database.write(write)

    async def spending(self, tenant: str) -> list[Spent]:
        """See `Accounts.spending`."""
        of_tenant = select(SPENDING).where(SPENDING.c.tenant == tenant).order_by(SPENDING.c.period.desc())

        def read(connection: Connection) -> list[Spent]:
            return [msgspec.convert(row, Spent, from_attributes=True) for row in connection.execute(of_tenant)]

        return await self._database.read(read)


def _keys(connection: Connection) -> list[Key]:
    rows = connection.execute(select(KEYS).order_by(KEYS.c.created_at, KEYS.c.key_id))
    return [struct_of(Key, row, scopes=row["scopes"].split(",")) for row in rows.mappings()]


def _tenant(connection: Connection, name: str) -> Any:
    return connection.scalar(select(TENANTS.c.name).where(TENANTS.c.name == name))
