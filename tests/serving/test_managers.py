"""Managers of a config, used over gRPC: their calls, prompts and costs."""

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1 import evidence_pb2, usage_pb2

from benchmarks.study.cells import cells_of
from benchmarks.study.plan import read_plan
from executor_sft.runtime import open_runtime
from router.errors import BadConfig
from router.search import FactorizedSearch
from serving.cli.runs import runs
from serving.composition import running_gateway
from serving.config.check import problems
from serving.config.config import Config, ManagerConfig, ToolServerConfig
from serving.topologies import manager_configs
from tests.openai_server import OpenAIServer, says, serving
from tests.router.deployment import STOP, block, report
from tests.serving.test_topologies import (
    ANSWER,
    FULL,
    QUESTION,
    REPORT,
    SEARCH,
    config_of,
    retrieving,
)

PAGES = '<search manager="pages">Who made Heat?</search>'
HANDED_ON = '<escalate to="search">it is in the documents</escalate>'
SAID = (PAGES, HANDED_ON, block("Who?"), SEARCH, REPORT, REPORT, STOP, ANSWER)
"""Replies in order: the delegator, the manager `pages`, the manager `search`, its worker twice,
that manager, the delegator, the answerer.
"""
ASKED = block("Which?") + '<ask column="director">Who made {film}?</ask>'
FILMS = report("Heat", "Heat is a film.")
FILLED = (
    ASKED,
    block("Which?"),
    SEARCH,
    FILMS,
    FILMS,
    block("Who made Heat?"),
    SEARCH,
    REPORT,
    REPORT,
    STOP,
)


def with_managers(config: Config, **keys: ManagerConfig) -> Config:
    """Return the config with the managers `search` and `pages`, and these."""
    known = {
        "search": ManagerConfig(about="finds it in the documents"),
        "pages": ManagerConfig(about="opens pages"),
    }
    return msgspec.structs.replace(config, managers=known | keys)


@asynccontextmanager
async def asked(
    folder: Path, *replies: str
) -> AsyncIterator[tuple[AsyncClient, OpenAIServer, str]]:
    """Yield a client of a gateway with two managers, whose models reply with these texts."""
    async with serving() as server, retrieving() as port:
        server.plays(*map(says, replies))
        config = with_managers(config_of(folder, server.base_url, port))
        async with (
            running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
            AsyncClient(address) as client,
        ):
            yield client, server, address


async def test_the_delegator_delegates_to_managers_and_they_to_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The delegator's prompt describes the managers.

    The ledger, the trace and the protocol have the layer of every call.
    """
    async with asked(tmp_path, *SAID) as (client, server, _):
        answer = await client.ask(QUESTION, topology="host", no_cache=True)
        run = await client.run(answer.run_id, trace=True)
        usage = await client.usage(by=["role", "manager"])
    assert (answer.answer, len(server.bodies)) == ("Michael Mann", len(SAID))
    (result,) = answer.results
    assert (result.manager, result.outcome) == ("search", evidence_pb2.EXECUTION_OUTCOME_REPORTED)
    assert [worker.sub_query for worker in result.workers] == ["Who?"]
    assert [citation.quote for citation in answer.citations] == ["Heat is a film by Michael Mann."]
    delegator_prompt, manager_prompt = (
        server.bodies[number]["messages"][0]["content"] for number in (0, 1)
    )
    assert "- search: finds it in the documents\n- pages: opens pages" in delegator_prompt
    assert manager_prompt.startswith((FULL / "manager.txt").read_text("utf-8").strip())
    assert "- search: finds it in the documents" in manager_prompt
    assert "- pages" not in manager_prompt
    positions = [
        (
            call.role,
            call.sub_query_index if call.HasField("sub_query_index") else None,
            call.manager,
        )
        for call in run.calls
    ]
    lead_role = usage_pb2.ROLE_DELEGATION
    works = usage_pb2.ROLE_EXECUTION
    assert positions == [
        (lead_role, None, ""),
        (lead_role, 0, "pages"),
        (lead_role, 0, "search"),
        (works, 0, "search"),
        (works, 0, "search"),
        (lead_role, 0, "search"),
        (lead_role, None, ""),
        (usage_pb2.ROLE_ANSWER, None, ""),
    ]
    assert [call.worker for call in run.calls if call.HasField("worker")] == [0, 0]
    sums = {(row.usage.role, row.usage.manager): row.usage.attempts for row in usage.rows}
    assert sums[lead_role, "search"] == sums[works, "search"] == 2
    assert {(row.role, row.manager) for row in answer.usage} == set(sums)
    trace = json.loads(run.trace_json)
    shown = {body["messages"][0]["content"] for body in server.bodies}
    digests = {sha256(prompt.encode()).hexdigest() for prompt in shown}
    assert {setting["prompt_sha256"] for setting in trace["settings"].values()} == digests
    assert set(trace["settings"]) == {
        "delegation",
        "execution",
        "answer",
        "managers.search",
        "managers.pages",
    }


async def test_runs_show_prints_all_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output has the cost of each manager."""
    import asyncio

    async with asked(tmp_path, *SAID) as (client, _, address):
        answer = await client.ask(QUESTION, topology="host", no_cache=True)
        assert await asyncio.to_thread(runs, ["show", answer.run_id, "--address", address]) == 0
    printed = capsys.readouterr().out
    for line in (
        "1. Who made Heat? → escalated (pages)",
        "1. Who made Heat? → Michael Mann (search)",
        "1.1. Who?",
    ):
        assert line in printed


