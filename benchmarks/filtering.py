"""Whether the filter earns its place: the same training on everything that the rollouts hold, on what the filter lets
through, and on gold trajectories of the same sub-queries; each compared with the untuned executor on a held-out world.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import msgspec
from rich.console import Console
from rich.table import Table

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
from router.models.model import ScriptedModel
from router.trace.values import Execution
from serving.config.file import load_config, preset
from serving.engines.engine import Log
from serving.files import write_atomically
from serving.logs import errors_only

_AT_ONCE = 32
_ARMS = ("unfiltered", "filtered", "gold")
_SINGLE: Mix = {"student_single": 1000, "teacher_single": 500}
_MULTI: Mix = {"teacher_multi": 668}
"""The paper's mix, at most, for all arms: so they differ in what they learn from, and hardly in how much."""


class Figures(msgspec.Struct, frozen=True):
    """What was measured."""

    training_worlds: list[int]
    trajectories: dict[str, int]
    """What each training learnt from."""
    evaluation: Evaluation
    not_needed: dict[str, float | None]
    """The share of second searches for sub-queries that one search answers, of those of the gold plans; None where
    there was no second search.
    """


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench filtering", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--worlds", type=int, nargs="+", default=list(range(9001, 9005)), metavar="SEED", help="to train on"
    )
    parser.add_argument("--questions", type=int, default=300, metavar="N", help="of each of them (default: 300)")
    parser.add_argument("--held-out", type=int, default=13, metavar="SEED", help="the world to ask about (default: 13)")
    parser.add_argument("--asked", type=int, default=200, metavar="N", help="questions about it (default: 200)")
    parser.add_argument("--recipe", default="mini", metavar="NAME", help="of the trainings (default: mini)")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="keeps the steps' folders there, to go on after a kill"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    errors_only()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(_measured(given, (given.work or Path(folder)).resolve()))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures, Console())
    return 0


async def _measured(given: argparse.Namespace, work: Path) -> Figures:
    tell, mini_config = _teller(), load_config(preset("mini"))
    student = Path(mini_config.engines["executor"].path)
    async with mini_deployment(tell, mini_config, teacher=True) as mini:
        gold = [sample for seed in given.worlds for sample in await _world(mini, work, seed, given.questions)]
        rolled_out = [work / f"world-{seed}" / "rollouts" for seed in given.worlds]
        mix = ",".join(f"{stratum}={count}" for stratum, count in (_SINGLE | _MULTI).items())
        await _step("filter", *rolled_out, "--none", "--mix", mix, "--out", work / "unfiltered")
        await _step("filter", *rolled_out, "--mix", mix, "--out", work / "filtered")
        _write_gold(work / "gold", gold)
        for arm in _ARMS:
            await _step("dataset", work / arm, "--model", student, "--out", work / f"{arm}-data")
            await _step(
                "train",
                *(work / f"{arm}-data", "--model", student, "--recipe", given.recipe, "--out", work / f"{arm}-trained"),
            )
        asked = _export(work / "held-out", World(given.held_out, "test"), given.asked)
        adapters = {arm: work / f"{arm}-trained" / "model" for arm in _ARMS}
        async with _bench(mini, work / "held-out", adapters) as bench:
            answered = await answers(bench, [BASE, *_ARMS], _plain(asked), rollouts=1, concurrency=_AT_ONCE)
            search = bench.config.search
    return Figures(
        given.worlds,
        {arm: sum(1 for _ in (work / arm / RESULT).open()) for arm in _ARMS},
        evaluation_of(answered, search, 1, None),
        {name: _not_needed(found, asked) for name, found in answered.items()},
    )


async def _world(mini: MiniDeployment, work: Path, seed: int, count: int) -> list[FilteredSample]:
    """Roll out over a training world; the gold trajectories of its sub-queries."""
    folder = work / f"world-{seed}"
    asked = _export(folder, World(seed, "train"), count)
    config = _config(mini, folder)
    questions, out = folder / "questions.jsonl", folder / "rollouts"
    await _step("rollout", "--config", config, "--questions", questions, "--out", out, "--concurrency", _AT_ONCE)
    async with _bench(mini, folder, {}) as bench:
        return [await _gold(bench, question, sub_query) for question in asked for sub_query in question.sub_queries]


