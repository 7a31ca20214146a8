"""Topologies of a config, requested over gRPC."""

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from aiohttp import web
from rolegate.client import AsyncClient, GatewayError, calls
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from executor_sft.runtime import open_runtime
from router.calls import Role
from router.edge.grpc.server import Server
from router.models import Sampling
from router.search import Executor
from router.search.agent import ExecutorLimits
from router.trace import RoleName
from serving.cli.main import main
from serving.composition import running_gateway
from serving.config.config import (
    Config,
    RetrievalConfig,
    RoleConfig,
    RolesConfig,
    ServerConfig,
    TableRoleConfig,
)
from serving.config.file import preset
from serving.retrieval.services import RetrievalServicer
from serving.topologies import new_tables
from tests.openai_server import MODEL, OpenAIServer, says, serving
from tests.router.deployment import PASSAGE, STOP, block, report
from tests.router.retriever import FixedRetriever, one_index
from tests.router.unfiltered import Unfiltered
from tests.scripted_gateway import running
from tests.scripted_model import ScriptedModel

QUESTION = "Who made Heat?"
SEARCH = "<search>Heat</search>"
ANSWER = "<answer>Michael Mann</answer>"
REPORT = report("Michael Mann", "Heat is a film by Michael Mann.")
FULL = preset("mini").parents[1] / "prompts" / "full"
SAID = (block("Who?"), SEARCH, REPORT, STOP, ANSWER)
FILMS = report("Heat", "Heat is a film.")
WRITTEN = (
    block("Which?") + '<ask column="director">Who made {film}?</ask>',
    SEARCH,
    FILMS,
    SEARCH,
    REPORT,
    STOP,
)
ROLE_NAMES: tuple[RoleName, ...] = ("delegation", "execution", "answer")
DELEGATION = usage_pb2.ROLE_DELEGATION
EXECUTION = usage_pb2.ROLE_EXECUTION
ANSWERING = usage_pb2.ROLE_ANSWER


def config_of(folder: Path, base_url: str, retrieval: int = 9) -> Config:
    """Return a config with three roles, each with its own prompt."""

    def role(name: str, **settings: Any) -> RoleConfig:
        (folder / f"{name}.txt").write_text(f"{name}.", "utf-8")
        return RoleConfig(model=MODEL, prompt=f"{folder}/{name}.txt", base_url=base_url, **settings)

    roles = RolesConfig(
        delegation=role("delegation", max_tokens=10, thinking=True, temperature=0.5),
        execution=role("execution", max_tokens=20),
        answer=role("answer", max_tokens=30),
    )
    return Config(
        roles=roles,
        retrieval=RetrievalConfig(address=f"127.0.0.1:{retrieval}"),
        server=ServerConfig(store=f"sqlite:///{folder}/runs.db"),
    )


@asynccontextmanager
async def retrieving() -> AsyncIterator[int]:
    """Run a retrieval server, and yield its port."""
    server = Server(None, RetrievalServicer(one_index({"Heat": [PASSAGE]})))
    try:
        yield await server.start("127.0.0.1:0")
    finally:
        await server.drain(0)


@asynccontextmanager
async def asked(folder: Path, *replies: str) -> AsyncIterator[tuple[AsyncClient, OpenAIServer]]:
    """Yield a client of a gateway whose models reply with these texts."""
    async with serving() as server, retrieving() as port:
        server.plays(*map(says, replies))
        config = config_of(folder, server.base_url, port)
        async with (
            running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
            AsyncClient(address) as client,
        ):
            yield client, server


async def test_an_answer_records_its_topology(tmp_path: Path) -> None:
    """The ledger and the trace have the roles and their prompts."""
    async with asked(tmp_path, *SAID) as (client, server):
        answer = await client.ask(QUESTION, topology="factorized", no_cache=True)
        run = await client.run(answer.run_id, trace=True)
        exported = [json.loads(row.trace_json) async for row in client.export()]
    assert (answer.answer, answer.outcome) == ("Michael Mann", pb.ANSWER_OUTCOME_ANSWERED)
    assert [usage.role for usage in answer.usage] == [DELEGATION, EXECUTION, ANSWERING]
    assert len(run.calls) == len(server.bodies) == len(SAID)
    assert [citation.quote for citation in answer.citations] == ["Heat is a film by Michael Mann."]
    trace = json.loads(run.trace_json)
    assert exported == [trace]
    assert trace["result"]["topology"] == "factorized"
    shown = {body["messages"][0]["content"] for body in server.bodies}
    digests = {hashlib.sha256(prompt.encode()).hexdigest() for prompt in shown}
    assert {setting["prompt_sha256"] for setting in trace["settings"].values()} == digests


