"""Managers of a config, asked for over gRPC: who is asked, by which prompts, and what it cost."""

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
from router.testing.openai_server import OpenAIServer, says, serving
from serving.cli.runs import runs
from serving.composition import running_gateway
from serving.config.check import problems
from serving.config.config import Config, ManagerConfig, ToolServerConfig
from serving.topologies import manager_configs
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
"""The delegator, the manager `pages`, the manager `search`, its worker twice, that manager, the
delegator, answerer.
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


def with_managers(config: Config, **others: ManagerConfig) -> Config:
    known = {
        "search": ManagerConfig(about="finds it in the documents"),
        "pages": ManagerConfig(about="opens pages"),
    }
    return msgspec.structs.replace(config, managers=known | others)


@asynccontextmanager
async def asked(folder: Path, *said: str) -> AsyncIterator[tuple[AsyncClient, OpenAIServer, str]]:
    """A client of a gateway with two managers, whose models say this."""
    async with serving() as server, retrieving() as port:
        server.plays(*map(says, said))
        config = with_managers(config_of(folder, server.base_url, port))
        async with (
            running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
            AsyncClient(address) as client,
        ):
            yield client, server, address


async def test_three_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The delegator knows the managers by what they are for; the ledger, the trace and the wire
    tell who did what.
    """
    async with asked(tmp_path, *SAID) as (client, server, _):
        answer = await client.ask(QUESTION, topology="host", no_cache=True)
        found = await client.run(answer.run_id, trace=True)
        usage = await client.usage(by=["role", "manager"])
    assert (answer.answer, len(server.bodies)) == ("Michael Mann", len(SAID))
    (result,) = answer.results
    assert (result.manager, result.outcome) == ("search", evidence_pb2.EXECUTION_OUTCOME_REPORTED)
    assert [worker.sub_query for worker in result.workers] == ["Who?"]
    assert [citation.quote for citation in answer.citations] == ["Heat is a film by Michael Mann."]
    lead, first = (server.bodies[number]["messages"][0]["content"] for number in (0, 1))
    assert "- search: finds it in the documents\n- pages: opens pages" in lead
    assert first.startswith((FULL / "manager.txt").read_text("utf-8").strip())
    assert "- search: finds it in the documents" in first
    assert "- pages" not in first
    at = [
        (
            call.role,
            call.sub_query_index if call.HasField("sub_query_index") else None,
            call.manager,
        )
        for call in found.calls
    ]
    lead_role = usage_pb2.ROLE_DELEGATION
    works = usage_pb2.ROLE_EXECUTION
    assert at == [
        (lead_role, None, ""),
        (lead_role, 0, "pages"),
        (lead_role, 0, "search"),
        (works, 0, "search"),
        (works, 0, "search"),
        (lead_role, 0, "search"),
        (lead_role, None, ""),
        (usage_pb2.ROLE_ANSWER, None, ""),
    ]
    assert [call.worker for call in found.calls if call.HasField("worker")] == [0, 0]
    sums = {(row.usage.role, row.usage.manager): row.usage.attempts for row in usage.rows}
    assert sums[lead_role, "search"] == sums[works, "search"] == 2
    assert {(row.role, row.manager) for row in answer.usage} == set(sums)
    trace = json.loads(found.trace_json)
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


