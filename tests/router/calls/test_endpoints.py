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
from tests.openai_behaviours import disconnects, replies, text_event
from tests.openai_server import (
    MODEL,
    Behaviour,
    OpenAIServer,
    fails,
    hang,
    reset,
    says,
    serving,
    streams,
)

ASKED = (Message("system", "answer"), Message("user", "hi"))
SOON = Timeouts(first_token_s=0.3, call_s=0.6)


@pytest.fixture
async def other_server() -> AsyncIterator[OpenAIServer]:
    async with serving() as server:
        yield server


def replica(pool: ConnectionPool, server: OpenAIServer) -> Replica:
    """Return the replica at a server."""
    return Replica(OpenAIHTTP(pool, server.base_url, MODEL), server.base_url, Endpoint())


def role(*replicas: Replica, **settings: object) -> Role:
    """Return a role with these replicas."""
    first, *other_replicas = replicas
    bare_role = Role(
        "answer",
        first.model,
        "answer",
        Sampling(64),
        endpoint=first.endpoint,
        others=tuple(other_replicas),
    )
    return replace(bare_role, **settings)  # type: ignore[arg-type]


def rows(ledger: Ledger) -> list[tuple[str, str, str]]:
    """Return purpose, outcome and deployment of every attempt, in the order of their numbers."""
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
async def test_another_replica_is_tried_immediately(
    pool: ConnectionPool,
    openai_server: OpenAIServer,
    other_server: OpenAIServer,
    bad: Behaviour,
    outcome: str,
) -> None:
    """Holds for every failure. The ledger's rows name the replicas."""
    replicas = (replica(pool, openai_server), replica(pool, other_server))
    asked_role = role(*replicas, timeouts=SOON)
    ledger = Ledger()
    first_choice = choose(replicas, "answer\0hi", 0, stay=False).deployment
    failing_server, working_server = sorted(
        (openai_server, other_server), key=lambda server: server.base_url != first_choice
    )
    failing_server.plays(bad)
    working_server.plays(says("yes"))
    assert (await asked_role.ask(ASKED, (), ledger)).text == "yes"
    assert rows(ledger) == [
        ("first", outcome, failing_server.base_url),
        ("retry", "completed", working_server.base_url),
    ]
    assert [tried.endpoint.in_flight + tried.endpoint.outstanding_tokens for tried in replicas] == [
        0,
        0,
    ]


async def test_a_dead_replica_costs_a_few_calls(
    pool: ConnectionPool, openai_server: OpenAIServer, other_server: OpenAIServer
) -> None:
    """Its breaker keeps calls away from it, and a probe notices that it is back."""
    dead = replica(pool, openai_server)
    alive = replica(pool, other_server)
    asked_role = role(dead, alive, name="execution")
    ledger = Ledger()
    openai_server.plays(*[reset] * 5, says("back"))
    for number in range(40):
        await asked_role.ask(ASKED, (), Ledger(f"run-{number}"))
    assert (
        len(openai_server.bodies),
        dead.endpoint.breaker.state,
        alive.endpoint.breaker.openings,
    ) == (5, "open", 0)
    async with asyncio.timeout(10):
        while dead.endpoint.breaker.state != "closed":
            await asked_role.ask(ASKED, (), ledger := Ledger(f"run-{len(other_server.bodies)}"))
            await asyncio.sleep(dead.endpoint.breaker.wait_s / 4)
    assert rows(ledger) == [("first", "completed", openai_server.base_url)]


async def test_executors_of_a_run_share_a_replica(
    pool: ConnectionPool, openai_server: OpenAIServer, other_server: OpenAIServer
) -> None:
    """Holds for any question. Other runs use other replicas."""
    asked_role = role(replica(pool, openai_server), replica(pool, other_server), name="execution")
    deployments_by_run: list[set[str]] = []
    for number in range(12):
        ledger = Ledger(f"run-{number}")
        for text in "abc":
            await asked_role.ask(asked_role.opening(text), (), ledger)
        deployments_by_run.append({call.deployment for call in ledger.calls})
    assert {len(deployments) for deployments in deployments_by_run} == {1}
    assert set.union(*deployments_by_run) == {openai_server.base_url, other_server.base_url}


@pytest.mark.parametrize(
    ("slow", "streamed", "message"),
    [
        (hang, True, r"the model wrote nothing within 0\.3 s"),
        (streams(then=hang), True, r"the model wrote nothing within 0\.3 s"),
        (streams(text_event("a"), then=hang), True, r"the output did not end within 0\.6 s"),
        (hang, False, r"the model wrote nothing within 0\.3 s"),
    ],
)
async def test_a_call_that_exceeds_a_timeout_is_stopped_and_not_repeated(
    pool: ConnectionPool, openai_server: OpenAIServer, slow: Behaviour, streamed: bool, message: str
) -> None:
    """The timeouts are of the first token and of the whole call; a reply that is not streamed
    has that of the first token.
    """
    openai_server.plays(slow)
    asked_role = role(replica(pool, openai_server), timeouts=SOON, streams=streamed)
    with pytest.raises(UpstreamUnavailable, match=message):
        await asked_role.ask(ASKED, (), Ledger())
    await disconnects(openai_server)
    assert len(openai_server.bodies) == 1


