"""Effect of the filter (`rolegate sft filter`). The same untuned executor is trained three times:
on unfiltered trajectories, on filtered ones, and on gold trajectories of the same sub-queries. The
resulting executors are compared with the untuned one on questions about a held-out world.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.harness import run_sft, work_folder
from benchmarks.mini_deployment import MiniDeployment, mini_deployment
from executor_sft.evaluate import Evaluation, answers, evaluation_of
from executor_sft.filter import RESULT, FilteredSample, Mix, Stratum, mixed
from executor_sft.miniworld.dialogues import report_text
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.questions import MiniQuestion, SubQuery
from executor_sft.miniworld.world import World
from executor_sft.questions import Question
from executor_sft.runtime import BASE, Runtime, open_runtime
from executor_sft.step import Step
from router.models import ScriptedModel
from router.trace import Execution
from serving.config.file import load_config, preset
from serving.files import write_atomically

_CONCURRENCY = 32
_HELD_OUT = 13
"""Seed of the held-out world."""
_ARMS = ("unfiltered", "filtered", "gold")
"""Arms of the experiment, by the trajectories that they are trained on."""
_SINGLE: Mix = {"student_single": 1000, "teacher_single": 500}
_MULTI: Mix = {"teacher_multi": 668}
"""Max trajectories of each stratum, as in the paper. All arms have these limits, so that they
differ in the kind of data and hardly in its amount.
"""


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    worlds: tuple[int, ...] = (
        9001,
        9002,
        9003,
        9004,
    )
    """Seeds of the training worlds."""
    questions: Annotated[int, Meta(ge=1)] = 300
    """Questions per training world."""
    asked: Annotated[int, Meta(ge=1)] = 200
    """Questions about the held-out world."""
    work: Path | None = None
    """Folder to keep the results of each step in, so that the same command can resume (default: a
    temporary folder).
    """


class Figures(msgspec.Struct, frozen=True):
    """Evaluation of the untuned executor and of the executors that were trained from it."""

    trajectories: dict[str, int]
    """Number of trajectories that each arm was trained on."""
    evaluation: Evaluation


async def measure(options: Options) -> Figures:
    """Train and evaluate all arms. Raises `RolegateError`."""
    config = load_config(preset("mini"))
    with work_folder(options.work) as work:
        async with mini_deployment(config, teacher=True) as mini:
            await _write_trajectories(mini, work, options)
            student = config.engines["executor"].path
            trained = {arm: await _trained(work, arm, student) for arm in _ARMS}
            asked = _export(work / "held-out", World(_HELD_OUT, "test"), options.asked)
            plain = [Question(question.id, question.text, (question.answer,)) for question in asked]
            async with _bench(mini, work / "held-out", trained) as bench:
                answered = await answers(
                    bench,
                    (BASE, *_ARMS),
                    plain,
                    rollouts=1,
                    concurrency=_CONCURRENCY,
                )
                evaluation = evaluation_of(answered, bench.config.search, 1, None)
        counts = {arm: sum(1 for _ in (work / arm / RESULT).open()) for arm in _ARMS}
    return Figures(counts, evaluation)


async def _write_trajectories(mini: MiniDeployment, work: Path, options: Options) -> None:
    """Roll out the questions of the training worlds, and write the trajectories of each arm."""
    gold: list[FilteredSample] = []
    for seed in options.worlds:
        gold += await _world(mini, work, seed, options.questions)
    rollouts = [work / f"world-{seed}" / "rollouts" for seed in options.worlds]
    mix = ",".join(f"{stratum}={count}" for stratum, count in (_SINGLE | _MULTI).items())
    for arm, flags in (("unfiltered", ["--none"]), ("filtered", [])):
        await run_sft(
            "filter",
            *rollouts,
            *flags,
            f"--mix={mix}",
            f"--out={work / arm}",
        )
    _write_gold(work / "gold", gold)


async def _trained(work: Path, arm: str, student: str) -> Path:
    """Train the untuned executor in the folder `student` on the trajectories of an arm. Return the
    folder of the resulting adapter.
    """
    data = work / f"{arm}-data"
    out = work / f"{arm}-trained"
    await run_sft("dataset", work / arm, f"--model={student}", f"--out={data}")
    await run_sft("train", data, f"--model={student}", f"--out={out}")
    return out / "model"


async def _world(
    mini: MiniDeployment,
    work: Path,
    seed: int,
    count: int,
) -> list[FilteredSample]:
    """Roll out `count` questions about the training world of this seed. Return gold trajectories of
    their gold sub-queries.
    """
    folder = work / f"world-{seed}"
    asked = _export(folder, World(seed, "train"), count)
    await run_sft(
        "rollout",
        f"--config={_config(mini, folder)}",
        f"--questions={folder / 'questions.jsonl'}",
        f"--concurrency={_CONCURRENCY}",
        f"--out={folder / 'rollouts'}",
    )
    async with _bench(mini, folder, {}) as bench:
        return [
            await _gold(bench, question, sub_query)
            for question in asked
            for sub_query in question.sub_queries
        ]


async def _gold(bench: Runtime, question: MiniQuestion, sub_query: SubQuery) -> FilteredSample:
    """Return the trajectory of a perfect executor on a sub-query: the gold searches and the gold
    report, with the passages that retrieval really finds.
    """
    turns = [
        *(f"<search>{query}</search>" for query in sub_query.searches),
        report_text(sub_query.report),
    ]
    role = bench.role("execution", bench.config.roles.execution)
    perfect = bench.executor(replace(role, model=ScriptedModel(turns)))
    execution: Execution = await perfect.run(sub_query.text, 0, bench.context())
    stratum: Stratum = "teacher_single" if len(sub_query.searches) == 1 else "teacher_multi"
    return FilteredSample(stratum, question.id, "", execution)


def _write_gold(folder: Path, gold: Sequence[FilteredSample]) -> None:
    """Write gold trajectories to `folder`, in the format of `rolegate sft filter`. Those whose
    evidence is in none of the retrieved passages are left out.
    """
    step = Step.begin(folder, "gold", {}, {"trajectories": len(gold)})
    if step.finished is None:
        supported = [sample for sample in gold if _is_supported(sample.execution)]
        chosen = mixed(supported, {"teacher_single": sum(_SINGLE.values()), **_MULTI}, seed=1)
        write_atomically(folder / RESULT, msgspec.json.Encoder().encode_lines(chosen))
        step.finish({"samples": len(chosen)}, [RESULT])


def _is_supported(execution: Execution) -> bool:
    return not execution.failed and all(execution.citations(execution.report.evidence))


def _bench(
    mini: MiniDeployment, folder: Path, adapters: Mapping[str, Path]
) -> AbstractAsyncContextManager[Runtime]:
    return open_runtime(load_config(_config(mini, folder)), lambda _step: None, adapters=adapters)


def _config(mini: MiniDeployment, folder: Path) -> Path:
    """Write a config for the world in `folder` with the running models, and return its path."""
    file = folder / "rolegate.toml"
    of = msgspec.structs.replace(mini, of=over(mini.of, folder), retrieval="")
    of.config(file)
    return file


def _export(folder: Path, world: World, count: int) -> list[MiniQuestion]:
    """Write a world with `count` questions to `folder`; return the questions, each once."""
    return list({question.text: question for question in export(world, folder, count)}.values())
