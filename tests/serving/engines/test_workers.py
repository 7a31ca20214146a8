"""A gateway of several processes: one address, one store, one index; none of them is missed."""

import asyncio
import json
import os
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import retrieval_service_pb2 as retrieval_pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub

from router.calls.health import Readiness
from router.edge.grpc.server import Server
from router.errors import BadConfig
from router.runs.live import meanwhile
from router.search.retrieval import FixedRetriever
from router.testing.openai_server import MODEL, OpenAIServer, hang, says, serving
from serving.config.config import Config, EmbedderConfig, RetrievalConfig, RoleConfig, RolesConfig, ServerConfig
from serving.engines.workers import Order, WorkerProcess, running_workers
from serving.retrieval.services import RetrievalServicer
from tests.router.edge.wire import info_of

HI = [pb.ChatMessage(role="user", content="hi")]
COMPLETE = pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI)
STOP = says("<stop/>Enough evidence<stop>")


def config_of(folder: Path, upstream: OpenAIServer) -> Config:
    """All of a gateway, its models and its embedder at one server, its index of three rows."""
    (folder / "prompt.txt").write_text("Do it.\n")
    rows = [{"id": name, "title": name, "text": f"All about the {name}."} for name in ("cat", "bee", "mars")]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    role = RoleConfig(model=MODEL, prompt=str(folder / "prompt.txt"), base_url=upstream.base_url)
    embedder = EmbedderConfig(kind="endpoint", base_url=upstream.base_url, model=MODEL, dimension=upstream.dimension)
    return Config(
        roles=RolesConfig(delegation=role, execution=role, answer=role),
        retrieval=RetrievalConfig(
            index=str(folder / "index"), documents=(str(folder / "corpus.jsonl"),), embedder=embedder
        ),
        server=ServerConfig(store=f"sqlite:///{folder}/runs.db", grace_s=5.0),
    )


async def started(call: Any) -> str:
    """The run that an answer is, by its first event."""
    return str((await call.read()).run_started.run_id)


def rows(folder: Path, statement: str, *values: str) -> list[tuple[Any, ...]]:
    """What the store holds."""
    with sqlite3.connect(folder / "runs.db") as database:
        return database.execute(statement, values).fetchall()


