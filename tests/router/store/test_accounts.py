"""Tenants and keys in a real database of each kind."""

from sqlalchemy import insert

from router.access import Spent, Tenant, new_key
from router.store import Database, SQLAccounts
from router.store.schema import SPENDING
from router.trace.identity import SCOPES


async def test_keys_come_back_as_they_were(database: Database) -> None:
    """Oldest first; adding tells which was the first of all, and makes its tenant, unless it is
    there.
    """
    accounts = SQLAccounts(database)
    limited = Tenant("acme", tokens_per_day=5)
    await accounts.set_tenant(limited)
    keys = [
        new_key(*owner)[1]
        for owner in ((None, SCOPES, "mine"), ("acme", ["ask"]), ("zeta", ["ask"]))
    ]
    assert [await accounts.add_key(key) for key in keys] == [True, False, False]
    assert await accounts.keys() == keys
    assert await accounts.tenants() == [limited, Tenant("zeta")]


async def test_a_revoked_key_stays_revoked(database: Database) -> None:
    """From the first time on; what is not there is not revoked."""
    accounts = SQLAccounts(database)
    _, key = new_key("acme", ["ask"])
    await accounts.add_key(key)
    revoked = await accounts.revoke_key(key.key_id)
    assert revoked is not None
    assert revoked.revoked_at is not None
    assert await accounts.revoke_key(key.key_id) == revoked
    assert await accounts.keys() == [revoked]
    assert await accounts.revoke_key("nothing") is None


async def test_settings_replace_what_was_set(database: Database) -> None:
    """All of them, of one tenant."""
    accounts = SQLAccounts(database)
    full = Tenant("acme", 1, 2, 3_000_000_000_000, 4, 5, 6, 7, redact=True, training=False)
    await accounts.set_tenant(full)
    await accounts.set_tenant(Tenant("other"))
    assert await accounts.tenants() == [full, Tenant("other")]
    await accounts.set_tenant(Tenant("acme"))
    assert await accounts.tenants() == [Tenant("acme"), Tenant("other")]


async def test_spending_is_a_tenant_s_own(database: Database) -> None:
    """Newest first."""
    rows = [
        {"tenant": tenant, "period": period, "requests": 1, "tokens": 2, "nano_usd": 3}
        for tenant in ("acme", "other")
        for period in ("2026-11", "2026-11-20", "2026-11-21")
    ]
    await database.write(lambda connection: connection.execute(insert(SPENDING), rows))
    spent = await SQLAccounts(database).spending("acme")
    assert spent == [Spent(period, 1, 2, 3) for period in ("2026-11-21", "2026-11-20", "2026-11")]
    assert await SQLAccounts(database).spending("nobody") == []