async def test_what_is_shown_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rolegate runs show` prints all three layers, and what each manager spent."""
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


async def test_two_layers_stay_as_they_are(tmp_path: Path) -> None:
    """Without a word of managers in any prompt, beside managers in the config."""
    said = (block("Who?"), SEARCH, REPORT, STOP, ANSWER)
    async with asked(tmp_path, *said) as (client, server, _):
        answer = await client.ask(QUESTION, no_cache=True)
    assert answer.answer == "Michael Mann"
    assert "manager" not in json.dumps(server.bodies)


async def test_a_table(tmp_path: Path) -> None:
    """Is filled by managers, who are told the form of its reports."""
    async with asked(tmp_path, *FILLED) as (client, server, _):
        table = await client.table("All films.", "film*, director", no_cache=True)
    assert table.rows == [["Heat", "Michael Mann"]]
    assert len(server.bodies) == len(FILLED)
    assert "pages: opens pages" in server.bodies[0]["messages"][0]["content"]
    managing = server.bodies[1]["messages"][0]["content"]
    assert "- pages: opens pages" in managing
    assert managing.endswith((FULL / "table_manager.txt").read_text("utf-8").strip())


async def test_what_is_not_set_up(tmp_path: Path) -> None:
    """The error says what to add."""
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    async with (
        running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
        AsyncClient(address) as client,
    ):
        with pytest.raises(GatewayError, match=r"add \[managers.NAME\]"):
            await client.ask(QUESTION, topology="host")


async def test_a_managers_role(tmp_path: Path) -> None:
    """Is the delegator's with the shipped prompt, unless it has a prompt or a role of its own;
    that is checked.
    """
    config = config_of(tmp_path, "http://127.0.0.1:9/v1")
    lead = config.roles.delegation
    own = config.roles.answer
    config = with_managers(
        config,
        prompted=ManagerConfig(about="?", prompt=own.prompt),
        other=ManagerConfig(about="?", role=own),
    )
    found = manager_configs(config)
    assert found["search"] == msgspec.structs.replace(lead, prompt=f"{FULL}/manager.txt")
    assert found["prompted"] == msgspec.structs.replace(lead, prompt=own.prompt)
    assert found["other"] == own
    assert problems(config) == []
    broken = ManagerConfig(
        about="?", role=msgspec.structs.replace(own, engine="nowhere"), prompt="/nowhere"
    )
    told = problems(with_managers(config, broken=broken))
    assert any(one.startswith("managers.broken.prompt: there is no file") for one in told)
    assert any(one.startswith("managers.broken.role.engine") for one in told)
    async with open_runtime(config, lambda _told: None) as bench:
        assert isinstance(bench.topology("host").loop, FactorizedSearch)
        assert {"managers.search", "managers.other"} <= bench.topology("host").roles.keys()


async def test_tools_without_a_gateway(tmp_path: Path) -> None:
    """Are refused: the workers would search instead, and be measured as if they had them."""
    pages = ManagerConfig(about="opens pages", tools=("web",))
    config = with_managers(config_of(tmp_path, "http://127.0.0.1:9/v1"), pages=pages)
    async with open_runtime(config, lambda _told: None) as bench:
        with pytest.raises(BadConfig, match=r"^managers\.pages\.tools: only a gateway"):
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


def test_sweeps(tmp_path: Path) -> None:
    """Set `host` beside `factorized`, with the same models; the config has to have managers."""
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
    with pytest.raises(BadConfig, match="no managers"):
        cells_of(read_plan(tmp_path / "sweep.toml"))


async def test_workers_with_tools(tmp_path: Path) -> None:
    """Call those of their manager's servers, of whose output the citations are, and search for
    nothing.
    """
    page = {"id": "heat", "title": "Heat", "text": "Heat is a film by Michael Mann."}
    (tmp_path / "pages.jsonl").write_text(json.dumps(page), "utf-8")
    program = (
        sys.executable,
        str(FULL.parents[2] / "examples" / "mcp" / "mini_web.py"),
        f"{tmp_path}/pages.jsonl",
    )
    web = ToolServerConfig(command=program, allow=("fetch",))
    said = (
        PAGES,
        block("Who?"),
        '<call tool="fetch">{"url": "mini://heat"}</call>',
        REPORT,
        REPORT,
        STOP,
        ANSWER,
    )
    async with serving() as server, retrieving() as port:
        server.plays(*map(says, said))
        pages = ManagerConfig(about="opens pages", tools=("web",))
        config = with_managers(config_of(tmp_path, server.base_url, port), pages=pages)
        config = msgspec.structs.replace(config, tools={"web": web})
        assert problems(config) == []
        async with (
            running_gateway(config, "127.0.0.1:0", lambda _told: None) as at,
            AsyncClient(at) as client,
        ):
            answer = await client.ask(QUESTION, topology="host", no_cache=True)
            trace = json.loads((await client.run(answer.run_id, trace=True)).trace_json)
    (worker,) = trace["result"]["executions"][0]["work"]["executions"]
    told = server.bodies[2]["messages"][0]["content"]
    assert re.findall('<escalate to="NAME">.*</escalate>', told)
    assert "- search: finds it in the documents" in told
    assert [
        (one["call"]["server"], one["call"]["tool"], one["call"]["error"])
        for one in worker["searches"]
    ] == [("web", "fetch", None)]
    assert [citation.document for citation in answer.citations] == ["mini://heat"]
    assert [result.manager for result in answer.results] == ["pages"]
    lacking = with_managers(config, other=ManagerConfig(about="?", tools=("nowhere",)))
    assert problems(lacking) == ["managers.other.tools: no table tools.nowhere; add it."]
