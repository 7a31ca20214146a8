"""Health: each service reports whether its dependencies are up, and notifies watchers of
changes.
"""

import asyncio
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub

from router.background import background_tasks
from router.calls import Need, Readiness
from router.calls.health import watch_role
from router.calls.replicas import Breaker
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.errors import UpstreamError, UpstreamProtocolError, UpstreamRefused, UpstreamUnavailable
from router.ledger import Ledger
from router.runs import Runs
from router.runs.live import LiveRuns
from router.trace import RoleName
from tests.router.accounts import open_access
from tests.router.clock import Clock, ended, with_clock
from tests.router.deployment import Deployment, Kept
from tests.router.edge.wire import connected, next_of
from tests.scripted_model import ScriptedModel

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def server_of(readiness: Readiness) -> Server:
    """Return a server with a gateway and the runs of a store."""
    store = Kept()
    return Server(
        Deployment().gateway(store), None, RunServicer(Runs(store, LiveRuns())), readiness=readiness
    )


def health_of(channel: grpc.aio.Channel) -> Any:
    """Return the stub, whose package has no types."""
    return HealthStub(channel)


@pytest.mark.parametrize(
    ("need", "not_serving"),
    [
        ("delegation", {"", "Answer", "Completion"}),
        ("answer", {"", "Answer", "Completion"}),
        ("execution", {"", "Answer", "Completion", "Execution"}),
        ("retrieval", {"", "Answer", "Execution"}),
    ],
)
async def test_a_service_is_down_while_a_dependency_is_down(
    need: Need, not_serving: set[str]
) -> None:
    """Stored runs depend on nothing. All services recover with the dependency."""
    readiness = Readiness()
    server = server_of(readiness)
    async with connected(await server.start("127.0.0.1:0")) as channel:
        watches = {}
        for name in ("", "Answer", "Completion", "Execution", "Run"):
            service = f"rolegate.v1.{name}Service" if name else ""
            watches[name] = health_of(channel).Watch(health_pb2.HealthCheckRequest(service=service))
            assert (await next_of(watches[name])).status == SERVING
        readiness.report("engines.small", [need], "ended with code -9")
        for name in not_serving:
            assert (await next_of(watches[name])).status == NOT_SERVING
        runs = await health_of(channel).Check(
            health_pb2.HealthCheckRequest(service="rolegate.v1.RunService")
        )
        assert runs.status == SERVING
        readiness.report("engines.small", [need], None)
        for name in not_serving:
            assert (await next_of(watches[name])).status == SERVING
        for watch in watches.values():
            watch.cancel()
    await server.drain(0)