async def test_prompts_without_managers_do_not_mention_them(tmp_path: Path) -> None:
    """This holds for two layers in a config that has managers."""
    replies = (block("Who?"), SEARCH, REPORT, STOP, ANSWER)
    async with asked(tmp_path, *replies) as (client, server, _):
        answer = await client.ask(QUESTION, no_cache=True)
    assert answer.answer == "Michael Mann"
    assert "manager" not in json.dumps(server.bodies)


async def test_a_table_is_filled_by_managers(tmp_path: Path) -> None:
    """Their prompts describe the form of reports for tables."""
    async with asked(tmp_path, *FILLED) as (client, server, _):
        table = await client.table("All films.", "film*, director", no_cache=True)
    assert table.rows == [["Heat", "Michael Mann"]]
    assert len(server.bodies) == len(FILLED)
    assert "pages: opens pages" in server.bodies[0]["messages"][0]["content"]
    managing = server.bodies[1]["messages"][0]["content"]
    assert "- pages: opens pages" in managing
    assert managing.endswith((FULL / "table_manager.txt").read_text("utf-8").strip())


async def test_a_missing_manager_is_reported_with_the_remedy(tmp_path: Path) -> None:
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    async with (
        running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
        AsyncClient(address) as client,
    ):
        with pytest.raises(GatewayError, match=r"add \[managers.NAME\]"):
            await client.ask(QUESTION, topology="host")


async def test_a_manager_has_the_delegator_s_role_by_default(tmp_path: Path) -> None:
    """Its prompt is the shipped one. A config may give it a prompt or a role, which is checked."""
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    lead = config.roles.delegation
    role = config.roles.answer
    config = with_managers(
        config,
        prompted=ManagerConfig(about="?", prompt=role.prompt),
        other=ManagerConfig(about="?", role=role),
    )
    managers = manager_configs(config)
    assert managers["search"] == msgspec.structs.replace(lead, prompt=f"{FULL}/manager.txt")
    assert managers["prompted"] == msgspec.structs.replace(lead, prompt=role.prompt)
    assert managers["other"] == role
    assert problems(config) == []
    broken = ManagerConfig(
        about="?", role=msgspec.structs.replace(role, engine="nowhere"), prompt="/nowhere"
    )
    messages = problems(with_managers(config, broken=broken))
    assert any(
        message.startswith("managers.broken.prompt: there is no file") for message in messages
    )
    assert any(message.startswith("managers.broken.role.engine") for message in messages)
    async with open_runtime(config, lambda _told: None) as bench:
        assert isinstance(bench.topology("host").loop, FactorizedSearch)
        assert {"managers.search", "managers.other"} <= bench.topology("host").roles.keys()


