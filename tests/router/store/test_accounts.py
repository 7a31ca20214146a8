"""Tenants and keys in a real database of each kind."""

import msgspec
from sqlalchemy import insert

from router.access import Spent, Tenant, new_key
from router.store import Database, SQLAccounts
from router.store.schema import SPENDING
from router.trace.identity import SCOPES


async def test_keys_are_read_back_oldest_first(database: Database) -> None:
    """Adding a key reports whether it is the first of all, and creates its tenant if needed."""
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
    """The first time of revocation stays, and no successor is stored. An unknown key is not
    revoked.
    """
    accounts = SQLAccounts(database)
    _, key = new_key("acme", ["ask"])
    await accounts.add_key(key)
    revoked = await accounts.change_key(key.key_id, {"revoked_at": 1.0})
    assert revoked is not None
    assert revoked.revoked_at == 1.0
    successor = new_key("acme", ["ask"])[1]
    assert await accounts.change_key(key.key_id, {"revoked_at": None}, successor) is None
    assert await accounts.keys() == [revoked]
    assert await accounts.change_key("nothing", {"revoked_at": 1.0}, successor) is None


async def test_a_replaced_key_and_its_successor_are_stored_together(database: Database) -> None:
    accounts = SQLAccounts(database)
    _, key = new_key("acme", ["ask"])
    _, successor = new_key("acme", ["ask", "train"])
    await accounts.add_key(key)
    end = successor.created_at + 3600
    replaced = await accounts.change_key(key.key_id, {"revoked_at": end}, successor)
    assert replaced == msgspec.structs.replace(key, revoked_at=end)
    assert await accounts.keys() == [replaced, successor]
    unlimited = await accounts.change_key(key.key_id, {"revoked_at": None})
    assert unlimited == key


async def test_only_the_named_settings_of_a_tenant_are_replaced(database: Database) -> None:
    """A tenant that is not stored yet is stored whole."""
    accounts = SQLAccounts(database)
    await accounts.set_tenant(Tenant("acme", 1, 2, redact=True), ["redact"])
    await accounts.set_tenant(Tenant("acme", 3, 4), ["tokens_per_day"])
    assert await accounts.tenants() == [Tenant("acme", 3, 2, redact=True)]
    await accounts.set_tenant(Tenant("acme"), [])
    assert await accounts.tenants() == [Tenant("acme", 3, 2, redact=True)]


async def test_settings_replace_all_earlier_ones_of_the_tenant(database: Database) -> None:
    accounts = SQLAccounts(database)
    full = Tenant("acme", 1, 2, 3_000_000_000_000, 4, 5, 6, 7, redact=True, training=False)
    await accounts.set_tenant(full)
    await accounts.set_tenant(Tenant("other"))
    assert await accounts.tenants() == [full, Tenant("other")]
    await accounts.set_tenant(Tenant("acme"))
    assert await accounts.tenants() == [Tenant("acme"), Tenant("other")]


async def test_spending_is_listed_by_tenant_newest_first(database: Database) -> None:
    rows = [
        {"tenant": tenant, "period": period, "requests": 1, "tokens": 2, "nano_usd": 3}
        for tenant in ("acme", "other")
        for period in ("2026-11", "2026-11-20", "2026-11-21")
    ]
    await database.write(lambda connection: connection.execute(insert(SPENDING), rows))
    spent = await SQLAccounts(database).spending("acme")
    assert spent == [Spent(period, 1, 2, 3) for period in ("2026-11-21", "2026-11-20", "2026-11")]
    assert await SQLAccounts(database).spending("nobody") == []
