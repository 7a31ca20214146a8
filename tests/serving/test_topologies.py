"""Baselines of a config, asked for over gRPC."""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from aiohttp import web
from rolegate.client import AsyncClient, GatewayError, calls
from rolegate.client.requests import TableTopologyName, TopologyName
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1 import usage_pb2
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from executor_sft.runtime import open_runtime
from router.calls import Role
from router.edge.grpc.server import Server
from router.errors import BadConfig
from router.models import Sampling, ScriptedModel
from router.search import Executor
from router.search.agent import ExecutorLimits
from router.testing.openai_server import MODEL, OpenAIServer, says, serving
from router.testing.retriever import FixedRetriever
from router.trace import RoleName
from serving.cli.ask import ask
from serving.composition import running_gateway
from serving.config.config import (
    Config,
    RetrievalConfig,
    RoleConfig,
    RolesConfig,
    ServerConfig,
    TableRoleConfig,
    TopologiesConfig,
)
from serving.config.file import load_config, preset
from serving.config.secrets import missing
from serving.retrieval.services import RetrievalServicer
from serving.topologies import new_tables, role_configs
from tests.router.deployment import PASSAGE, STOP, block, report
from tests.scripted_gateway import running

QUESTION = "Who made Heat?"
SEARCH = "<search>Heat</search>"
ANSWER = "<answer>Michael Mann</answer>"
REPORT = report("Michael Mann", "Heat is a film by Michael Mann.")
FULL = preset("mini").parents[1] / "prompts" / "full"
WHAT_THEY_SAY: Mapping[TopologyName, tuple[str, ...]] = {
    "factorized": (block("Who?"), SEARCH, REPORT, STOP, ANSWER),
    "single_agent": (SEARCH, ANSWER),
    "homogeneous": (block("Who?"), SEARCH, REPORT, STOP, ANSWER),
    "searcher": (block("Who?"), SEARCH, ANSWER, STOP, ANSWER),
    "no_retrieval": (ANSWER,),
}
TABLE = "<answer>\n| film | director |\n|---|---|\n| Heat | Michael Mann |\n</answer>"
FILMS = report("Heat", "Heat is a film.")
WHAT_THEY_WRITE: Mapping[TableTopologyName, tuple[str, ...]] = {
    "wide": (
        block("Which?") + '<ask column="director">Who made {film}?</ask>',
        SEARCH,
        FILMS,
        SEARCH,
        REPORT,
        STOP,
    ),
    "wide_written": (
        block("Which?"),
        SEARCH,
        FILMS,
        block("Who made Heat?"),
        SEARCH,
        REPORT,
        STOP,
        TABLE,
    ),
    "wide_single": (SEARCH, TABLE),
}
ROLE_NAMES: tuple[RoleName, ...] = ("delegation", "execution", "answer")
DELEGATION = usage_pb2.ROLE_DELEGATION
EXECUTION = usage_pb2.ROLE_EXECUTION
ANSWERING = usage_pb2.ROLE_ANSWER


def config_of(folder: Path, base_url: str, retrieval: int = 9, **topologies: Any) -> Config:
    """Three roles with prompts of their own."""

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
        topologies=TopologiesConfig(searcher=role("searcher"), **topologies),
    )


@asynccontextmanager
async def retrieving() -> AsyncIterator[int]:
    """The port of a retrieval server."""
    server = Server(
        None, RetrievalServicer(FixedRetriever({"Heat": [PASSAGE]}), index_id=lambda: "an index")
    )
    try:
        yield await server.start("127.0.0.1:0")
    finally:
        await server.drain(0)


@asynccontextmanager
async def asked(
    folder: Path, *said: str, **topologies: Any
) -> AsyncIterator[tuple[AsyncClient, OpenAIServer]]:
    """A client of a gateway whose models say this."""
    async with serving() as server, retrieving() as port:
        server.plays(*map(says, said))
        config = config_of(folder, server.base_url, port, **topologies)
        async with (
            running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
            AsyncClient(address) as client,
        ):
            yield client, server


