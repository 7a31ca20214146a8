"""Health of a whole gateway: what a question needs is down until a call has succeeded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from msgspec.structs import replace
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import usage_pb2
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub

from router.edge.grpc.server import Server
from serving.composition import running_gateway
from serving.config.config import (
    Config,
    RetrievalConfig,
    RoleConfig,
    RolesConfig,
    SearchConfig,
    ServerConfig,
)
from serving.retrieval.services import RetrievalServicer
from tests.openai_server import MODEL, fails, says, serving
from tests.ports import free_port
from tests.router.deployment import PASSAGE
from tests.router.edge.wire import info_of
from tests.router.retriever import FixedRetriever, NamedRetriever
from tests.router.unfiltered import Unfiltered

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
COMPLETE = pb.CompleteRequest(
    role=usage_pb2.ROLE_ANSWER, messages=[pb.ChatMessage(role="user", content="hi")]
)


def config_of(folder: Path, store: str, models: str, retrieval: str) -> Config:
    """Return a config with all roles at one base URL."""
    (folder / "prompt.txt").write_text("Do it.\n")
    role = RoleConfig(model=MODEL, prompt=f"{folder}/prompt.txt", base_url=models, attempts=1)
    return Config(
        roles=RolesConfig(delegation=role, execution=role, answer=role),
        retrieval=RetrievalConfig(address=retrieval),
        server=ServerConfig(store=store),
    )


@asynccontextmanager
async def searching(address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Run a retrieval server."""
    server = Server(None, RetrievalServicer(Unfiltered(FixedRetriever({"Heat": [PASSAGE]}))))
    port = await server.start(address)
    yield f"127.0.0.1:{port}"
    await server.drain(0)


class Watch:
    """Watchers of the health of some services, and the health over HTTP."""

    def __init__(self, channel: grpc.aio.Channel, door: str, *services: str) -> None:
        stub: Any = HealthStub(channel)
        self._door = door
        self._calls = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in services]

    async def all_say(self, status: int) -> None:
        """Wait until the next status of each service is this."""
        async with asyncio.timeout(60):
            assert [(await call.read()).status for call in self._calls] == [status] * len(
                self._calls
            )
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._door}/health") as response,
        ):
            assert response.status == (200 if status == SERVING else 503)


@asynccontextmanager
async def watched(config: Config, *services: str) -> AsyncIterator[tuple[grpc.aio.Channel, Watch]]:
    """Run a gateway, and watch the health of these services."""
    lines: list[str] = []
    async with (
        running_gateway(config, "127.0.0.1:0", lines.append, "127.0.0.1:0") as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        (door,) = [
            step.rpartition(" ")[2].removesuffix("/v1")
            for step in lines
            if "OpenAI-compatible" in step
        ]
        yield channel, Watch(channel, door, *services)


def free_address() -> str:
    """Return an address of this machine where nobody listens."""
    return f"127.0.0.1:{free_port()}"


class SlowStart(NamedRetriever):
    """A retriever whose searches wait until the test lets them go on."""

    go_on: asyncio.Event

    async def search(self, *arguments: Any, **named: Any) -> Any:
        """Search, once the test lets it."""
        await self.go_on.wait()
        return await super().search(*arguments, **named)


async def test_a_gateway_that_starts_is_alive_and_not_ready(tmp_path: Path) -> None:
    """It listens from the beginning: probes get an answer, and requests are refused with the advice
    to try again. Then the gateway serves on the same addresses.
    """
    address, http = free_address(), free_address()
    retriever = SlowStart({"document": []})
    retriever.go_on = asyncio.Event()
    async with (
        serving() as models,
        AsyncExitStack() as gateway,
        grpc.aio.insecure_channel(address) as channel,
        aiohttp.ClientSession(f"http://{http}") as session,
    ):
        config = config_of(tmp_path, f"sqlite:///{tmp_path}/runs.db", models.base_url, address)
        config = replace(config, search=SearchConfig(access=True))
        steps: list[str] = []
        running = running_gateway(config, address, steps.append, http, retriever=retriever)
        starting = asyncio.create_task(gateway.enter_async_context(running))
        stub: Any = HealthStub(channel)
        check = partial(stub.Check, health_pb2.HealthCheckRequest(), wait_for_ready=True)
        assert (await check()).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await CompletionServiceStub(channel).Complete(COMPLETE)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert info_of(refused.value).reason == "STARTING"
        assert await statuses(session) == {"/healthz": 200, "/readyz": 503, "/v1/models": 503}

        retriever.go_on.set()
        await starting
        assert (await check()).status == SERVING
        await CompletionServiceStub(channel).Complete(COMPLETE)
        assert await statuses(session) == {"/healthz": 200, "/readyz": 200, "/v1/models": 200}


async def statuses(session: aiohttp.ClientSession) -> dict[str, int]:
    """Return the HTTP status of some paths."""
    found = {}
    for path in ("/healthz", "/readyz", "/v1/models"):
        async with session.get(path) as response:
            found[path] = response.status
    return found


async def test_an_endpoint_that_fails_every_completion_is_down(tmp_path: Path) -> None:
    """It is down until a completion has succeeded, even though it lists its models and its breaker
    allows calls. Only the gateway calls it meanwhile, with a few tokens at a time, and each call is
    recorded.
    """
    async with serving() as models, searching() as retrieval:
        config = config_of(tmp_path, f"sqlite:///{tmp_path}/runs.db", models.base_url, retrieval)
        async with watched(config, "", "rolegate.v1.AnswerService") as (channel, watch):
            await watch.all_say(SERVING)
            probed = asyncio.Event()
            works = False

            async def tried(request: web.Request) -> web.StreamResponse:
                nonlocal works
                if (await request.json())["max_tokens"] != 16:
                    return await fails(500, "cache full")(request)
                if not probed.is_set():
                    probed.set()
                    return await fails(500, "cache full")(request)
                works = True
                return await says("Hi")(request)

            models.plays(tried)
            for _ in range(5):
                with pytest.raises(grpc.aio.AioRpcError):
                    await CompletionServiceStub(channel).Complete(COMPLETE, timeout=30)
            await watch.all_say(NOT_SERVING)
            await watch.all_say(SERVING)
            assert probed.is_set()
            assert works
            runs = (
                await RunServiceStub(channel).ListRuns(run_pb.ListRunsRequest(tenant="shadow"))
            ).runs
            details = [
                await RunServiceStub(channel).GetRun(run_pb.GetRunRequest(run_id=run.run_id))
                for run in runs
            ]
    probes = [body for body in models.bodies if body["max_tokens"] == 16]
    assert sum(len(run.calls) for run in details) == len(probes)


async def test_retrieval_is_down_while_it_is_unreachable(tmp_path: Path) -> None:
    """There are no searches meanwhile, and services without retrieval stay up."""
    async with serving() as models:
        async with searching() as retrieval:
            config = config_of(
                tmp_path, f"sqlite:///{tmp_path}/runs.db", models.base_url, retrieval
            )
        async with watched(
            config, "", "rolegate.v1.AnswerService", "rolegate.v1.RetrievalService"
        ) as (channel, watch):
            await watch.all_say(NOT_SERVING)
            stub: Any = HealthStub(channel)
            for service in ("Completion", "Run"):
                request = health_pb2.HealthCheckRequest(service=f"rolegate.v1.{service}Service")
                assert (await stub.Check(request)).status == SERVING
            async with searching(retrieval):
                await watch.all_say(SERVING)
            await watch.all_say(NOT_SERVING)
            async with searching(retrieval):
                await watch.all_say(SERVING)