async def test_a_silent_endpoint_s_breaker_opens_though_callers_leave_early(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """A caller counts if it has waited for half of the timeout."""
    openai_server.plays(hang)
    asked_role = role(replica(pool, openai_server), timeouts=Timeouts(first_token_s=0.2))
    for waits_s, state in ((0.02, "closed"), (0.15, "open")):
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(waits_s):
                    await asked_role.ask(ASKED, (), Ledger())
        assert asked_role.endpoint.breaker.state == state


async def test_retries_are_a_share_of_the_calls(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Holds for any share of failures. Throttling is no fault, so no breaker opens."""
    openai_server.plays(fails(429, "slow down", "0"))
    asked_role = role(replica(pool, openai_server), health=RoleHealth())
    for _ in range(100):
        with pytest.raises(UpstreamUnavailable):
            await asked_role.ask(ASKED, (), Ledger())
    assert 125 <= len(openai_server.bodies) <= 135
    assert asked_role.endpoint.breaker.openings == 0


async def test_a_call_does_not_pause_beyond_its_deadline(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """It fails immediately."""
    openai_server.plays(fails(503, "loading", "20"))
    asked_role = role(replica(pool, openai_server))
    async with asyncio.timeout(10):
        with pytest.raises(UpstreamUnavailable) as caught:
            await asked_role.ask(ASKED, (), Ledger(), until=asyncio.get_running_loop().time() + 15)
    assert (caught.value.retry_after_s, len(openai_server.bodies)) == (20.0, 1)


async def test_calls_beyond_the_limit_wait_for_a_place(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """They wait as long as their time lasts."""
    openai_server.plays(hang)
    asked_role = role(replica(pool, openai_server), health=RoleHealth(2))
    ledgers = [Ledger() for _ in range(5)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await asyncio.gather(*(asked_role.ask(ASKED, (), ledger) for ledger in ledgers))
    assert len(openai_server.bodies) == 2
    assert [len(ledger.calls) for ledger in ledgers] == [1, 1, 0, 0, 0]
    assert (asked_role.health.in_flight, asked_role.health.waiting) == (0, 0)
    openai_server.plays(says("yes"))
    await asyncio.gather(*(asked_role.ask(ASKED, (), Ledger()) for _ in range(5)))


async def test_a_fallback_role_answers_instead(
    pool: ConnectionPool, openai_server: OpenAIServer, other_server: OpenAIServer
) -> None:
    """The ledger records it. If the fallback fails too, the first error is raised."""
    fallback = role(replica(pool, other_server))
    asked_role = role(
        replica(pool, openai_server),
        fallbacks=(fallback,),
        attempts=1,
        executor_version="executor-1",
    )
    openai_server.plays(fails(503, "loading", "60"))
    other_server.plays(says("yes"))
    ledger = Ledger()
    assert (await asked_role.ask(ASKED, (), ledger)).text == "yes"
    assert rows(ledger) == [
        ("first", "connect_error", openai_server.base_url),
        ("fallback", "completed", other_server.base_url),
    ]
    assert [call.executor_version for call in ledger.calls] == ["executor-1", None]
    other_server.plays(fails(500, "oh"))
    with pytest.raises(UpstreamUnavailable, match="loading"):
        await asked_role.ask(ASKED, (), Ledger())


async def test_a_refused_call_has_no_fallback(
    pool: ConnectionPool, openai_server: OpenAIServer, other_server: OpenAIServer
) -> None:
    """A wrong key would never be noticed."""
    asked_role = role(replica(pool, openai_server), fallbacks=(role(replica(pool, other_server)),))
    openai_server.plays(fails(401, "wrong key"))
    with pytest.raises(Exception, match="wrong key"):
        await asked_role.ask(ASKED, (), Ledger())
    assert other_server.bodies == []


async def test_a_stopped_server_is_named_with_its_cause_also_while_no_calls_are_made(
    unused_tcp_port: int, pool: ConnectionPool
) -> None:
    """Both errors say what to do."""
    url = f"http://127.0.0.1:{unused_tcp_port}/v1"
    answerer = role(Replica(OpenAIHTTP(pool, url, MODEL), url, Endpoint()))
    errors = []
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable) as caught:
            await replace(answerer, attempts=1).ask(ASKED, (), Ledger())
        errors.append(str(caught.value))
        for _ in range(3):  # longer than a call waits
            answerer.endpoint.breaker.open()

    advice = "; check that it runs and can be reached from here"
    assert errors[0].startswith(f"answer at {url}: model {MODEL!r}: ConnectError: cannot connect")
    assert errors[0].endswith(advice)
    assert errors[-1].startswith(errors[0])
    assert "sends no calls to this endpoint for" in errors[-1]
    assert errors[-1].endswith(" s; try again after that")
