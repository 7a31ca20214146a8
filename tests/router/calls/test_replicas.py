"""Which replica a call goes to."""

from functools import partial

import pytest

from router.calls import Replica
from router.calls.replicas import Endpoint, choose, chosen
from router.errors import UpstreamUnavailable
from router.models import ScriptedModel
from tests.router.clock import Clock, with_clock

KEYS = [f"run-{number}" for number in range(300)]


def replicas(count: int) -> tuple[Replica, ...]:
    """Of one model."""
    return tuple(
        Replica(ScriptedModel([]), f"http://{number}/v1", Endpoint()) for number in range(count)
    )


def homes(among: tuple[Replica, ...], keys: list[str] = KEYS) -> list[str]:
    """Where calls go that stay."""
    return [choose(among, key, 10, stay=True).deployment for key in keys]


def ended(replica: Replica, *good: bool) -> None:
    """So its last calls ended."""
    for one in good:
        replica.endpoint.breaker.end(one, probe=replica.endpoint.breaker.begin())


async def test_every_key_has_a_home() -> None:
    """All replicas get their share; where one goes away, only its keys move, and they come back
    with it.
    """
    there = replicas(3)
    before = homes(there)
    assert all(60 < before.count(replica.deployment) < 140 for replica in there)
    there[1].endpoint.breaker.open()
    after = homes(there)
    assert there[1].deployment not in after
    assert all(
        new == old for new, old in zip(after, before, strict=True) if old != there[1].deployment
    )


async def test_who_need_not_stay_goes_where_least_is_to_be_done() -> None:
    """What is outstanding counts, and the prefix that would have to be read anew."""
    there = replicas(2)
    home = choose(there, "q", 100, stay=False)
    (other,) = (replica for replica in there if replica is not home)
    home.endpoint.outstanding_tokens = 100
    assert choose(there, "q", 100, stay=False) is home
    home.endpoint.outstanding_tokens = 101
    assert choose(there, "q", 100, stay=False) is other
    assert choose(there, "q", 100, stay=True) is home
    assert choose(there, "q", 100, stay=True, avoid={home.deployment}) is other
    assert choose(there, "q", 100, stay=True, avoid={home.deployment, other.deployment}) is home


def test_all_are_to_be_left_alone() -> None:
    """That is waited for where it takes a moment, and no longer than the call may take."""

    async def main(clock: Clock) -> None:
        there = replicas(2)
        for replica in there:
            replica.endpoint.breaker.open()
        until = clock.time() + 0.9
        with pytest.raises(UpstreamUnavailable, match=r"not called for 1\.0 s") as failed:
            await chosen(partial(choose, there, "q", 1, stay=True), until)
        assert failed.value.retry_after_s == 1.0
        for replica in there:
            replica.endpoint.breaker.open()
            replica.endpoint.breaker.open()
        with pytest.raises(UpstreamUnavailable, match=r"not called for 4\.0 s"):
            await chosen(partial(choose, there, "q", 1, stay=True), float("inf"))

    with_clock(main)
