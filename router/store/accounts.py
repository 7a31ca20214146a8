"""Storage of tenants, keys, the audit log and warnings about quotas in a database."""

import time
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import asdict
from sqlalchemy import Connection, func, select

from router.access import ACT, CLOCK_SKEW_S, LAST_EVENT, AuditEvent, Key, QuotaUse, Spent, Tenant
from router.frozen import Frozen
from router.store.database import Database, storable
from router.store.migration import lock
from router.store.projection import put
from router.store.schema import AUDIT, KEYS, SPENDING, TENANTS, WARNINGS, struct_of, structs

_LOCK = 2
"""Number of the lock that a transaction takes before it writes the audit log or warnings (see
`migration.lock`).
"""
_LONGEST_TARGET = 200
"""Max characters of `target` in the audit log. Longer targets are cut off, because a refused
request may contain a name of any length.
"""


class SQLAccounts(Frozen):
    """Implements `Accounts` with a database."""

    database: Database

    async def keys(self) -> list[Key]:
        """See `Accounts.keys`."""
        return await self.database.read(_keys, behind=True)

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

        return await self.database.write(add)

    async def change_key(
        self, key_id: str, changes: Mapping[str, float | None], successor: Key | None = None
    ) -> Key | None:
        """See `Accounts.change_key`."""
        valid = KEYS.c.revoked_at.is_(None) | (KEYS.c.revoked_at > time.time() + CLOCK_SKEW_S)
        # `changes` may be empty, but an UPDATE must set a column, so it also sets the identifier.
        changed = KEYS.update().where(KEYS.c.key_id == key_id, valid)
        changed = changed.values({"key_id": key_id, **changes})

        def change(connection: Connection) -> Key | None:
            if not connection.execute(changed).rowcount:
                return None
            if successor:
                _insert(connection, successor)
            note(connection)
            return next(key for key in _keys(connection) if key.key_id == key_id)

        return await self.database.write(change)

    async def tenants(self) -> list[Tenant]:
        """See `Accounts.tenants`."""
        every = select(TENANTS).order_by(TENANTS.c.name)

        def read(connection: Connection) -> list[Tenant]:
            rows = connection.execute(every).mappings()
            return [struct_of(Tenant, row, indexes=row["indexes"].split(",")) for row in rows]

        return await self.database.read(read, behind=True)

    async def set_tenant(self, tenant: Tenant, only: Collection[str] | None = None) -> None:
        """See `Accounts.set_tenant`."""
        row = _row(tenant)

        def write(connection: Connection) -> None:
            note(connection)
            if only is not None:
                # `only` may be empty, but an UPDATE must set a column, so it also sets the name.
                changed = {name: row[name] for name in ("name", *only)}
                stored = TENANTS.update().where(TENANTS.c.name == tenant.name)
                if connection.execute(stored.values(changed)).rowcount:
                    return
            put(connection, TENANTS, [row])

        await self.database.write(write)

    async def note(self) -> None:
        """See `Accounts.note`."""
        await self.database.write(note)

    async def audit(self, size: int, before: int = LAST_EVENT) -> list[AuditEvent]:
        """See `Accounts.audit`."""
        number = AUDIT.c.number
        newest = select(AUDIT).where(number < before).order_by(number.desc()).limit(size)
        return await self.database.read(structs, AuditEvent, newest, behind=True)

    async def spending(self, tenant: str) -> list[Spent]:
        """See `Accounts.spending`."""
        period = SPENDING.c.period
        wanted = SPENDING.c.tenant == tenant, func.length(period) <= len("2026-11-21")
        of_tenant = select(SPENDING).where(*wanted).order_by(period.desc())
        return await self.database.read(structs, Spent, of_tenant)

    async def claim_warnings(
        self, uses: Sequence[QuotaUse], since: float
    ) -> list[tuple[QuotaUse, bool]]:
        """Return the entries of `uses` for which a warning is due now, and record an attempt to
        send each warning. Each entry is paired with a bool: True for the first attempt of any
        gateway. A warning is due if no gateway has tried to send it, or if the last attempt was
        before `since` (Unix time) and `delivered` was not called.
        """

        def claim(connection: Connection) -> list[tuple[QuotaUse, bool]]:
            lock(connection, _LOCK)
            current = WARNINGS.c.period.in_({use.period for use in uses})
            known = connection.execute(select(WARNINGS).where(current))
            tried = {tuple(key): tried_at for *key, _, tried_at in known}
            # A new warning counts as tried at time 1, so it is due. The time of a delivered warning
            # is None, which counts as `since`, so it is not due.
            due = [use for use in uses if (tried.get(use.key, 1.0) or since) < since]
            _put_warnings(connection, due, time.time())
            return [(use, use.key not in tried) for use in due]

        return await self.database.write(claim)

    async def delivered(self, use: QuotaUse) -> None:
        """Record that the warning about `use` was delivered, so that it is not sent again."""
        await self.database.write(_put_warnings, [use], None)


def note(connection: Connection) -> None:
    """If the current task carries out an administrative act (`ACT`), write the act to the audit
    log. A lock keeps other transactions from choosing the same event number.
    """
    if act := ACT.get():
        lock(connection, _LOCK)
        last = connection.scalar(select(func.max(AUDIT.c.number))) or 0
        target = storable(act.target[:_LONGEST_TARGET])
        row = asdict(act) | {"number": last + 1, "target": target}
        connection.execute(AUDIT.insert().values(row))


def _put_warnings(connection: Connection, uses: Sequence[QuotaUse], tried_at: float | None) -> None:
    rows = [asdict(use) | {"tried_at": tried_at} for use in uses]
    put(connection, WARNINGS, rows)


def _row(tenant: Tenant) -> dict[str, object]:
    return {**asdict(tenant), "indexes": ",".join(tenant.indexes)}


def _insert(connection: Connection, key: Key) -> None:
    row = {**asdict(key), "scopes": ",".join(sorted(key.scopes))}
    connection.execute(KEYS.insert().values(row))


def _keys(connection: Connection) -> list[Key]:
    rows = connection.execute(select(KEYS).order_by(KEYS.c.created_at, KEYS.c.key_id))
    return [struct_of(Key, row, scopes=row["scopes"].split(",")) for row in rows.mappings()]