class Clients:
    """Connections of their own, each of which gets to one worker."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address, self._folder = address, folder
        self._stack = AsyncExitStack()
        self.by_worker: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> "Clients":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._stack.aclose()

    async def connect(self) -> str:
        """Another connection; the worker that has answered it."""
        channel = grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)])
        await self._stack.enter_async_context(channel)
        run = (await CompletionServiceStub(channel).Complete(COMPLETE, timeout=100, wait_for_ready=True)).run_id
        ((worker,),) = rows(self._folder, "SELECT gateway_id FROM runs WHERE run_id = ?", run)
        self.by_worker[worker] = channel
        return str(worker)

    async def of_all(self, number: int) -> list[str]:
        """Connect until so many workers have answered."""
        async with asyncio.timeout(300):
            while len(self.by_worker) < number:
                await self.connect()
        return list(self.by_worker)


@asynccontextmanager
async def gateway(folder: Path, upstream: OpenAIServer, told: list[str]) -> AsyncIterator[Clients]:
    """Two workers at a free port."""
    async with (
        running_workers(config_of(folder, upstream), "127.0.0.1:0", told.append, "127.0.0.1:0", 2) as address,
        Clients(address, folder) as clients,
    ):
        yield clients


async def test_two_workers(tmp_path: Path) -> None:
    """They share address, index, store and door; each can stop and watch the other's runs; one that dies comes back;
    in the end, all of them go.
    """
    told: list[str] = []
    async with serving() as upstream, gateway(tmp_path, upstream, told) as clients:
        one, other = await clients.of_all(2)
        here, there = clients.by_worker[one], clients.by_worker[other]
        for channel in (here, there):
            search = retrieval_pb.SearchRequest(queries=["All about the bee."], top_k=3)
            found = await RetrievalServiceStub(channel).Search(search, timeout=100)
            assert {passage.passage_id for passage in found.results[0].passages} == {"cat", "bee", "mars"}

        (door,) = [step.rpartition(" ")[2] for step in told if "OpenAI-compatible" in step]
        async with aiohttp.ClientSession() as session, session.get(f"{door}/models") as response:
            assert response.status == 200

        upstream.plays(hang)
        call = AnswerServiceStub(here).StreamAnswer(answer_pb.StreamAnswerRequest(question="why?"), timeout=200)
        run_id = await started(call)
        await RunServiceStub(there).CancelRun(run_pb.CancelRunRequest(run_id=run_id), timeout=100)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await call.read():
                pass
        assert info_of(caught.value).reason == "RUN_CANCELLED"

        let = asyncio.Event()

        async def held(request: Any) -> Any:
            await let.wait()
            return await STOP(request)

        upstream.plays(held)
        call = AnswerServiceStub(here).StreamAnswer(answer_pb.StreamAnswerRequest(question="and?"), timeout=200)
        run_id = await started(call)
        watch = RunServiceStub(there).WatchRun(run_pb.WatchRunRequest(run_id=run_id), timeout=200)
        let.set()
        events = [response.event.WhichOneof("event") async for response in watch]
        assert (events[0], events[-1]) == ("run_started", "done")

        upstream.plays(says("hello"))
        ((pid,),) = rows(tmp_path, "SELECT pid FROM gateways WHERE gateway_id = ?", one)
        os.kill(pid, signal.SIGKILL)
        assert (await CompletionServiceStub(there).Complete(COMPLETE, timeout=100)).text == "hello"
        assert set(await clients.of_all(3)) > {one, other}
        pids = [pid for (pid,) in rows(tmp_path, "SELECT pid FROM gateways WHERE gateway_id != ?", one)]
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert rows(tmp_path, "SELECT count(*) FROM runs WHERE status = 'running'") == [(0,)]


async def test_a_worker_knows_what_its_parent_knows_to_be_down(tmp_path: Path) -> None:
    """Its health says so, and it ends when nobody is there any more."""
    readiness = Readiness()
    readiness.say("engines.small", ["answer"], "ended with code -9")
    async with serving() as upstream:
        config = config_of(tmp_path, upstream)
        retrieval = Server(None, RetrievalServicer(FixedRetriever({})))
        there = RetrievalConfig(address=f"127.0.0.1:{await retrieval.start('127.0.0.1:0')}")
        config = msgspec.structs.replace(config, retrieval=there)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        worker = WorkerProcess(1, Order(config, address, None, {}), lambda _step: None, readiness)
        await worker.start()
        async with meanwhile(worker.keep()), grpc.aio.insecure_channel(address) as channel:
            stub: Any = HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=200)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            readiness.say("engines.small", ["answer"], None)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()
        await worker.hang_up()
        async with asyncio.timeout(100):
            assert await worker.wait() == 0
        await retrieval.drain(0)


async def test_what_a_worker_cannot_do_is_told(tmp_path: Path) -> None:
    """By the gateway as a whole, which then does not start; a port that is taken is found before anything begins."""
    async with serving() as upstream:
        config = config_of(tmp_path, upstream)
        lost = msgspec.structs.replace(config.versions, start=str(tmp_path / "executor-000001"))
        with pytest.raises(BadConfig, match=r"^versions\.start: .*manifest\.json"):
            changed = msgspec.structs.replace(config, versions=lost)
            async with running_workers(changed, "127.0.0.1:0", lambda _step: None, None, 2):
                pytest.fail("it cannot start")
        taken = upstream.base_url.removeprefix("http://").removesuffix("/v1")
        with pytest.raises(BadConfig, match=f"^server.address: cannot listen on {taken}; is the port in use"):
            async with running_workers(config, taken, lambda _step: None, None, 2):
                pytest.fail("it cannot start")
