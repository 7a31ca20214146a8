"""A role whose endpoints misbehave: real servers that refuse, hang, drip and break off."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from router.calls import Replica, Role, Timeouts
from router.calls.limits import RoleHealth
from router.calls.replicas import Endpoint, choose
from router.errors import UpstreamUnavailable
from router.ledger import Ledger
from router.models import Message, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.testing.openai_server import (
    MODEL,
    Behaviour,
    OpenAIServer,
    fails,
    hang,
    replies,
    reset,
    says,
    serving,
    streams,
    text_event,
)

ASKED = (Message("system", "answer"), Message("user", "hi"))
SOON = Timeouts(first_token_s=0.3, call_s=0.6)


@pytest.fixture
async def other_server() -> AsyncIterator[OpenAIServer]:
    async with serving() as server:
        yield server


def replica(pool: ConnectionPool, server: OpenAIServer) -> Replica:
    """The model at a server."""
    return Replica(OpenAIHTTP(pool, server.base_url, MODEL), server.base_url, Endpoint())


def role(*replicas: Replica, **settings: object) -> Role:
    """A role with these replicas."""
    first, *others = replicas
    made = Role(
        "answer", first.model, "answer", Sampling(64), endpoint=first.endpoint, others=tuple(others)
    )
    return replace(made, **settings)  # type: ignore[arg-type]


def rows(ledger: Ledger) -> list[tuple[str, str, str]]:
    """Purpose, outcome and deployment of every attempt, in the order of their numbers."""
    calls = sorted(ledger.calls, key=lambda call: call.number)
    return [(call.purpose, call.outcome, call.deployment) for call in calls]


@pytest.mark.parametrize(
    ("bad", "outcome"),
    [
        (reset, "unavailable"),
        (hang, "unavailable"),
        (fails(500, "oh"), "unavailable"),
        (fails(503, "loading", "60"), "connect_error"),
        (fails(429, "slow down", "60"), "connect_error"),
        (replies(b"<html>", "text/html"), "protocol_error"),
        (fails(401, "no such key"), "refused"),
        (fails(404, "no such model"), "refused"),
    ],
)
async def test_another_replica_at_once(
    pool: ConnectionPool,
    openai_server: OpenAIServer,
    other_server: OpenAIServer,
    bad: Behaviour,
    outcome: str,
) -> None:
    """Whatever is wrong with one; the ledger's rows name the replicas."""
    there = (replica(pool, openai_server), replica(pool, other_server))
    asked = role(*there, timeouts=SOON)
    ledger = Ledger()
    goes_first = choose(there, "answer\0hi", 0, stay=False).deployment
    home, away = sorted(
        (openai_server, other_server), key=lambda server: server.base_url != goes_first
    )
    home.plays(bad)
    away.plays(says("yes"))
    assert (await asked.ask(ASKED, (), ledger)).text == "yes"
    assert rows(ledger) == [
        ("first", outcome, home.base_url),
        ("retry", "completed", away.base_url),
    ]
    assert [one.endpoint.in_flight + one.endpoint.outstanding_tokens for one in there] == [0, 0]


async def test_a_dead_replica_costs_a_few_calls(
    pool: ConnectionPool, openai_server: OpenAIServer, other_server: OpenAIServer
) -> None:
    """Then its breaker keeps the others away from it, and a probe finds out that it is back."""
    dead = replica(pool, openai_server)
    alive = replica(pool, other_server)
    asked = role(dead, alive, name="execution")
    ledger = Ledger()
    openai_server.plays(*[reset] * 5, says("back"))
    for number in range(40):
        await asked.ask(ASKED, (), Ledger(f"run-{number}"))
    assert (
        len(openai_server.bodies),
        dead.endpoint.breaker.state,
        alive.endpoint.breaker.openings,
    ) == (5, "open", 0)
    async with asyncio.timeout(10):
        while dead.endpoint.breaker.state != "closed":
            await asked.ask(ASKED, (), ledger := Ledger(f"run-{len(other_server.bodies)}"))
            await asyncio.sleep(dead.endpoint.breaker.wait_s / 4)
    assert rows(ledger) == [("first", "completed", openai_server.base_url)]


async def test_executors_of_a_run_share_a_replica(
    pool: ConnectionPool, openai_server: OpenAIServer, other_server: OpenAIServer
) -> None:
    """Whatever they are asked; other runs go elsewhere."""
    asked = role(replica(pool, openai_server), replica(pool, other_server), name="execution")
    used: list[set[str]] = []
    for number in range(12):
        ledger = Ledger(f"run-{number}")
        for text in "abc":
            await asked.ask(asked.opening(text), (), ledger)
        used.append({call.deployment for call in ledger.calls})
    assert {len(one) for one in used} == {1}
    assert set.union(*used) == {openai_server.base_url, other_server.base_url}