async def test_a_table_records_its_topology(tmp_path: Path) -> None:
    """The table has its sources; the ledger and the trace have the roles and their prompts."""
    async with asked(tmp_path, *WRITTEN) as (client, server):
        table = await client.table("All films.", "film*, director", no_cache=True)
        run = await client.run(table.run_id, trace=True)
        stored = await client.get_table(table.run_id)
    assert (table.rows, stored.message) == ([["Heat", "Michael Mann"]], table.message)
    assert table.message.outcome == table_pb.TABLE_OUTCOME_FILLED
    cell = table.message.rows[0].cells[1]
    assert [citation.quote for citation in cell.citations] == ["Heat is a film by Michael Mann."]
    assert [usage.role for usage in table.message.usage] == [DELEGATION, EXECUTION]
    spent = sum(usage.prompt_tokens + usage.completion_tokens for usage in table.message.usage)
    paid = sum(row.tokens for row in table.message.rows)
    assert (paid + table.message.overhead_tokens, paid > 0) == (spent, True)
    assert len(run.calls) == len(server.bodies) == len(WRITTEN)
    trace = json.loads(run.trace_json)
    shown = {body["messages"][0]["content"] for body in server.bodies}
    digests = {hashlib.sha256(prompt.encode()).hexdigest() for prompt in shown}
    assert {setting["prompt_sha256"] for setting in trace["settings"].values()} == digests


async def test_a_topology_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    """The error says what to add; an unknown number is a bad request."""
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    async with running_gateway(config, "127.0.0.1:0", lambda _told: None) as address:
        async with AsyncClient(address) as client:
            with pytest.raises(GatewayError, match=r"add \[managers.NAME\]") as refused:
                await client.ask(QUESTION, topology="host")
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await AnswerServiceStub(channel).Answer(
                    pb.AnswerRequest(question=QUESTION, topology=77)  # type: ignore[arg-type]
                )
    assert (refused.value.code, refused.value.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "BAD_CONFIG",
    )
    assert unknown.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_the_client_knows_the_same_topologies() -> None:
    """It requests the default unless another is given, and refuses unknown names."""
    for call in (calls.ask, calls.stream):
        assert call(QUESTION).request.topology == pb.TOPOLOGY_UNSPECIFIED
        assert call(QUESTION, topology="host").request.topology == pb.TOPOLOGY_HOST
        with pytest.raises(ValueError, match="got 'single_agent'"):
            call(QUESTION, topology="single_agent")  # type: ignore[arg-type]


def test_roles_of_tables_differ_in_prompts_and_output_limits_only(tmp_path: Path) -> None:
    """Fallbacks differ in the same way."""
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    tables = msgspec.structs.replace(config.roles, table_execution=TableRoleConfig(max_tokens=99))
    config = msgspec.structs.replace(config, roles=tables)
    stand_in = Role("execution", ScriptedModel([], "other"), "execute", Sampling(7))
    roles = {
        name: Role(name, ScriptedModel([], name), "do", Sampling(9), fallbacks=(stand_in,))
        for name in ROLE_NAMES
    }
    nothing = Unfiltered(FixedRetriever({}))
    executor = Executor(roles["execution"], nothing, ExecutorLimits())
    _, topology = new_tables(config, roles, executor, nothing)
    delegation = topology["delegation"]
    execution = topology["execution"]
    assert (delegation.sampling.max_tokens, execution.sampling.max_tokens) == (9, 99)
    assert delegation.system == (FULL / "table_delegation.txt").read_text("utf-8").strip()
    assert {execution.system, execution.fallbacks[0].system} == {
        (FULL / "table_execution.txt").read_text("utf-8").strip()
    }
    assert (execution.model, execution.fallbacks[0].model) == (
        roles["execution"].model,
        stand_in.model,
    )


async def test_a_workbench_builds_a_topology_with_its_seed_and_memory(tmp_path: Path) -> None:
    """A recorded reply is not requested again."""
    async with serving() as server, retrieving() as port:
        config = config_of(tmp_path, server.base_url, port)
        server.plays(*map(says, SAID), _never)
        answers = []
        async with open_runtime(config, lambda _told: None, cache=tmp_path / "calls") as bench:
            for _ in range(2):
                topology = bench.sampled(3).topology("factorized")
                answers.append((await topology.loop.run(QUESTION, bench.context())).answer)
                assert {role.sampling.seed for role in topology.roles.values()} == {3}
    assert answers == ["Michael Mann"] * 2


async def _never(_request: web.Request) -> web.StreamResponse:
    raise AssertionError("Nobody should have asked again.")


def test_ask_takes_a_topology(capsys: pytest.CaptureFixture[str]) -> None:
    """`rolegate ask --topology` requests it, and shows the gateway's error."""
    question = "When was the director of Heat born?"
    with running() as address:
        assert main(["ask", "--address", address, "--topology", "factorized", question]) == 0
        assert main(["ask", "--address", address, "--topology", "host", QUESTION]) == 1
    assert "add [managers.NAME] to the config" in capsys.readouterr().err
