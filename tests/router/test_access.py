"""Keys: who is let in, as whom, and for how long."""

import asyncio

import pytest

from router.access import Access, check_scope, new_key
from router.background import background_tasks
from router.errors import AccessDenied, BadRequest, NoKey
from router.trace.identity import LOCAL, SCOPES, Identity, KeyScope
from tests.router.accounts import KeptAccounts
from tests.router.clock import Clock, with_clock


async def test_without_keys_everybody_is_local() -> None:
    """Whatever is sent."""
    access = Access(KeptAccounts())
    assert await access.identify(None) == LOCAL
    assert await access.identify("Bearer rg_0_x") == LOCAL
    assert not await access.required()


async def test_a_key_tells_whose_it_is() -> None:
    """Its tenant and its scopes; the scheme is of any case."""
    text, key = new_key("acme", ["ask", "train"])
    access = Access(KeptAccounts(key))
    expected = Identity("acme", frozenset({"ask", "train"}), key.key_id)
    assert await access.identify(f"Bearer {text}") == expected
    assert await access.identify(f"bearer {text}") == expected


def test_the_secret_is_not_kept() -> None:
    """Neither it nor the key can be read from what is stored, and no two keys are the same."""
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
async def test_anything_else_is_refused(sent: str | None) -> None:
    """In a text that repeats nothing of what was sent."""
    text, key = new_key("acme", ["ask"])
    secret = text.split("_", 2)[2]
    parts = {"text": text, "key_id": key.key_id, "secret": secret, "other": "0badf00d"}
    with pytest.raises(NoKey) as caught:
        await Access(KeptAccounts(key)).identify(sent.format(**parts) if sent else sent)
    assert not any(part in str(caught.value) for part in parts.values())


async def test_a_key_that_is_good_here_alone() -> None:
    """A gateway that was started for a command knows its key, stores none, and lets nobody in
    whom it would not.
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
    """However many ask; so a revoked key is refused soon, and a new one is known."""

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


def test_keys_are_read_every_half_second_for_all_that_is_under_way() -> None:
    """However much that is; for nothing, not at all. What a revoked one asked for ends soon."""

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


def test_keys_are_needed_for_ever_after() -> None:
    """Once there was one, also if all are revoked, or lost."""

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
        AccessDenied, match=f"scope `{scope}`; this one has {', '.join(sorted(others))}"
    ):
        check_scope(Identity(None, others), scope)
    check_scope(Identity(None, frozenset({scope})), scope)


def test_a_tenant_operates_nothing() -> None:
    """Whatever the scopes of its key."""
    with pytest.raises(AccessDenied, match="Only the operator"):
        check_scope(Identity("acme", SCOPES), "operate")
    check_scope(Identity("acme", SCOPES), "train")


def test_nobody_gets_a_key_to_what_trials_cost() -> None:
    """The tenant of runs that nobody asked for stays the gateway's own."""
    with pytest.raises(BadRequest, match="choose another one"):
        new_key("shadow", ["ask"])