@pytest.mark.parametrize(
    ("topology", "roles"),
    [
        ("factorized", [DELEGATION, EXECUTION, ANSWERING]),
        ("single_agent", [DELEGATION]),
        ("homogeneous", [DELEGATION, EXECUTION, ANSWERING]),
        ("searcher", [DELEGATION, EXECUTION, ANSWERING]),
        ("no_retrieval", [DELEGATION]),
    ],
)
async def test_each_can_be_asked_for(
    tmp_path: Path, topology: TopologyName, roles: list[int]
) -> None:
    """The answer is the same; the ledger and the trace say who came to it, and by which prompts."""
    async with asked(tmp_path, *WHAT_THEY_SAY[topology]) as (client, server):
        answer = await client.ask(QUESTION, topology=topology, no_cache=True)
        found = await client.run(answer.run_id, trace=True)
        exported = [json.loads(row.trace_json) async for row in client.export()]
    assert (answer.answer, answer.outcome) == ("Michael Mann", pb.ANSWER_OUTCOME_ANSWERED)
    assert [usage.role for usage in answer.usage] == roles
    assert len(found.calls) == len(server.bodies) == len(WHAT_THEY_SAY[topology])
    assert [citation.quote for citation in answer.citations] == (
        [] if topology == "no_retrieval" else ["Heat is a film by Michael Mann."]
    )
    trace = json.loads(found.trace_json)
    assert exported == [trace]
    assert trace["result"]["topology"] == topology
    shown = {body["messages"][0]["content"].partition(" Question:")[0] for body in server.bodies}
    digests = {hashlib.sha256(prompt.encode()).hexdigest() for prompt in shown}
    assert {setting["prompt_sha256"] for setting in trace["settings"].values()} == digests


@pytest.mark.parametrize(
    ("topology", "roles"),
    [
        ("wide", [DELEGATION, EXECUTION]),
        ("wide_written", [DELEGATION, EXECUTION, ANSWERING]),
        ("wide_single", [DELEGATION]),
    ],
)
async def test_each_way_to_a_table(
    tmp_path: Path, topology: TableTopologyName, roles: list[int]
) -> None:
    """The table is the same, with its sources; the ledger and the trace say whose it is, and by
    which prompts.
    """
    async with asked(tmp_path, *WHAT_THEY_WRITE[topology]) as (client, server):
        table = await client.table(
            "All films.", "film*, director", topology=topology, no_cache=True
        )
        found = await client.run(table.run_id, trace=True)
        again = await client.get_table(table.run_id)
    assert (table.rows, again.message) == ([["Heat", "Michael Mann"]], table.message)
    assert table.message.outcome == table_pb.TABLE_OUTCOME_FILLED
    cell = table.message.rows[0].cells[1]
    assert [citation.quote for citation in cell.citations] == ["Heat is a film by Michael Mann."]
    assert [usage.role for usage in table.message.usage] == roles
    spent = sum(usage.prompt_tokens + usage.completion_tokens for usage in table.message.usage)
    paid = sum(row.tokens for row in table.message.rows)
    assert (paid + table.message.overhead_tokens, paid > 0) == (spent, topology == "wide")
    assert len(found.calls) == len(server.bodies) == len(WHAT_THEY_WRITE[topology])
    trace = json.loads(found.trace_json)
    assert trace["result"]["topology"] == topology
    shown = {body["messages"][0]["content"] for body in server.bodies}
    digests = {hashlib.sha256(prompt.encode()).hexdigest() for prompt in shown}
    assert {setting["prompt_sha256"] for setting in trace["settings"].values()} == digests


async def test_who_streams_hears_of_the_searches(tmp_path: Path) -> None:
    """A single agent's have no sub-query's number."""
    async with asked(tmp_path, *WHAT_THEY_SAY["single_agent"]) as (client, _):
        events = [event async for event in client.stream(QUESTION, topology="single_agent")]
    assert [event.WhichOneof("event") for event in events] == [
        "run_started",
        "search_done",
        "answer_written",
        "usage_counted",
        "done",
    ]
    assert (events[1].search_done.index, list(events[1].search_done.titles)) == (-1, ["Heat"])