@pytest.mark.parametrize(
    ("slow", "streamed", "said"),
    [
        (hang, True, r"no token within 0\.3 s"),
        (streams(then=hang), True, r"no token within 0\.3 s"),
        (streams(text_event("a"), then=hang), True, r"not at its end within 0\.6 s"),
        (hang, False, r"no token within 0\.3 s"),
    ],
)
async def test_patience_ends(
    pool: ConnectionPool, openai_server: OpenAIServer, slow: Behaviour, streamed: bool, said: str
) -> None:
    """For the first token, the whole call, and a reply that is not streamed; the engine is told to
    stop, and the same endpoint is not asked again.
    """
    openai_server.plays(slow)
    asked = role(replica(pool, openai_server), timeouts=SOON, streams=streamed)
    with pytest.raises(UpstreamUnavailable, match=said):
        await asked.ask(ASKED, (), Ledger())
    await openai_server.sees_disconnect()
    assert len(openai_server.bodies) == 1


async def test_a_silent_endpoint_that_nobody_waits_for(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Callers whose time is up before its patience is count against it, once they have waited
    for half of that.
    """
    openai_server.plays(hang)
    asked = role(replica(pool, openai_server), timeouts=Timeouts(first_token_s=0.2))
    for waits_s, state in ((0.02, "closed"), (0.15, "open")):
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(waits_s):
                    await asked.ask(ASKED, (), Ledger())
        assert asked.endpoint.breaker.state == state


async def test_retries_are_a_share_of_the_calls(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """However much fails. Being asked too often is no fault, so that no breaker opens here."""
    openai_server.plays(fails(429, "slow down", "0"))
    asked = role(replica(pool, openai_server), health=RoleHealth())
    for _ in range(100):
        with pytest.raises(UpstreamUnavailable):
            await asked.ask(ASKED, (), Ledger())
    assert 125 <= len(openai_server.bodies) <= 135
    assert asked.endpoint.breaker.openings == 0


async def test_no_pause_beyond_the_deadline(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """A call that is due before the endpoint wants to be asked again ends at once."""
    openai_server.plays(fails(503, "loading", "20"))
    asked = role(replica(pool, openai_server))
    async with asyncio.timeout(10):
        with pytest.raises(UpstreamUnavailable) as failed:
            await asked.ask(ASKED, (), Ledger(), until=asyncio.get_running_loop().time() + 15)
    assert (failed.value.retry_after_s, len(openai_server.bodies)) == (20.0, 1)


async def test_places(pool: ConnectionPool, openai_server: OpenAIServer) -> None:
    """No more calls than allowed are under way; the others wait for their turn, as long as they
    have time.
    """
    openai_server.plays(hang)
    asked = role(replica(pool, openai_server), health=RoleHealth(2))
    ledgers = [Ledger() for _ in range(5)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.gather(*(asked.ask(ASKED, (), ledger) for ledger in ledgers))
    assert len(openai_server.bodies) == 2
    assert [len(ledger.calls) for ledger in ledgers] == [1, 1, 0, 0, 0]
    assert (asked.health.in_flight, asked.health.waiting) == (0, 0)
    openai_server.plays(says("yes"))
    await asyncio.gather(*(asked.ask(ASKED, (), Ledger()) for _ in range(5)))


async def test_a_fallback(
    pool: ConnectionPool, openai_server: OpenAIServer, other_server: OpenAIServer
) -> None:
    """Another role's model steps in, and the ledger says so; where it fails too, the first error
    tells why."""
    other = role(replica(pool, other_server))
    asked = role(
        replica(pool, openai_server), fallbacks=(other,), attempts=1, executor_version="executor-1"
    )
    openai_server.plays(fails(503, "loading", "60"))
    other_server.plays(says("yes"))
    ledger = Ledger()
    assert (await asked.ask(ASKED, (), ledger)).text == "yes"
    assert rows(ledger) == [
        ("first", "connect_error", openai_server.base_url),
        ("fallback", "completed", other_server.base_url),
    ]
    assert [call.executor_version for call in ledger.calls] == ["executor-1", None]
    other_server.plays(fails(500, "oh"))
    with pytest.raises(UpstreamUnavailable, match="loading"):
        await asked.ask(ASKED, (), Ledger())


async def test_what_is_refused_has_no_fallback(
    pool: ConnectionPool, openai_server: OpenAIServer, other_server: OpenAIServer
) -> None:
    """A wrong key would be hidden for ever."""
    asked = role(replica(pool, openai_server), fallbacks=(role(replica(pool, other_server)),))
    openai_server.plays(fails(401, "wrong key"))
    with pytest.raises(Exception, match="wrong key"):
        await asked.ask(ASKED, (), Ledger())
    assert other_server.bodies == []
