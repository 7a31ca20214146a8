"""Workers of a config: tools with both forms of models, and opened documents, over gRPC."""

import json
from pathlib import Path

import msgspec
import pytest
from rolegate.client import AsyncClient

from router.errors import BadConfig
from router.models.connection_pool import ConnectionPool
from router.protocol import Passage
from router.search.context import Reporting
from router.search.tools import Tool, ToolOutput
from router.table.filling import TABLE_REPORTING
from router.trace.values import ToolCall
from serving.composition import running_gateway
from serving.config.config import Config, SearchConfig
from serving.roles import new_role
from serving.topologies import new_worker
from tests.openai_server import Behaviour, says, serving
from tests.router.deployment import STOP, block, lasting, report
from tests.router.models.test_tool_calls import chunks
from tests.router.retriever import FixedRetriever
from tests.router.tools import FixedTools
from tests.router.unfiltered import Unfiltered
from tests.serving.retrieval.test_services import served
from tests.serving.test_topologies import QUESTION, config_of

FETCH = Tool(
    "web", "fetch", "Fetch a page.", {"type": "object", "properties": {"url": {"type": "string"}}}
)
ARGUMENTS = '{"url": "http://mini/heat"}'
PAGE = ToolOutput("Heat is a film by Michael Mann.", "Heat", "http://mini/heat")
REPORT = report("Michael Mann", "Heat is a film by Michael Mann.")
OPENED = Passage("heat.pdf#7", "Heat", "Heat is a film by Michael Mann.", 0.5, "heat.pdf")


@pytest.mark.parametrize("reporting", [Reporting(), TABLE_REPORTING], ids=["answer", "table"])
@pytest.mark.parametrize("tool_calls", [False, True])
async def test_tools_work_with_both_forms_of_models(
    tmp_path: Path, tool_calls: bool, reporting: Reporting
) -> None:
    """A model with native tool calls gets tools and results as such; another model gets them in its
    prompt. Either way, the report cites the page.
    """
    asks: Behaviour = (
        chunks(("fetch", ARGUMENTS))
        if tool_calls
        else says(f'<call tool="fetch">{ARGUMENTS}</call>')
    )
    tools = FixedTools([FETCH], {"http://mini/heat": PAGE})
    async with serving() as server, ConnectionPool(4) as pool:
        server.plays(asks, says(REPORT))
        config = config_of(tmp_path, server.base_url)
        execution = msgspec.structs.replace(config.roles.execution, tool_calls=tool_calls)
        worker = new_worker(config, new_role("execution", execution, pool, {}), None, tools)
        done = await worker.run(
            "Who made Heat?", 0, msgspec.structs.replace(lasting(), reporting=reporting)
        )
        first, second = server.bodies
    assert (done.outcome, done.report.answer) == ("reported", "Michael Mann")
    (search,) = done.searches
    assert isinstance(search.call, ToolCall)
    assert (search.call.server, search.call.error) == ("web", None)
    assert done.citations(done.report.evidence)[0][0].document == "http://mini/heat"
    system = first["messages"][0]["content"]
    assert ("tools" in first, "<tools>" in system) == (tool_calls, not tool_calls)
    assert first["stop"] == ["</search>", "</evidence>", "</access>", "</call>"]
    roles = ["system", "user", "assistant", "tool" if tool_calls else "user"]
    assert [message["role"] for message in second["messages"]] == roles
    assert second["messages"][-1]["content"].startswith(
        '<documents><document index="0"><name>http://mini/heat</name>'
    )
    if tool_calls:
        assert json.loads(
            second["messages"][2]["tool_calls"][0]["function"]["arguments"]
        ) == json.loads(ARGUMENTS)


def with_access(config: Config, address: str) -> Config:
    """Return the config with documents that can be opened, at this retrieval server."""
    retrieval = msgspec.structs.replace(config.retrieval, address=address)
    return msgspec.structs.replace(config, search=SearchConfig(access=True), retrieval=retrieval)


async def test_executors_open_documents(tmp_path: Path) -> None:
    """An opened document is cited in the answer, and counts as a search.

    Prompts of other roles and of baselines do not mention it.
    """
    replies = (
        block("Who?"),
        "<search>Heat</search>",
        '<access document="heat.pdf">who made it</access>',
        REPORT,
        STOP,
    )
    list_of = Passage("heat.pdf#1", "Heat", "A cast list.", 0.9, "heat.pdf")
    retriever = FixedRetriever({"Heat": [list_of], "who made it": [OPENED]})
    async with serving() as server, served(retriever) as retrieval:
        server.plays(*map(says, replies), says("<answer>Michael Mann</answer>"))
        config = with_access(config_of(tmp_path, server.base_url), retrieval)
        async with (
            running_gateway(config, "127.0.0.1:0", lambda _told: None) as address,
            AsyncClient(address) as client,
        ):
            answer = await client.ask(QUESTION)
    assert answer.answer == "Michael Mann"
    assert [(citation.passage_id, citation.document) for citation in answer.citations] == [
        ("heat.pdf#7", "heat.pdf")
    ]
    assert list(answer.results[0].search_queries) == ["Heat", "who made it (in heat.pdf)"]
    mentions = ["<access" in body["messages"][0]["content"] for body in server.bodies]
    assert mentions == [False, True, True, True, False, False]


async def test_a_retriever_that_cannot_open_is_refused_at_the_start(tmp_path: Path) -> None:
    """The error says what to do."""
    nameless = FixedRetriever({"document": [Passage("p", "Heat", "Heat is a film.")]})
    async with serving() as server, served(nameless) as retrieval:
        config = with_access(config_of(tmp_path, server.base_url), retrieval)
        with pytest.raises(BadConfig, match=r"search\.access: .*set search\.access to false"):
            async with running_gateway(config, "127.0.0.1:0", lambda _told: None):
                pass


async def test_only_executors_that_search_open_documents(tmp_path: Path) -> None:
    """The prompt of a worker with tools alone does not mention documents to open; an executor's
    does.
    """
    async with ConnectionPool(4) as pool:
        config = with_access(config_of(tmp_path, "http://127.0.0.1:9/v1"), "127.0.0.1:9")
        role = new_role("execution", config.roles.execution, pool, {})
        mentions = []
        alone = new_worker(config, role, None, FixedTools([FETCH], {}))
        for worker in (alone, new_worker(config, role, Unfiltered(FixedRetriever({})))):
            done = await worker.run("Who?", 0, lasting())
            mentions.append("<access" in done.conversation.messages[0].content)
    assert mentions == [False, True]
