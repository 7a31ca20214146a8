"""`rolegate sft reinforce` with a real trainer, and an engine of a dozen tokens."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from executor_sft.reinforcement.reinforce import _check_ties
from executor_sft.step import read_manifest
from router.errors import BadConfig
from tests.conftest import Rolegate
from tests.executor_sft.reinforcement.tiny_engine import TinyEngine, tiny_world
from tests.executor_sft.test_rollout import started

Ran = Callable[..., Awaitable[tuple[int, str]]]
RECIPE = """
questions = 2
group = 8
rank = 4
alpha = 8.0
learning_rate = 0.03
"""


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[TinyEngine]:
    (tmp_path / "own.toml").write_text(RECIPE, "utf-8")
    async with tiny_world(tmp_path) as tiny:
        yield tiny


@pytest.fixture
def reinforce(rolegate: Rolegate, tmp_path: Path) -> Ran:
    """Run the command alongside this process's servers; return its exit status and output."""

    async def run(*more: object, out: str = "out") -> tuple[int, str]:
        ended = await asyncio.to_thread(rolegate, *command(tmp_path, out), *more)
        return ended.status, ended.out + ended.err

    return run


def command(folder: Path, out: str) -> list[object]:
    options: dict[str, object] = {
        "config": folder / "config.toml",
        "questions": folder / "questions.jsonl",
        "recipe": folder / "own.toml",
        "model": folder / "base",
        "out": folder / out,
    }
    named = [part for name, value in options.items() for part in (f"--{name}", value)]
    return ["sft", "reinforce", *named]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


async def test_reward_rises(engine: TinyEngine, reinforce: Ran, tmp_path: Path) -> None:
    """An executor that is rarely right learns to be. Every step has its adapter, of which the
    engine keeps the last two.
    """
    (tmp_path / "own.toml").write_text(RECIPE.replace("questions = 2", "questions = 4"), "utf-8")
    status, output = await reinforce("--roles", "executor", "--steps", 9)
    assert status == 0, output
    rows = lines(tmp_path / "out")
    assert [row["step"] for row in rows] == list(range(1, 10))
    rewards = [row["reward_answer"] for row in rows]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.3
    assert max(row["executor"]["logprob_gap"] for row in rows) < 1e-4
    assert [name[:4] for name in engine.loaded] == [f"{number:04}" for number in range(1, 10)]
    assert list(engine.models) == ["base", *engine.loaded[-2:]]
    assert "step 9 of 9: mean reward" in output
    assert "s left" in output
    manifest = read_manifest(tmp_path / "out")
    assert manifest.figures["reward"] == rows[-1]["reward"]
    assert (manifest.figures["steps"], manifest.figures["executor"]) == (9, "executor")
    assert {"steps/0009/executor/adapter_model.safetensors", "curves.png"} <= set(manifest.files)
    assert not list((tmp_path / "out").glob("calls-*"))


async def test_one_adapter_serves_both_roles_of_a_base_model(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path
) -> None:
    """A training can start from it, also with a divergence from the start."""
    status, output = await reinforce("--steps", 2)
    assert status == 0, output
    shared = tmp_path / "out" / "steps" / "0002" / "shared"
    assert json.loads((shared / "adapter_config.json").read_text())["r"] == 4
    assert len(engine.loaded) == 2
    asked = {call.split()[0] for call in engine.answered if "delegate" in call}
    assert asked == {"base", engine.loaded[0]}

    recipe = tmp_path / "own.toml"
    recipe.write_text(f"{RECIPE}\nmax_gap = 0.001\n[objective]\nkl = 0.01", "utf-8")
    start = ("--executor", shared, "--delegator", shared)
    status, output = await reinforce(*start, "--steps", 3, out="further")
    assert status == 0, output
    first, *_, last = (row["shared"]["kl"] for row in lines(tmp_path / "further"))
    assert first == pytest.approx(0, abs=1e-6)
    assert last > 1e-6
    status, output = await reinforce("--executor", shared, out="other")
    assert (status, "give both options the same value" in output) == (1, True)