async def test_a_request_id_names_one_topology(tmp_path: Path) -> None:
    """The same question of another topology is another request."""
    async with asked(tmp_path, *WHAT_THEY_SAY["no_retrieval"]) as (client, server):
        first = await client.ask(QUESTION, topology="no_retrieval", request_id="mine")
        again = await client.ask(QUESTION, topology="no_retrieval", request_id="mine")
        with pytest.raises(GatewayError) as taken:
            await client.ask(QUESTION, topology="single_agent", request_id="mine")
    assert (first.run_id, len(server.bodies)) == (again.run_id, 1)
    assert taken.value.code == grpc.StatusCode.ALREADY_EXISTS


async def test_what_is_not_set_up(tmp_path: Path) -> None:
    """The error says what to add; a number of no topology is a bad request."""
    config = msgspec.structs.replace(
        config_of(tmp_path, "http://127.0.0.1:9/v1"), topologies=TopologiesConfig()
    )
    async with running_gateway(config, "127.0.0.1:0", lambda _told: None) as address:
        async with AsyncClient(address) as client:
            with pytest.raises(GatewayError, match=r"add \[topologies.searcher\]") as refused:
                await client.ask(QUESTION, topology="searcher")
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
    async with open_runtime(config, lambda _told: None) as bench:
        with pytest.raises(BadConfig, match=r"add \[topologies.searcher\]"):
            bench.topology("searcher")


def test_the_client_knows_no_other_topology() -> None:
    """And asks for none unless it is told to."""
    for call in (calls.ask, calls.stream):
        assert call(QUESTION).request.topology == pb.TOPOLOGY_UNSPECIFIED
        assert call(QUESTION, topology="homogeneous").request.topology == pb.TOPOLOGY_HOMOGENEOUS
        with pytest.raises(ValueError, match="got 'pair'"):
            call(QUESTION, topology="pair")  # type: ignore[arg-type]


def test_the_main_agent_is_the_delegators_model(tmp_path: Path) -> None:
    """With its sampling and thinking; it may write as much as the longer of the roles that it
    stands for.
    """
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    found = role_configs(config)
    backbone = config.roles.delegation
    alone = msgspec.structs.replace(backbone, prompt=f"{FULL}/agent.txt", max_tokens=30)
    unaided = msgspec.structs.replace(backbone, prompt=f"{FULL}/no_retrieval.txt", max_tokens=30)
    executes = msgspec.structs.replace(
        backbone, prompt=config.roles.execution.prompt, max_tokens=20
    )
    assert (found["single_agent"], found["no_retrieval"], found["homogeneous"]) == (
        alone,
        unaided,
        executes,
    )


def test_roles_in_the_work_on_tables(tmp_path: Path) -> None:
    """Are the usual ones, but for prompts and, where that is set, what they may write;
    fallbacks alike.
    """
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    tables = msgspec.structs.replace(config.roles, table_execution=TableRoleConfig(max_tokens=99))
    writes = TopologiesConfig(wide_written_answer=TableRoleConfig(max_tokens=77))
    config = msgspec.structs.replace(config, roles=tables, topologies=writes)
    stand_in = Role("execution", ScriptedModel([], "other"), "execute", Sampling(7))
    roles = {
        name: Role(name, ScriptedModel([], name), "do", Sampling(9), fallbacks=(stand_in,))
        for name in ROLE_NAMES
    }
    nothing = FixedRetriever({})
    made = new_tables(
        config, roles, Executor(roles["execution"], nothing, ExecutorLimits()), nothing
    )
    delegation = made["wide"].roles["delegation"]
    execution = made["wide"].roles["execution"]
    assert (delegation.sampling.max_tokens, execution.sampling.max_tokens) == (9, 99)
    assert delegation.system == (FULL / "table_delegation.txt").read_text("utf-8").strip()
    assert {execution.system, execution.fallbacks[0].system} == {
        (FULL / "table_execution.txt").read_text("utf-8").strip()
    }
    assert (execution.model, execution.fallbacks[0].model) == (
        roles["execution"].model,
        stand_in.model,
    )
    written = made["wide_written"].roles
    alone = made["wide_single"].roles["delegation"]
    assert (written["answer"].sampling.max_tokens, alone.sampling.max_tokens) == (77, 77)
    assert written["execution"] == execution
    for role, prompt in (
        (written["delegation"], "wide_written_delegation"),
        (written["answer"], "wide_written_answer"),
        (alone, "wide_single"),
    ):
        assert role.system == (FULL / f"{prompt}.txt").read_text("utf-8").strip()


