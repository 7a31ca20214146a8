"""`rolegate sft reinforce` on real vLLM engines: two steps on the demo's world, with a kill."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner
from executor_sft.miniworld.world import World
from executor_sft.step import read_manifest
from serving.config.config import Config
from serving.config.file import preset
from tests.conftest import Rolegate
from tests.end_to_end.conftest import Demo
from tests.executor_sft.test_rollout import started

pytestmark = pytest.mark.asyncio(loop_scope="package")
STEPS = int(os.environ.get("REINFORCE_STEPS", "2"))
RECIPE = """
questions = 2
group = 4
learning_rate = 1e-3
[objective]
kl = 0.001
"""
EXECUTOR = Path("serving/models/mini-executor").resolve()


def written(demo: Demo, folder: Path) -> list[object]:
    """Write a config with the addresses of the demo's engines, questions and a recipe; return the
    command's options.
    """
    config = preset("mini").read_text("utf-8")
    for name in ("backbone", "executor"):
        url = demo.engines[f"engines.{name}"]
        config = config.replace(f'engine = "{name}"\nmodel', f'base_url = "{url}"\nmodel')
    (folder / "config.toml").write_text(config, "utf-8")
    (folder / "own.toml").write_text(RECIPE, "utf-8")
    world = World(7, "test")
    examiner = Examiner(world, Library(world))
    with (folder / "questions.jsonl").open("w", encoding="utf-8") as file:
        for number in range(8):
            question = examiner.draw()
            row = {"id": f"q{number}", "question": question.text, "answer": question.answer}
            file.write(f"{json.dumps(row)}\n")
    options = {
        "config": folder / "config.toml",
        "questions": folder / "questions.jsonl",
        "recipe": folder / "own.toml",
        "model": EXECUTOR,
        "roles": "executor",
        "steps": STEPS,
        "out": folder / "out",
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


async def finished_calls(path: Path, count: int) -> Sequence[bytes]:
    """Wait until the cache in `path` has at least so many calls, and return its lines."""
    while True:
        lines = path.read_bytes().splitlines() if path.exists() else []
        if len(lines) >= count:
            return lines
        await asyncio.sleep(0.05)


async def test_a_killed_training_of_the_demo_s_executor_resumes(
    demo: Demo, demo_engines: Config, rolegate: Rolegate, tmp_path: Path
) -> None:
    """The trainer computes the engine's log-probabilities, and each step has its adapter."""
    options = written(demo, tmp_path)
    process = await started("reinforce", *options)
    async with asyncio.timeout(400):
        await finished_calls(tmp_path / "out" / "calls-0001.jsonl", 10)
    process.kill()
    await process.wait()

    ended = await asyncio.to_thread(rolegate, "sft", "reinforce", *options)
    assert ended.status == 0, ended.out + ended.err
    print(ended.err)
    text = (tmp_path / "out" / "steps.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        print(row)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["executor"]["logprob_gap"] < 0.02 for row in rows)
    assert sum(row["executor"]["trained_tokens"] for row in rows) > 0
    files = read_manifest(tmp_path / "out").files
    assert f"steps/{STEPS:04}/executor/adapter_model.safetensors" in files