async def test_only_trained_roles_are_sampled(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path
) -> None:
    """The runs of a group share the equal calls of the other roles."""
    status, output = await reinforce("--roles", "executor", "--steps", 1)
    assert status == 0, output
    calls = without_probes(engine.answered)
    delegated = {call: count for call, count in calls.items() if "delegate" in call}
    executed = [call.split()[1] for call in calls if "execute" in call]
    assert {call.split()[1] for call in delegated} == {"None"}
    assert set(delegated.values()) == {1}
    assert "None" not in executed
    assert len(set(executed)) == len(executed) > 16


async def test_a_finished_training_can_be_continued(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path
) -> None:
    """One command for two steps, and two for one each, give the same adapters by the same calls.
    Leftovers of a killed second step do not matter.
    """
    await reinforce("--steps", 2)
    calls = engine.answered.copy()
    engine.answered.clear()
    await reinforce("--steps", 1, out="slowly")
    leftover = tmp_path / "slowly" / "steps" / "0002"
    for name in (".shared", "shared"):
        (leftover / name).mkdir(parents=True)
        (leftover / name / "adapter_model.safetensors").write_bytes(b"half")
    status, output = await reinforce("--steps", 2, out="slowly")
    assert status == 0, output
    probes = "None [{'role': 'user', 'content': '?'}]"
    assert {call for call in engine.answered - calls if probes not in call} == set()
    assert digests(tmp_path / "slowly") == digests(tmp_path / "out")
    answered = engine.answered.total()
    assert (await reinforce("--steps", 2, out="slowly"))[0] == 0
    assert engine.answered.total() == answered


def digests(folder: Path) -> dict[str, str]:
    files = read_manifest(folder).files
    return {name: digest for name, digest in files.items() if name.startswith("steps/")}


@pytest.mark.parametrize("free", [9, pytest.param(120, marks=pytest.mark.slow)])
async def test_a_killed_training_resumes(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path, free: int
) -> None:
    """It makes no call again that was finished, and ends with the same adapters. The kill comes in
    the first and in the second step.
    """
    status, output = await reinforce("--steps", 2)
    assert status == 0, output
    calls = without_probes(engine.answered)
    engine.answered.clear()
    engine.free = free
    options = ("--steps", 2, "--concurrency", 1)
    process = await started(*command(tmp_path, "killed")[1:], *options)
    async with asyncio.timeout(300):
        await engine.held.wait()
    process.kill()
    await process.wait()
    engine.free = 10**6
    status, output = await reinforce("--steps", 2, out="killed")
    assert status == 0, output
    again = Counter(without_probes(engine.answered)) - Counter(calls)
    assert again.total() <= 2  # calls that were in flight
    assert without_probes(engine.answered).keys() == calls.keys()
    assert digests(tmp_path / "killed") == digests(tmp_path / "out")
    timeless = [
        [{**row, "rollout_s": 0, "seconds": 0} for row in lines(tmp_path / out)]
        for out in ("out", "killed")
    ]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize("steps", [1, 2])
async def test_a_kill_at_the_end_of_the_last_step_loses_no_figures(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path, steps: int
) -> None:
    """It may come when the state is written, but neither the figures nor the manifest."""
    status, output = await reinforce("--steps", steps)
    assert status == 0, output
    out = tmp_path / "out"
    whole = lines(out)
    before = (out / "steps.jsonl").read_text().splitlines(keepends=True)[:-1]
    (out / "steps.jsonl").write_text("".join(before))
    if steps == 1:
        (out / "steps.jsonl").unlink()
        (out / "curves.png").unlink()
    (out / "manifest.json").unlink()
    (out / f"calls-{steps:04}.jsonl").touch()
    engine.calls = 0
    status, output = await reinforce("--steps", steps)
    assert (status, engine.calls) == (0, 0), output
    assert lines(out) == whole
    assert {"steps.jsonl", "curves.png"} <= set(read_manifest(out).files)
    assert not list(out.glob("calls-*"))


def without_probes(answered: Counter[str]) -> dict[str, int]:
    return {call: count for call, count in answered.items() if "'content': '?'" not in call}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"question": "Who?"}, r"questions.jsonl:1: no right answer"),
        (
            {"question": "All?", "columns": [{"name": "city", "key": True}]},
            r"questions.jsonl:1: no right rows are given",
        ),
    ],
)
async def test_questions_without_right_answers_are_refused(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path, line: dict[str, Any], why: str
) -> None:
    (tmp_path / "questions.jsonl").write_text(json.dumps(line), "utf-8")
    status, output = await reinforce()
    assert (status, why in output, engine.calls) == (1, True, 0)