async def _gold(bench: Runtime, question: MiniQuestion, sub_query: SubQuery) -> FilteredSample:
    """What a faultless executor does, with real passages."""
    turns = [*(f"<search>{query}</search>" for query in sub_query.searches), report_text(sub_query.report)]
    role = bench.role("execution", bench.config.roles.execution)
    faultless = bench.executor(replace(role, model=ScriptedModel(turns)))
    execution: Execution = await faultless.run(sub_query.text, 0, bench.context())
    stratum: Stratum = "teacher_single" if len(sub_query.searches) == 1 else "teacher_multi"
    return FilteredSample(stratum, question.id, "", execution)


def _write_gold(folder: Path, gold: Sequence[FilteredSample]) -> None:
    """Those that the retriever can carry out, in the filter's own kind of folder."""
    step = Step.begin(folder, "gold", {}, {"trajectories": len(gold)})
    if step.finished is None:
        carried_out = [sample for sample in gold if not sample.execution.failed and _found(sample)]
        chosen = mixed(carried_out, {"teacher_single": sum(_SINGLE.values()), **_MULTI}, seed=1)
        write_atomically(folder / RESULT, msgspec.json.Encoder().encode_lines(chosen))
        step.finish({"samples": len(chosen)}, [RESULT])


def _found(sample: FilteredSample) -> bool:
    """Whether every point of the report stands in a passage that was found."""
    return all(sample.execution.citations(sample.execution.report.evidence))


def _bench(mini: MiniDeployment, folder: Path, adapters: Mapping[str, Path]) -> AbstractAsyncContextManager[Runtime]:
    return open_runtime(load_config(_config(mini, folder)), lambda _step: None, adapters=adapters)


def _config(mini: MiniDeployment, folder: Path) -> Path:
    """A config over the world in `folder`, with the models that run."""
    file = folder / "rolegate.toml"
    of = msgspec.structs.replace(mini, of=over(mini.of, folder), retrieval="")
    of.config(file, f"sqlite:///{folder}/runs.db")
    return file


def _export(folder: Path, world: World, count: int) -> list[MiniQuestion]:
    return list({question.text: question for question in export(world, folder, count)}.values())


def _plain(asked: Sequence[MiniQuestion]) -> list[Question]:
    return [Question(one.id, one.text, (one.answer,)) for one in asked]


def _not_needed(answered: Sequence[Answered], asked: Sequence[MiniQuestion]) -> float | None:
    enough = {sub_query.text: len(sub_query.searches) for question in asked for sub_query in question.sub_queries}
    twice = [run for one in answered for run in one.executed if run.searches > 1 and run.sub_query in enough]
    return fmean(enough[run.sub_query] == 1 for run in twice) if twice else None


async def _step(command: str, *arguments: object) -> None:
    """Run a step of the distillation in a thread, as it runs an event loop of its own."""
    if status := await asyncio.to_thread(run, [command, *map(str, arguments)]):
        raise RolegateError(f"{command} ended with status {status}.")


def _teller() -> Log:
    console = Console(stderr=True)
    return lambda step: console.print(step, style="dim")


def _show(figures: Figures, console: Console) -> None:
    table = Table("learnt from", title=f"{figures.evaluation.questions} held-out questions", title_justify="left")
    for column in ("trajectories", "EM", "F1", "searches", "two or more", "of these not needed", "tokens"):
        table.add_column(column, justify="right")
    for row in figures.evaluation.rows:
        not_needed = figures.not_needed[row.executor]
        table.add_row(
            "nothing" if row.executor == BASE else row.executor,
            str(figures.trajectories.get(row.executor, "–")),
            f"{row.exact_match:.3f}",
            f"{row.f1:.3f}",
            f"{row.searches:.3f}",
            f"{row.multi_search:.4f}",
            "–" if not_needed is None else f"{not_needed:.3f}",
            f"{row.executor_tokens:.0f}",
        )
    console.print(table)
