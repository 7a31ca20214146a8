"""The filter's worth: the same training on everything that the rollouts hold, on what the filter lets through, and on
gold trajectories of the same sub-queries; each compared with the untuned executor on a held-out world.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.harness import work_folder
from benchmarks.mini_deployment import MiniDeployment, mini_deployment
from executor_sft.__main__ import run
from executor_sft.evaluate import BASE, Answered, Evaluation, answers, evaluation_of
from executor_sft.filter import RESULT, FilteredSample, Mix, Stratum, mixed
from executor_sft.miniworld.dialogues import report_text
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.questions import Question as MiniQuestion
from executor_sft.miniworld.questions import SubQuery
from executor_sft.miniworld.world import World
from executor_sft.questions import Question
from executor_sft.runtime import Runtime, open_runtime
from executor_sft.step import Step
from router.errors import RolegateError
from router.models import ScriptedModel
from router.trace import Execution
from serving.config.file import load_config, preset
from serving.files import write_atomically

_AT_ONCE = 32
_ARMS = ("unfiltered", "filtered", "gold")
_SINGLE: Mix = {"student_single": 1000, "teacher_single": 500}
_MULTI: Mix = {"teacher_multi": 668}
"""The paper's mix, at most, for all arms: so they differ in what they learn from, and hardly in how much."""


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    worlds: Annotated[tuple[int, ...], Meta(description="seeds of those to train on")] = (9001, 9002, 9003, 9004)
    questions: Annotated[int, Meta(ge=1, description="of each of them")] = 300
    held_out: Annotated[int, Meta(description="seed of the world to ask about")] = 13
    asked: Annotated[int, Meta(ge=1, description="questions about it")] = 200
    recipe: Annotated[str, Meta(description="of the trainings")] = "mini"
    work: Annotated[Path, Meta(description="keeps the steps' folders, to go on after a kill")] | None = None


class Arm(msgspec.Struct, frozen=True):
    """An executor that has learnt from one kind of trajectories; `base` has learnt from none."""

    learnt_from: str
    trajectories: int
    not_needed: float | None
    """The share of second searches for sub-queries that one search answers, of those of the gold plans; None where
    there was no second search.
    """


class Figures(msgspec.Struct, frozen=True):
    """Arms, and how well each of them answers."""

    arms: list[Arm]
    evaluation: Evaluation


async def measure(options: Options) -> Figures:
    """Roll out, train three times, and evaluate. Raises `RolegateError`."""
    config = load_config(preset("mini"))
    student, arms = Path(config.engines["executor"].path), dict.fromkeys((BASE, *_ARMS), 0)
    with work_folder(options.work) as work:
        async with mini_deployment(config, teacher=True) as mini:
            gold = [kept for seed in options.worlds for kept in await _world(mini, work, seed, options.questions)]
            rolled_out = [work / f"world-{seed}" / "rollouts" for seed in options.worlds]
            mix = ",".join(f"{stratum}={count}" for stratum, count in (_SINGLE | _MULTI).items())
            await _step("filter", *rolled_out, "--none", "--mix", mix, "--out", work / "unfiltered")
            await _step("filter", *rolled_out, "--mix", mix, "--out", work / "filtered")
            _write_gold(work / "gold", gold)
            for arm in _ARMS:
                data, trained = work / f"{arm}-data", work / f"{arm}-trained"
                await _step("dataset", work / arm, "--model", student, "--out", data)
                await _step("train", data, "--model", student, "--recipe", options.recipe, "--out", trained)
                arms[arm] = sum(1 for _ in (work / arm / RESULT).open())
            asked = _export(work / "held-out", World(options.held_out, "test"), options.asked)
            adapters = {arm: work / f"{arm}-trained" / "model" for arm in _ARMS}
            async with _bench(mini, work / "held-out", adapters) as bench:
                plain = [Question(one.id, one.text, (one.answer,)) for one in asked]
                answered = await answers(bench, list(arms), plain, rollouts=1, concurrency=_AT_ONCE)
                evaluation = evaluation_of(answered, bench.config.search, 1, None)
    found = [Arm(name, count, _not_needed(answered[name], asked)) for name, count in arms.items()]
    return Figures(found, evaluation)


async def _world(mini: MiniDeployment, work: Path, seed: int, count: int) -> list[FilteredSample]:
    """Roll out over a training world; the gold trajectories of its sub-queries."""
    folder = work / f"world-{seed}"
    asked = _export(folder, World(seed, "train"), count)
    out = folder / "rollouts"
    common = "--config", _config(mini, folder), "--questions", folder / "questions.jsonl", "--concurrency", _AT_ONCE
    await _step("rollout", *common, "--out", out)
    async with _bench(mini, folder, {}) as bench:
        return [await _gold(bench, question, sub_query) for question in asked for sub_query in question.sub_queries]


async def _gold(bench: Runtime, question: MiniQuestion, sub_query: SubQuery) -> FilteredSample:
    """A faultless executor's run, with real passages."""
    turns = [*(f"<search>{query}</search>" for query in sub_query.searches), report_text(sub_query.report)]
    role = bench.role("execution", bench.config.roles.execution)
    faultless = bench.executor(replace(role, model=ScriptedModel(turns)))
    execution: Execution = await faultless.run(sub_query.text, 0, bench.context())
    stratum: Stratum = "teacher_single" if len(sub_query.searches) == 1 else "teacher_multi"
    return FilteredSample(stratum, question.id, "", execution)


def _write_gold(folder: Path, gold: Sequence[FilteredSample]) -> None:
    """Keep those that the retriever can carry out, in the filter's own kind of folder: every point of the report must
    stand in a passage that was found.
    """
    step = Step.begin(folder, "gold", {}, {"trajectories": len(gold)})
    if step.finished is None:
        runs = [(kept, kept.execution) for kept in gold if not kept.execution.failed]
        carried_out = [kept for kept, run in runs if all(run.citations(run.report.evidence))]
        chosen = mixed(carried_out, {"teacher_single": sum(_SINGLE.values()), **_MULTI}, seed=1)
        write_atomically(folder / RESULT, msgspec.json.Encoder().encode_lines(chosen))
        step.finish({"samples": len(chosen)}, [RESULT])


def _bench(mini: MiniDeployment, folder: Path, adapters: Mapping[str, Path]) -> AbstractAsyncContextManager[Runtime]:
    return open_runtime(load_config(_config(mini, folder)), lambda _step: None, adapters=adapters)


def _config(mini: MiniDeployment, folder: Path) -> Path:
    """A config over the world in `folder`, with the models that run."""
    file = folder / "rolegate.toml"
    of = msgspec.structs.replace(mini, of=over(mini.of, folder), retrieval="")
    of.config(file)
    return file


def _export(folder: Path, world: World, count: int) -> list[MiniQuestion]:
    return list({question.text: question for question in export(world, folder, count)}.values())


def _not_needed(answered: Sequence[Answered], asked: Sequence[MiniQuestion]) -> float | None:
    enough = {sub_query.text: len(sub_query.searches) for question in asked for sub_query in question.sub_queries}
    twice = [run for one in answered for run in one.executions if len(run.searches) > 1 and run.sub_query in enough]
    return fmean(enough[run.sub_query] == 1 for run in twice) if twice else None


async def _step(command: str, *arguments: object) -> None:
    """Run a step of the distillation in a thread, as it runs an event loop of its own."""
    if status := await asyncio.to_thread(run, [command, *map(str, arguments)]):
        raise RolegateError(f"{command} ended with status {status}.")
