"""Measure the effect of `rolegate sft filter`. The same untuned executor is trained twice: on
unfiltered and on filtered trajectories. Both resulting executors, and the untuned one, answer
questions about a held-out world.
"""

from pathlib import Path

import msgspec

from benchmarks import harness
from benchmarks.harness import run_sft, work_folder
from benchmarks.mini_deployment import MiniDeployment, mini_deployment
from executor_sft.command import Count
from executor_sft.evaluate import Evaluation, answers, evaluation_of
from executor_sft.filter import RESULT
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.world import World
from executor_sft.questions import Question
from executor_sft.runtime import BASE, open_runtime
from router.frozen import Frozen
from serving.config.file import load_config, preset

_CONCURRENCY = 32
_HELD_OUT = 13
"""Seed of the held-out world."""
_ARMS = {"unfiltered": ["--none"], "filtered": []}
"""Arms of the experiment: for each kind of trajectories to train on, the flags for `rolegate sft
filter`.
"""
_MIX = "student_single=1000,teacher_single=500,teacher_multi=668"
"""Max trajectories of each stratum (kind of trajectory), as in the TBSS paper. Both arms have these
limits, so that they train on almost equally many trajectories.
"""


class Options(harness.Options):
    """Options of the benchmark."""

    worlds: tuple[int, ...] = (
        9001,
        9002,
        9003,
        9004,
    )
    """seeds of the training worlds"""
    questions: Count = 300
    """number of questions per training world"""
    asked: Count = 200
    """number of questions for the evaluation; they are about another world than the training"""
    work: Path | None = None
    """folder for the results of each step; the same command with the same folder resumes (default:
    a temporary folder)
    """


class Figures(Frozen):
    """Results: the evaluation of the untuned executor and of both trained executors."""

    trajectories: dict[str, int]
    """Number of training trajectories of each arm."""
    evaluation: Evaluation


async def measure(options: Options) -> Figures:
    """Train an executor for each arm, and evaluate both and the untuned one. Raises `RolegateError`
    if a step fails.
    """
    config = load_config(preset("mini"))
    student = config.engines["executor"].path
    with work_folder(options.work) as work:
        async with mini_deployment(config, teacher=True) as mini:
            worlds = [work / f"world-{seed}" for seed in options.worlds]
            for seed, folder in zip(options.worlds, worlds, strict=True):
                await _roll_out(mini, folder, World(seed, "train"), options.questions)
            rollouts = [folder / "rollouts" for folder in worlds]
            for arm, flags in _ARMS.items():
                out = f"--out={work / arm}"
                await run_sft("filter", *rollouts, *flags, f"--mix={_MIX}", out)
            trained = {arm: await _trained(work, arm, student) for arm in _ARMS}

            held_out = work / "held-out"
            exported = export(World(_HELD_OUT, "test"), held_out, options.asked)
            asked = {
                question.text: Question(question.id, question.text, (question.answer,))
                for question in exported
            }
            served = load_config(_config(mini, held_out))
            async with open_runtime(served, lambda _step: None, adapters=trained) as runtime:
                answered = await answers(
                    runtime,
                    (BASE, *_ARMS),
                    list(asked.values()),
                    rollouts=1,
                    concurrency=_CONCURRENCY,
                )
            evaluation = evaluation_of(answered, served.search, 1, None)
        counts = {arm: sum(1 for _ in (work / arm / RESULT).open()) for arm in _ARMS}
    return Figures(counts, evaluation)


async def _roll_out(mini: MiniDeployment, folder: Path, world: World, count: int) -> None:
    """Write a training world to `folder`, and roll out `count` questions about it."""
    export(world, folder, count)
    await run_sft(
        "rollout",
        f"--config={_config(mini, folder)}",
        f"--questions={folder / 'questions.jsonl'}",
        f"--concurrency={_CONCURRENCY}",
        f"--out={folder / 'rollouts'}",
    )


async def _trained(work: Path, arm: str, student: str) -> Path:
    """Train the untuned executor in the folder `student` on the trajectories of an arm. Return the
    folder of the resulting adapter.
    """
    data = work / f"{arm}-data"
    out = work / f"{arm}-trained"
    await run_sft("dataset", work / arm, f"--model={student}", f"--out={data}")
    await run_sft("train", data, f"--model={student}", f"--out={out}")
    return out / "model"


def _config(mini: MiniDeployment, folder: Path) -> Path:
    """Write a config that uses the running models and the world in `folder`, and return the
    config's path.
    """
    file = folder / "rolegate.toml"
    of = msgspec.structs.replace(mini, of=over(mini.of, folder), retrieval="")
    of.config(file)
    return file