async def test_held_out_questions_are_left_out(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path
) -> None:
    (tmp_path / "held.jsonl").write_text('{"question": "who directed the F0"}', "utf-8")
    status, output = await reinforce("--steps", 1, "--exclude", tmp_path / "held.jsonl")
    assert status == 0, output
    assert read_manifest(tmp_path / "out").figures["selection"]["excluded"] == 1
    assert not any("F0?" in call for call in engine.answered)


async def test_an_endpoint_without_tokens_is_refused_before_the_first_run(
    engine: TinyEngine, reinforce: Ran
) -> None:
    engine.tells = False
    status, output = await reinforce()
    assert (status, "roles.delegation: its endpoint returns no token ids" in output) == (1, True)
    assert engine.calls == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("own.toml", "rank", "temperature = 0.5\nrank"), "must be at least 0.7, got 0.5"),
        (("config.toml", "[roles.execution]", "[roles.execution]\ntop_p = 0.9"), "must be 1"),
        (
            ("own.toml", "rank", "weights = {agents = 'some'}\nrank"),
            "weights.agents: cannot be 'some'",
        ),
    ],
)
async def test_biased_sampling_is_refused(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path, change: tuple[str, str, str], why: str
) -> None:
    file, old, new = change
    path = tmp_path / file
    path.write_text(path.read_text("utf-8").replace(old, new, 1), "utf-8")
    status, output = await reinforce()
    assert (status, why in output, engine.calls) == (1, True, 0), output


async def test_other_probabilities_than_the_engine_s_stop_the_training(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path
) -> None:
    """Nothing is learnt from them. Calls are kept."""
    engine.shift = 0.03
    status, output = await reinforce()
    assert (
        status,
        "differ by 0.0300 nats a token, above the recipe's max_gap, 0.02" in output,
    ) == (
        1,
        True,
    )
    assert not list((tmp_path / "out").glob("steps/*/*"))
    engine.calls = 0
    assert (await reinforce())[0] == 1
    assert engine.calls == 2  # the probes


async def test_a_group_with_a_failed_run_is_dropped(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path
) -> None:
    """More than a tenth of failed runs stop the training."""
    engine.refused = range(20, 21)
    status, output = await reinforce("--steps", 1)
    assert status == 0, output
    assert [row["groups"] for row in lines(tmp_path / "out")] == [1]
    engine.calls = 0
    engine.refused = range(20, 24)
    status, output = await reinforce("--steps", 1, out="other")
    assert (status, " of 16 runs failed, the first with: " in output) == (1, True), output


async def test_ten_steps_without_a_difference_stop_the_training(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path
) -> None:
    """The message says whether the questions are too hard or too easy."""
    (tmp_path / "questions.jsonl").write_text('{"question": "Who?", "answer": "Me"}', "utf-8")
    status, output = await reinforce("--roles", "delegator")
    assert status == 1
    assert "Most runs are wrong; give easier" in output
    assert len(lines(tmp_path / "out")) == 10
    status, output = await reinforce("--roles", "delegator", "--steps", 10)
    assert (status, read_manifest(tmp_path / "out").figures["executor"]) == (0, "")


def test_easy_questions_stop_it_too() -> None:
    rows = [{"mixed_groups": 0, "reward_answer": 1.0}] * 10
    with pytest.raises(BadConfig, match="Most runs are right; give harder questions"):
        _check_ties(rows)
    _check_ties(rows[1:])


async def test_an_adapter_that_the_engine_cannot_load_is_refused(
    engine: TinyEngine, reinforce: Ran, tmp_path: Path
) -> None:
    """The engine is not even started."""
    path = tmp_path / "config.toml"
    served = path.read_text("utf-8").partition("base_url")
    with_engine = f"{served[0]}engine = 'own'{served[2][served[2].index(chr(10)) :]}"
    path.write_text(f"{with_engine}\n[engines.own]\npath = 'base'\nadapter_rank = 1\n", "utf-8")
    status, output = await reinforce()
    assert (status, "loads adapters up to rank 1; set engines.own" in output) == (1, True), output
