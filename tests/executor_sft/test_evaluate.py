"""Executors are asked the same questions as often as was said, each time anew; what cannot be is refused first."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from executor_sft.evaluate import BASE, adapter_name, answers, main
from executor_sft.workbench import workbench
from router.errors import BadConfig, UpstreamRefused
from serving.config.file import load_config
from tests.executor_sft.scripted_roles import questions
from tests.executor_sft.test_workbench import ROLE, config
from tests.router.deployment import STOP


class Endpoint:
    """A backbone that stops at once, unless it refuses everything."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.refuses = False

    async def complete(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        if self.refuses:
            return web.json_response({"error": {"message": "not you"}}, status=403)
        self.seeds.append(body["seed"])
        message = {"role": "assistant", "content": STOP}
        return web.json_response({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[Endpoint]:
    """With a config for it."""
    endpoint, app = Endpoint(), web.Application()
    app.add_routes([web.post("/v1/chat/completions", endpoint.complete)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config(tmp_path, role=ROLE.replace("127.0.0.1:9", f"127.0.0.1:{runner.addresses[0][1]}"))
    yield endpoint
    await runner.cleanup()


async def test_every_rollout_is_one(endpoint: Endpoint, tmp_path: Path) -> None:
    """With a seed of its own also at the config's temperature; what is remembered is not taken for another rollout."""
    async with workbench(load_config(tmp_path / "config.toml"), print, remember=tmp_path / "calls") as bench:
        answered = await answers(bench, [BASE], questions(2), rollouts=3)
    assert len(answered[BASE]) == 6
    assert endpoint.seeds == [0, 0, 1, 1, 2, 2]


async def test_an_endpoint_that_refuses(endpoint: Endpoint, tmp_path: Path) -> None:
    """Says so itself, however many questions it has refused."""
    endpoint.refuses = True
    async with workbench(load_config(tmp_path / "config.toml"), print) as bench:
        with pytest.raises(UpstreamRefused, match="not you"):
            await answers(bench, [BASE], questions(3), rollouts=1)


def adapter(folder: Path, weights: bytes) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "adapter_model.safetensors").write_bytes(weights)
    return folder / "model"


def test_an_adapter_is_loaded_under_a_name_that_no_other_one_has(tmp_path: Path) -> None:
    """An engine that goes on running keeps what it has under a name; a version has its own."""
    first = adapter(tmp_path / "monday" / "trained", b"one")
    second = adapter(tmp_path / "friday" / "trained", b"other")
    assert adapter_name(first) != adapter_name(second)
    assert all(adapter_name(each).startswith("trained-") for each in (first, second))
    version = adapter(tmp_path / "executor-000001", b"one").parent
    (version / "manifest.json").write_text("{}")
    assert adapter_name(version) == "executor-000001"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--concurrency", "0"], "--concurrency 0: must be at least 1"),
        (["--rollouts", "0"], "--rollouts 0: must be at least 1"),
        (["--executors", "base", "base"], "names the same one twice"),
        (["--executors", "base", "trained"], "adapter_model.safetensors: is not there"),
        ([], "holds no question"),
    ],
)
def test_what_cannot_be_evaluated(tmp_path: Path, options: list[str], why: str) -> None:
    """Is refused with the reason, before anything is started."""
    config(tmp_path)
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "Who?", "answer": "Me"}) if options else "\n")
    given = ["--questions", str(tmp_path / "questions.jsonl"), "--out", str(tmp_path / "out")]
    with pytest.raises(BadConfig, match=why):
        main([*given, "--config", str(tmp_path / "config.toml"), *options])
