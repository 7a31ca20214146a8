"""Tables that a model writes, by a runtime with a model server."""

from pathlib import Path

import pytest

from benchmarks.baselines.written_tables import Writing, writing, written_table
from benchmarks.widesearch.command import _from_models
from benchmarks.widesearch.tasks import Rule, Task
from executor_sft.runtime import open_runtime
from router.trace.table import Column
from tests.openai_server import says, serving
from tests.router.deployment import STOP, block
from tests.serving.test_topologies import FILMS, REPORT, SEARCH, config_of, retrieving

COLUMNS = (Column("film", key=True), Column("director"))
TABLE = "<answer>\n| film | director |\n|---|---|\n| Heat | Michael Mann |\n</answer>"
WRITE: dict[Writing, tuple[str, ...]] = {
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


async def made(folder: Path, topology: Writing, *replies: str) -> tuple[str | None, list[str]]:
    """Return the table, and the models' system prompts."""
    async with serving() as server, retrieving() as port:
        server.plays(*map(says, replies))
        config = config_of(folder, server.base_url, port)
        async with open_runtime(config, lambda _told: None) as runtime:
            loop = writing(runtime, topology)
            table = await written_table(loop, "All films.", COLUMNS, runtime.context())
    return table, [body["messages"][0]["content"] for body in server.bodies]


@pytest.mark.parametrize("topology", WRITE)
async def test_a_table_is_written_by_the_topology_s_model(
    tmp_path: Path, topology: Writing
) -> None:
    """The model has its own prompt."""
    table, prompts = await made(tmp_path, topology, *WRITE[topology])
    assert table == "| film | director |\n| --- | --- |\n| Heat | Michael Mann |\n"
    assert len(prompts) == len(WRITE[topology])
    assert "You write the table" in prompts[-1] or "write the table yourself" in prompts[-1]


async def test_a_reply_without_a_table_is_no_table(tmp_path: Path) -> None:
    """A run that found nothing has no table either."""
    assert (await made(tmp_path, "wide_single", SEARCH, *["I cannot."] * 3))[0] is None
    assert (await made(tmp_path, "wide_written", STOP, STOP))[0] is None


async def test_a_response_to_a_task_has_table_and_tokens(tmp_path: Path) -> None:
    """The table is in a fence, and tokens are by role."""
    task = Task("t", "All films.", "en", "", ("film",), {"film": Rule(), "director": Rule()})
    async with serving() as server, retrieving() as port:
        server.plays(*map(says, WRITE["wide_single"]))
        config = config_of(tmp_path, server.base_url, port)
        async with open_runtime(config, lambda _told: None) as runtime:
            response = await _from_models("wide_single", 60.0, runtime, (task, 0))
    assert response.response is not None
    assert response.response.splitlines()[::4] == ["```markdown", "```"]
    assert "| Heat | Michael Mann |" in response.response
    assert response.tokens["delegation"] > 0