async def test_a_draining_server_stays_down() -> None:
    """A dependency that recovers meanwhile changes nothing."""
    readiness = Readiness()
    readiness.report("engines.small", ["answer"], "ended with code -9")
    server = server_of(readiness)
    async with connected(await server.start("127.0.0.1:0")) as channel:
        watch = health_of(channel).Watch(
            health_pb2.HealthCheckRequest(service="rolegate.v1.RunService")
        )
        assert (await next_of(watch)).status == SERVING
        drain = asyncio.create_task(server.drain(30))
        assert (await next_of(watch)).status == NOT_SERVING
        readiness.report("engines.small", ["answer"], None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await watch.read()
        await ended(drain)


async def test_probes_name_the_part_that_is_down_without_its_reason() -> None:
    """They need no key, so they must not reveal details. The gateway stays alive meanwhile."""
    readiness = Readiness()
    http = HTTPServer(openai_app(Deployment().gateway(), open_access(), readiness=readiness), 0.0)
    async with aiohttp.ClientSession(
        f"http://{await http.start('127.0.0.1:0', 'http')}"
    ) as session:
        readiness.report("tools.calendar", [], "cannot be reached")  # nothing needs it
        down = {
            "engines.small": "not ready: engines.small; affected: retrieval and answer; search the "
            "gateway's log for readiness.down."
        }
        for why, status, body in (
            ("ended with code -9", 503, {"status": "unavailable", "down": down}),
            (None, 200, {"status": "ok"}),
        ):
            readiness.report("engines.small", ["retrieval", "answer"], why)
            for path in ("/readyz", "/health"):
                async with session.get(path) as response:
                    assert (response.status, await response.json()) == (status, body)
            async with session.get("/healthz") as response:
                assert (response.status, await response.json()) == (200, {"status": "ok"})
    await http.drain()


def test_a_role_is_down_until_a_call_works() -> None:
    """A breaker that lets a call through is not enough. Without clients' calls, the role is
    probed.
    """

    async def main(clock: Clock) -> None:
        roles = Deployment().roles()
        readiness = Readiness()
        probes = list[RoleName]()
        breaker: Breaker = roles["answer"].replicas[0].endpoint.breaker
        works: bool | None = False

        async def probe(name: RoleName) -> None:
            probes.append(name)
            breaker.end(works, probe=breaker.begin())
            if not works:
                raise UpstreamUnavailable("connection refused", endpoint="e")

        async with background_tasks(
            *(watch_role(name, role, readiness, probe) for name, role in roles.items())
        ):
            await clock.settle()
            assert readiness.down(["delegation", "execution", "answer"]) is None
            breaker.open()
            for probed in (1, 1, 2, 2):  # after pauses of one second and of two
                await clock.advance(0.6)
                await clock.advance(0.6)
                assert str(readiness.down(["answer"])).startswith(
                    "roles.answer: all calls of this role fail; "
                )
                assert readiness.down(["delegation", "execution"]) is None
                assert probes == ["answer"] * probed
            works = True
            breaker.begin()  # a client's call
            await clock.advance(0.6)
            assert readiness.down(["answer"])
            breaker.end(works, probe=True)
            await clock.advance(0.6)
            assert readiness.down(["answer"]) is None

    with_clock(main)


@pytest.mark.parametrize(
    "failure",
    [
        UpstreamRefused("HTTP 401", endpoint="e", lasting=True),
        UpstreamUnavailable("HTTP 429", endpoint="e", throttled=True),
        UpstreamUnavailable("HTTP 503", endpoint="e"),
        UpstreamProtocolError("nonsense", endpoint="e"),
    ],
)
def test_a_role_whose_calls_fail_is_down_though_its_endpoint_works(failure: UpstreamError) -> None:
    """Its probes come at growing intervals."""

    async def main(clock: Clock) -> None:
        prompt = UpstreamRefused("HTTP 400", endpoint="e")
        model = ScriptedModel([*[failure] * 4, prompt, *[failure] * 9, "a"])
        answers = Deployment(answerer=model).roles()["answer"]
        readiness = Readiness()

        async def call(_name: object = None) -> None:
            await answers.ask(answers.opening("Who?"), (), Ledger())

        async def fail(times: int) -> None:
            for _ in range(times):
                with pytest.raises(UpstreamError):
                    await call()
                answers.endpoint.breaker.end(True, probe=False)  # others' calls work

        async with background_tasks(watch_role("answer", answers, readiness, call)):
            await fail(5)
            await clock.advance(5)
            # A prompt that is refused shows that the model works
            assert readiness.down(["answer"]) is None
            await fail(6)
            await clock.advance(1)
            assert readiness.down(["answer"]) is None  # a burst may be over soon
            calls = []
            for _ in range(20):
                await clock.advance(0.5)
                answers.endpoint.breaker.end(True, probe=False)
                calls.append(len(model.prompts))
            assert [calls.count(count) for count in (12, 13, 14)] == [2, 4, 8]
            assert (calls[-1], readiness.down(["answer"])) == (15, None)

    with_clock(main)


def test_a_role_that_is_down_names_its_endpoint_and_the_last_error() -> None:
    async def main(clock: Clock) -> None:
        failures = [
            UpstreamUnavailable(f"HTTP 50{n}", endpoint="e", repeatable=False) for n in "23"
        ]
        answers = Deployment(
            answerer=ScriptedModel([*[failures[0]] * 5, *[failures[1]] * 9])
        ).roles()
        readiness = Readiness()
        why = "roles.answer: all calls of this role fail; scripted://scripted: HTTP 50"

        async def call(_name: object = None) -> None:
            await answers["answer"].ask(answers["answer"].opening("Who?"), (), Ledger())

        async with background_tasks(watch_role("answer", answers["answer"], readiness, call)):
            for _ in range(5):
                with pytest.raises(UpstreamUnavailable):
                    await call()
            await clock.advance(0.6)
            assert readiness.down(["answer"]) == f"{why}2"
            for _ in range(4):
                await clock.advance(0.6)
            assert readiness.down(["answer"]) == f"{why}3"

    with_clock(main)


async def test_a_need_is_down_until_all_its_causes_are_gone() -> None:
    """A repeated report is no change, and neither is one with another reason."""
    readiness = Readiness()
    changes = 0
    readiness.report("engines.small", ["execution", "answer"], "ended with code -9")
    readiness.report("roles.answer", ["answer"], "all its endpoints fail")

    async def count() -> None:
        nonlocal changes
        async for _ in readiness.changes():
            changes += 1

    async with background_tasks(count()):
        for why in ("ended with code -9", "ended with code 1", None, None):
            readiness.report("engines.small", ["execution", "answer"], why)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert (readiness.down(["execution"]), readiness.down(["answer"])) == (
        None,
        "roles.answer: all its endpoints fail",
    )
    assert changes == 2
