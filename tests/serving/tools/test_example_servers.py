"""The servers of `examples/mcp`, started as a config names them."""

import json
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from router.errors import ToolFailed
from router.search.tools import ToolOutput, Tools
from serving.config.config import ToolServerConfig
from tests.scripted_gateway import ROOT
from tests.serving.tools.pools import tools_of

PAGES = [
    {"id": "a", "title": "Ana", "text": "Ana was born in Vende."},
    {"id": "b-1", "title": "Bel", "text": "Bel."},
]


def example(program: str, *arguments: str, allow: tuple[str, ...]) -> ToolServerConfig:
    """Return the config section of an example."""
    return ToolServerConfig(
        command=(sys.executable, str(ROOT / "examples/mcp" / program), *arguments), allow=allow
    )


async def test_mini_web_reads_pages_by_address(tmp_path: Path) -> None:
    """A page has its title; blocked and missing pages are failures."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in PAGES), "utf-8")
    async with tools_of(
        example("mini_web.py", str(corpus), "--blocked", "^b", allow=("fetch",))
    ) as (tools, _):
        (fetch,) = await tools.available()
        assert (fetch.parameters["required"], fetch.description) == (
            ["url"],
            "Read a page by its address.",
        )
        page = ToolOutput("Ana was born in Vende.", "Ana", "mini://a")
        assert await tools.call(fetch, {"url": "mini://a"}) == page
        assert await tools.call(fetch, {"url": "a"}) == page
        for url, text in (
            ("mini://b-1", "403: mini://b-1 is blocked"),
            ("mini://c", "404: there is no page mini://c"),
        ):
            with pytest.raises(ToolFailed, match=text):
                await tools.call(fetch, {"url": url})


async def test_replay_gives_recorded_answers(tmp_path: Path) -> None:
    """A recorded call gets its answer, in any order of arguments; others fail and are counted."""
    calls = tmp_path / "calls.jsonl"
    misses = tmp_path / "misses.jsonl"
    call = {"server": "web", "tool": "look", "arguments": {"a": 1, "b": [2]}, "result": "found"}
    calls.write_text(
        json.dumps(call) + "\n" + json.dumps(call | {"server": "other", "tool": "hear"}) + "\n",
        "utf-8",
    )
    config = example(
        "replay.py", str(calls), "--server", "web", "--misses", str(misses), allow=("look", "hear")
    )
    async with tools_of(config) as (tools, _):
        (look,) = await tools.available()
        assert list(look.parameters["properties"]) == ["a", "b"]
        assert (await tools.call(look, {"b": [2], "a": 1})).text == "found"
        for number in (1, 2):
            with pytest.raises(ToolFailed, match=rf"miss {number}: not in calls\.jsonl"):
                await tools.call(look, {"a": number})
    missed = [json.loads(line) for line in misses.read_text("utf-8").splitlines()]
    assert [(miss["tool"], miss["arguments"]) for miss in missed] == [
        ("look", {"a": 1}),
        ("look", {"a": 2}),
    ]


async def test_run_python_runs_code_without_the_machine() -> None:
    """Variables are kept within a worker's session. What code may not do is told to the worker."""
    config = example("run_python.py", "--seconds", "1", "--megabytes", "10", allow=("python",))
    async with (
        tools_of(replace(config, own_sessions=True)) as (tools, _),
        tools.session() as first,
        tools.session() as second,
    ):
        (python,) = await first.available()

        async def run(worker: Tools, code: str) -> str:
            return (await worker.call(python, {"code": code})).text

        assert await run(first, "print('to add')\nages = [41, 17]\nsum(ages)") == "to add\n58"
        assert await run(first, "max(ages)") == "41"
        assert await run(second, "ages") == "NameError: name 'ages' is not defined"
        for code, error in (
            ("open('/etc/passwd').read()", "PermissionError"),
            ("import socket", "ModuleNotFoundError"),
            ("[0] * 10**9", "MemoryError"),
            ("while True: pass", "TimeoutError"),
        ):
            assert (await run(second, code)).startswith(error)