async def test_managers_with_tools_need_a_gateway(tmp_path: Path) -> None:
    """Without a gateway they are refused: the workers would search instead, and the measurement
    would be wrong.
    """
    pages = ManagerConfig(about="opens pages", tools=("web",))
    config = with_managers(config_of(tmp_path, "http://127.0.0.1:9/v1"), pages=pages)
    async with open_runtime(config, lambda _told: None) as bench:
        with pytest.raises(
            BadConfig, match=r"^managers\.pages\.tools: tools work only in a gateway"
        ):
            bench.topology("host")


PLAN = """
questions = ["questions.jsonl"]
config = "rolegate.toml"
[models.large]
[models.small]
[[pairs]]
backbone = ["large"]
executor = ["small"]
[[pairs]]
backbone = ["large"]
executor = ["small"]
topology = "host"
"""
CONFIG = """
[retrieval]
address = "127.0.0.1:9"
"""
ROLE = '[roles.{}]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\nprompt = "p.txt"\n'
MANAGERS = '[managers.search]\nabout = "finds it"\n'


def test_a_sweep_compares_managers_with_the_two_layers(tmp_path: Path) -> None:
    """Both arms, `host` and `factorized`, have the same models; the config needs managers."""
    (tmp_path / "p.txt").write_text("do it", "utf-8")
    (tmp_path / "sweep.toml").write_text(PLAN, "utf-8")
    config = CONFIG + "".join(map(ROLE.format, ("delegation", "execution", "answer")))
    (tmp_path / "rolegate.toml").write_text(config + MANAGERS, "utf-8")
    cells = cells_of(read_plan(tmp_path / "sweep.toml"))
    assert [(cell.name, cell.topology) for cell in cells] == [
        ("large + small", "factorized"),
        ("host: large + small", "host"),
    ]
    assert list(cells[1].roles) == ["delegation", "execution", "answer", "managers.search"]
    (tmp_path / "rolegate.toml").write_text(config, "utf-8")
    with pytest.raises(BadConfig, match="needs managers"):
        cells_of(read_plan(tmp_path / "sweep.toml"))


async def test_workers_use_the_tools_of_their_manager(tmp_path: Path) -> None:
    """Citations are of the tools' output, and nothing is searched."""
    page = {"id": "heat", "title": "Heat", "text": "Heat is a film by Michael Mann."}
    (tmp_path / "pages.jsonl").write_text(json.dumps(page), "utf-8")
    program = (
        sys.executable,
        str(FULL.parents[2] / "examples" / "mcp" / "mini_web.py"),
        f"{tmp_path}/pages.jsonl",
    )
    web = ToolServerConfig(command=program, allow=("fetch",))
    replies = (
        PAGES,
        block("Who?"),
        '<call tool="fetch">{"url": "mini://heat"}</call>',
        REPORT,
        REPORT,
        STOP,
        ANSWER,
    )
    async with serving() as server, retrieving() as port:
        server.plays(*map(says, replies))
        pages = ManagerConfig(about="opens pages", tools=("web",))
        config = with_managers(config_of(tmp_path, server.base_url, port), pages=pages)
        config = msgspec.structs.replace(config, tools={"web": web})
        assert problems(config) == []
        async with (
            running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
            AsyncClient(address) as client,
        ):
            answer = await client.ask(QUESTION, topology="host", no_cache=True)
            trace = json.loads((await client.run(answer.run_id, trace=True)).trace_json)
    (worker,) = trace["result"]["executions"][0]["work"]["executions"]
    prompt = server.bodies[2]["messages"][0]["content"]
    assert re.findall('<escalate to="NAME">.*</escalate>', prompt)
    assert "- search: finds it in the documents" in prompt
    assert [
        (search["call"]["server"], search["call"]["tool"], search["call"]["error"])
        for search in worker["searches"]
    ] == [("web", "fetch", None)]
    assert [citation.document for citation in answer.citations] == ["mini://heat"]
    assert [result.manager for result in answer.results] == ["pages"]
    lacking = with_managers(config, other=ManagerConfig(about="?", tools=("nowhere",)))
    assert problems(lacking) == ["managers.other.tools: there is no table tools.nowhere; add it."]
