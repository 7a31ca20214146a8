"""The choice of the replica for a call."""

from functools import partial

import pytest

from router.calls import Replica
from router.calls.replicas import Endpoint, choose, chosen
from router.errors import UpstreamUnavailable
from tests.router.clock import Clock, with_clock
from tests.scripted_model import ScriptedModel

KEYS = [f"run-{number}" for number in range(300)]


def replicas(count: int) -> tuple[Replica, ...]:
    """Return replicas of a model."""
    return tuple(
        Replica(ScriptedModel([]), f"http://{number}/v1", Endpoint()) for number in range(count)
    )


def homes(candidates: tuple[Replica, ...], keys: list[str] = KEYS) -> list[str]:
    """Return the replicas of calls that stay with their key's replica."""
    return [choose(candidates, key, 10, stay=True).deployment for key in keys]


def ended(replica: Replica, *successes: bool) -> None:
    """End calls to a replica with these results."""
    for success in successes:
        replica.endpoint.breaker.end(success, probe=replica.endpoint.breaker.begin())


async def test_every_key_has_a_replica() -> None:
    """All replicas get their share. If a replica fails, only its keys move, and they return with
    it.
    """
    all_replicas = replicas(3)
    chosen_before = homes(all_replicas)
    assert all(60 < chosen_before.count(replica.deployment) < 140 for replica in all_replicas)
    all_replicas[1].endpoint.breaker.open()
    chosen_after = homes(all_replicas)
    assert all_replicas[1].deployment not in chosen_after
    assert all(
        deployment_after == deployment_before
        for deployment_after, deployment_before in zip(chosen_after, chosen_before, strict=True)
        if deployment_before != all_replicas[1].deployment
    )


async def test_a_call_that_need_not_stay_goes_to_the_least_loaded_replica() -> None:
    """The load is the outstanding tokens plus the prefix that would have to be read again."""
    both = replicas(2)
    home = choose(both, "q", 100, stay=False)
    (other_replica,) = (replica for replica in both if replica is not home)
    home.endpoint.outstanding_tokens = 100
    assert choose(both, "q", 100, stay=False) is home
    home.endpoint.outstanding_tokens = 101
    assert choose(both, "q", 100, stay=False) is other_replica
    assert choose(both, "q", 100, stay=True) is home
    assert choose(both, "q", 100, stay=True, avoid={home.deployment}) is other_replica
    assert (
        choose(both, "q", 100, stay=True, avoid={home.deployment, other_replica.deployment}) is home
    )


def test_a_call_waits_shortly_if_no_replica_may_be_called() -> None:
    """It waits no longer than its deadline allows."""

    async def main(clock: Clock) -> None:
        both = replicas(2)
        for replica in both:
            replica.endpoint.breaker.open()
        until = clock.time() + 0.9
        with pytest.raises(
            UpstreamUnavailable, match=r"sends no calls to this endpoint for 1\.0 s"
        ) as caught:
            await chosen(partial(choose, both, "q", 1, stay=True), until)
        assert caught.value.retry_after_s == 1.0
        for replica in both:
            replica.endpoint.breaker.open()
            replica.endpoint.breaker.open()
        with pytest.raises(
            UpstreamUnavailable, match=r"sends no calls to this endpoint for 4\.0 s"
        ):
            await chosen(partial(choose, both, "q", 1, stay=True), float("inf"))

    with_clock(main)
