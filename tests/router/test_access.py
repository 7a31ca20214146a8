"""API keys: authentication, tenants, scopes and revocation."""

import asyncio

import pytest

from router.access import Access, check_scope, new_key
from router.background import background_tasks
from router.errors import AccessDenied, BadRequest, NoKey
from router.trace.identity import LOCAL, SCOPES, Identity, KeyScope
from tests.router.accounts import KeptAccounts
from tests.router.clock import Clock, with_clock


async def test_without_keys_every_caller_is_the_local_one() -> None:
    """The metadata makes no difference."""
    access = Access(KeptAccounts())
    assert await access.identify(None) == LOCAL
    assert await access.identify("Bearer rg_0_x") == LOCAL
    assert not await access.required()


async def test_a_key_gives_its_tenant_and_its_scopes() -> None:
    """The scheme is matched in any case."""
    text, key = new_key("acme", ["ask", "train"])
    access = Access(KeptAccounts(key))
    expected = Identity("acme", frozenset({"ask", "train"}), key.key_id)
    assert await access.identify(f"Bearer {text}") == expected
    assert await access.identify(f"bearer {text}") == expected


def test_the_secret_is_not_stored() -> None:
    """Neither the secret nor the key can be read from the stored row, and no two keys are equal."""
    text, key = new_key(None, SCOPES, "mine")
    prefix, key_id, secret = text.split("_", 2)
    assert (prefix, key_id) == ("rg", key.key_id)
    assert len(secret) >= 40
    assert secret not in str(key)
    assert new_key(None, SCOPES)[0] != text


@pytest.mark.parametrize(
    "sent",
    [
        None,
        "",
        "{text}",
        "Basic {text}",
        "Bearer {text}x",
        "Bearer x{text}",
        "Bearer rg_{other}_{secret}",
        "Bearer rg_{key_id}_{other}",
        "Bearer rg_{key_id}_",
        "Bearer rg_{key_id}_\udcff",
        "Bearer sk-something-else",
        "Bearer {text}\n",
    ],
)
async def test_invalid_credentials_are_refused_without_repeating_them(sent: str | None) -> None:
    text, key = new_key("acme", ["ask"])
    secret = text.split("_", 2)[2]
    parts = {"text": text, "key_id": key.key_id, "secret": secret, "other": "0badf00d"}
    with pytest.raises(NoKey) as caught:
        await Access(KeptAccounts(key)).identify(sent.format(**parts) if sent else sent)
    assert not any(part in str(caught.value) for part in parts.values())


async def test_the_key_of_a_command_works_in_its_own_gateway_only() -> None:
    """The gateway of a command knows its key without storing it, and refuses callers that it
    would refuse without that key.
    """
    text, extra = new_key(None, SCOPES)
    others, key = new_key("acme", ["ask"])
    accounts = KeptAccounts(key)
    access = Access(accounts, extra)
    assert (await access.identify(f"Bearer {text}")).tenant is None
    assert (await access.identify(f"Bearer {others}")).tenant == "acme"
    with pytest.raises(NoKey):
        await access.identify(None)
    assert [stored.key_id for stored in await accounts.keys()] == [key.key_id]
    assert await Access(KeptAccounts(), extra).identify(None) == LOCAL


def test_keys_are_read_every_half_second() -> None:
    """The number of requests makes no difference, so a revoked key is refused soon and a new key
    is known soon.
    """

    async def main(clock: Clock) -> None:
        text, key = new_key("acme", ["ask"])
        accounts = KeptAccounts(key)
        access = Access(accounts)
        await asyncio.gather(*(access.identify(f"Bearer {text}") for _ in range(50)))
        assert accounts.reads == 1
        await accounts.revoke_key(key.key_id)
        await clock.advance(0.4)
        await access.identify(f"Bearer {text}")
        await clock.advance(0.1)
        with pytest.raises(NoKey):
            await access.identify(f"Bearer {text}")
        assert accounts.reads == 2

    with_clock(main)


def test_requests_in_progress_read_the_keys_every_half_second() -> None:
    """Their number makes no difference, and without any the keys are not read.

    The request of a revoked key ends soon.
    """

    async def main(clock: Clock) -> None:
        keys = [new_key("acme", ["ask"])[1] for _ in range(2)]
        accounts = KeptAccounts(*keys)
        access = Access(accounts)

        async def serve(key_id: str) -> None:
            with access.serving(Identity("acme", frozenset(), key_id)):
                await asyncio.Event().wait()

        async with background_tasks(access.follow()):
            await clock.advance(5)
            assert accounts.reads == 0
            revoked, going_on = (
                [asyncio.create_task(serve(key.key_id)) for _ in range(50)] for key in keys
            )
            await clock.advance(0.5)
            await accounts.revoke_key(keys[0].key_id)
            assert accounts.reads == 1
            await clock.advance(0.5)
            assert accounts.reads == 2
            assert all(isinstance(task.exception(), NoKey) for task in revoked)
            for task in going_on:
                assert not task.done()
                task.cancel()
            await asyncio.wait(going_on)
            assert all(task.cancelled() for task in going_on)

    with_clock(main)


def test_keys_stay_required_after_all_are_revoked_or_lost() -> None:
    async def main(clock: Clock) -> None:
        accounts = KeptAccounts()
        access = Access(accounts)
        assert await access.identify(None) == LOCAL
        _, key = new_key("acme", ["ask"])
        await accounts.add_key(key)
        await accounts.revoke_key(key.key_id)
        await clock.advance(1)
        with pytest.raises(NoKey):
            await access.identify(None)
        accounts.lose_all()
        await clock.advance(1)
        with pytest.raises(NoKey):
            await access.identify(None)

    with_clock(main)


@pytest.mark.parametrize("scope", sorted(SCOPES))
def test_a_missing_scope_is_named(scope: KeyScope) -> None:
    others = SCOPES - {scope}
    with pytest.raises(
        AccessDenied, match=f"scope `{scope}`; your key has {', '.join(sorted(others))}"
    ):
        check_scope(Identity(None, others), scope)
    check_scope(Identity(None, frozenset({scope})), scope)


def test_the_key_of_a_tenant_operates_nothing() -> None:
    """The scopes of the key make no difference."""
    with pytest.raises(AccessDenied, match="Only the operator"):
        check_scope(Identity("acme", SCOPES), "operate")
    check_scope(Identity("acme", SCOPES), "train")


def test_no_key_is_made_for_the_tenant_of_trials() -> None:
    """Trials are runs without a client, and their tenant stays the gateway's own."""
    with pytest.raises(BadRequest, match="choose another name"):
        new_key("shadow", ["ask"])