async def test_a_workbench_makes_each(tmp_path: Path) -> None:
    """With its seed and its memory: what was said once is not asked for again."""
    async with serving() as server, retrieving() as port:
        config = config_of(tmp_path, server.base_url, port)
        for topology, said in WHAT_THEY_SAY.items():
            server.plays(*map(says, said), _never)
            answers = []
            async with open_runtime(config, lambda _told: None, cache=tmp_path / topology) as bench:
                for _ in range(2):
                    made = bench.sampled(3).topology(topology)
                    answers.append((await made.loop.run(QUESTION, bench.context())).answer)
                    assert {role.sampling.seed for role in made.roles.values()} == {3}
            assert answers == ["Michael Mann"] * 2


async def _never(_request: web.Request) -> web.StreamResponse:
    raise AssertionError("Nobody should have asked again.")


ROLE = 'model = "m"\nprompt = "prompt.txt"\n'
HERE = 'base_url = "http://127.0.0.1:9/v1"\n'
ROLES = "".join(f"[roles.{name}]\n{ROLE}{HERE}" for name in ("delegation", "execution", "answer"))


def loaded(folder: Path, topologies: str) -> Config:
    """A config file with these tables."""
    (folder / "prompt.txt").write_text("Do it.\n", "utf-8")
    (folder / "my.toml").write_text(
        f'{topologies}{ROLES}[retrieval]\naddress = "127.0.0.1:9"\n', "utf-8"
    )
    return load_config(folder / "my.toml")


def test_paths_in_the_tables(tmp_path: Path) -> None:
    """Are relative to the file, as all are."""
    tables = (
        f'[topologies.single_agent]\nprompt = "prompt.txt"\n[topologies.searcher]\n{ROLE}{HERE}'
    )
    found = loaded(tmp_path, tables).topologies
    assert found.searcher is not None
    assert found.single_agent.prompt == found.searcher.prompt == f"{tmp_path.resolve()}/prompt.txt"
    mini = load_config(preset("mini")).topologies
    assert mini.single_agent.prompt is not None
    assert Path(mini.single_agent.prompt).is_file()


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        (f"[topologies.searcher]\n{ROLE}", "topologies.searcher: needs engine or base_url"),
        (
            f'[topologies.searcher]\n{ROLE}engine = "e"\n',
            "topologies.searcher.engine: no table engines.e",
        ),
        (
            '[topologies.single_agent]\nprompt = "x.txt"\n',
            "topologies.single_agent.prompt: there is no file",
        ),
        (
            "[topologies.no_retrieval]\nmax_tokens = 0\n",
            "topologies.no_retrieval.max_tokens: unknown field",
        ),
        ('[topologies.pair]\nprompt = "x.txt"\n', "topologies.pair: unknown field"),
        (
            '[topologies.single_agent]\nmodel = "m"\n',
            "topologies.single_agent.model: unknown field",
        ),
    ],
)
def test_tables_that_cannot_be(tmp_path: Path, tables: str, problem: str) -> None:
    """Each is named with its key."""
    with pytest.raises(BadConfig, match=problem.replace(".", r"\.")):
        loaded(tmp_path, tables)


def test_a_key_of_the_searcher_s(tmp_path: Path) -> None:
    """Is missed at the start."""
    config = loaded(
        tmp_path, f'[topologies.searcher]\n{ROLE}{HERE}api_key_env = "NOBODY_SETS_THIS"\n'
    )
    assert missing(config) == [
        (
            "topologies.searcher.api_key_env: the environment variable NOBODY_SETS_THIS is "
            "not set; export it."
        )
    ]


def test_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`rolegate ask --topology` asks for it, and shows what the gateway says to that."""
    with running() as address:
        assert (
            ask(
                [
                    "--address",
                    address,
                    "--topology",
                    "factorized",
                    "When was the director of Heat born?",
                ]
            )
            == 0
        )
        assert ask(["--address", address, "--topology", "searcher", QUESTION]) == 1
    assert "add [topologies.searcher] to the gateway's config" in capsys.readouterr().err
