"""Effect of the filter: trains the same model on all rollouts, on filtered rollouts, and on gold
trajectories of the same sub-queries, and compares each with the untuned executor on a held-out
world.

With --noise, nothing is trained. A clean teacher and a noisy one, which searches needlessly and
reports wrong answers, work on unseen worlds; the trajectories that the filter keeps are compared
with gold, stratum by stratum.
"""

import asyncio
import html
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.harness import work_folder
from benchmarks.mini_deployment import MiniDeployment, mini_deployment
from executor_sft.__main__ import run
from executor_sft.evaluate import Answered, Evaluation, answers, evaluation_of
from executor_sft.filter import RESULT, FilteredSample, Mix, Stratum, filtered, mixed
from executor_sft.jsonl import read_jsonl
from executor_sft.miniworld.dialogues import report_text
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, MiniQuestion, SubQuery
from executor_sft.miniworld.relations import BY_SUBJECT
from executor_sft.miniworld.world import World
from executor_sft.questions import Question, question_key
from executor_sft.rollout import ADVICE, CALLS, Rollout, roll_out_all, rollout_worker
from executor_sft.runtime import BASE, Runtime, open_runtime
from executor_sft.step import Step
from router.calls import Role
from router.errors import BadConfig, RolegateError
from router.models import Completion, Model, OnDelta, Prompt, ScriptedModel, Usage
from router.protocol import Report, normal_answer, parse_turn, prompts
from router.protocol.turns import ReportTurn
from router.trace import Execution
from router.trace.citation import sentences
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.files import write_atomically

_CONCURRENCY = 32
_ARMS = ("unfiltered", "filtered", "gold")
_NAME = re.compile(r"[A-Z]\w+(?: [A-Z]\w+)*|\d{4}")
_SINGLE: Mix = {"student_single": 1000, "teacher_single": 500}
_MULTI: Mix = {"teacher_multi": 668}
"""Max trajectories per stratum, from the paper, for all arms: they differ in the kind of data and
hardly in its amount.
"""


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    worlds: Annotated[tuple[int, ...], Meta(description="seeds of the training worlds")] = (
        9001,
        9002,
        9003,
        9004,
    )
    questions: Annotated[int, Meta(ge=1, description="questions per world")] = 300
    held_out: Annotated[int, Meta(description="seed of the held-out world")] = 13
    asked: Annotated[int, Meta(ge=1, description="questions about it")] = 200
    recipe: Annotated[str, Meta(description="training recipe")] = "mini"
    work: (
        Annotated[Path, Meta(description="folder that keeps the steps, to resume in it")] | None
    ) = None
    noise: Annotated[
        str, Meta(description="SEARCHES,REPORTS: chances of flaws, such as 0.3,0.15")
    ] = ""


class Arm(msgspec.Struct, frozen=True):
    """Executor trained on one kind of trajectories; `base` is untuned."""

    learnt_from: str
    trajectories: int
    not_needed: float | None
    """Share of second searches that the gold plan does not need, among sub-queries of gold plans;
    None without second searches.
    """


class Figures(msgspec.Struct, frozen=True):
    """Arms, and their evaluation."""

    arms: list[Arm]
    evaluation: Evaluation


class Kept(msgspec.Struct, frozen=True):
    """Quality of a stratum before and after the filter. A trajectory is good if it has the number
    of searches and the report of the gold plan.
    """

    teacher: str
    """`clean` or `noisy`."""
    stratum: Stratum
    candidates: int
    """Trajectories with a report."""
    good: float
    """Share of good candidates."""
    kept: int
    precision: float
    """Share of good trajectories among those kept."""
    recall: float
    """Share of good candidates whose sub-query is kept in this stratum."""


class NoiseFigures(msgspec.Struct, frozen=True):
    """Quality of the filter, and the number of rejections by reason and teacher."""

    kept: list[Kept]
    rejected: dict[str, dict[str, int]]


async def measure(options: Options) -> Figures | NoiseFigures:
    """Train and evaluate three arms; with --noise, compare the filter with gold. Raises
    `RolegateError`.
    """
    config = load_config(preset("mini"))
    if options.noise:
        with work_folder(options.work) as work:
            return await _against_gold(config, work, options)
    with work_folder(options.work) as work:
        async with mini_deployment(config, teacher=True) as mini:
            await _write_trajectories(mini, work, options)
            trained = {
                arm: await _trained(work, arm, config.engines["executor"].path, options.recipe)
                for arm in _ARMS
            }
            asked = _export(work / "held-out", World(options.held_out, "test"), options.asked)
            names = (BASE, *_ARMS)
            async with _bench(mini, work / "held-out", trained) as bench:
                answered = await answers(
                    bench, names, _plain(asked), rollouts=1, concurrency=_CONCURRENCY
                )
                evaluation = evaluation_of(answered, 1)
        counts = {arm: sum(1 for _ in (work / arm / RESULT).open()) for arm in _ARMS}
    arms = [Arm(name, counts.get(name, 0), _not_needed(answered[name], asked)) for name in names]
    return Figures(arms, evaluation)


async def _write_trajectories(mini: MiniDeployment, work: Path, options: Options) -> None:
    """Roll out over the training worlds and write the trajectories of each arm."""
    gold: list[FilteredSample] = []
    for seed in options.worlds:
        gold += await _world(mini, work, seed, options.questions)
    rollouts = [work / f"world-{seed}" / "rollouts" for seed in options.worlds]
    mix = ",".join(f"{stratum}={count}" for stratum, count in (_SINGLE | _MULTI).items())
    await _step(
        "filter",
        *rollouts,
        "--none",
        "--mix",
        mix,
        "--out",
        work / "unfiltered",
    )
    await _step(
        "filter",
        *rollouts,
        "--mix",
        mix,
        "--out",
        work / "filtered",
    )
    _write_gold(work / "gold", gold)


async def _trained(
    work: Path,
    arm: str,
    student: str,
    recipe: str,
) -> Path:
    """Train the student on the trajectories of an arm; return the folder of its adapter."""
    data = work / f"{arm}-data"
    out = work / f"{arm}-trained"
    await _step(
        "dataset",
        work / arm,
        "--model",
        student,
        "--out",
        data,
    )
    await _step(
        "train",
        data,
        "--model",
        student,
        "--recipe",
        recipe,
        "--out",
        out,
    )
    return out / "model"


async def _world(
    mini: MiniDeployment,
    work: Path,
    seed: int,
    count: int,
) -> list[FilteredSample]:
    """Roll out over a training world; return gold trajectories of its sub-queries."""
    folder = work / f"world-{seed}"
    asked = _export(folder, World(seed, "train"), count)
    await _step(
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
    """Run a perfect executor, with real passages."""
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
    """Write gold trajectories in the format of the filter. Only those are kept whose evidence
    stands in retrieved passages.
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
    """Write a config over the world in `folder`, with the running models, and return its file."""
    file = folder / "rolegate.toml"
    of = msgspec.structs.replace(mini, of=over(mini.of, folder), retrieval="")
    of.config(file)
    return file


def _export(folder: Path, world: World, count: int) -> list[MiniQuestion]:
    """Write a world and its questions; return the questions, each once."""
    return list({question.text: question for question in export(world, folder, count)}.values())


def _plain(questions: Sequence[MiniQuestion]) -> list[Question]:
    return [Question(question.id, question.text, (question.answer,)) for question in questions]


def _not_needed(answered: Sequence[Answered], asked: Sequence[MiniQuestion]) -> float | None:
    enough = {
        sub_query.text: len(sub_query.searches)
        for question in asked
        for sub_query in question.sub_queries
    }
    executions = [execution for answer in answered for execution in answer.executions]
    twice = [
        execution.sub_query
        for execution in executions
        if len(execution.searches) > 1 and execution.sub_query in enough
    ]
    return fmean(enough[sub_query] == 1 for sub_query in twice) if twice else None


async def _step(command: str, *arguments: object) -> None:
    """Run a step of the distillation in a thread, as steps have their own event loop."""
    if status := await asyncio.to_thread(run, [command, *map(str, arguments)]):
        raise RolegateError(f"rolegate sft {command} ended with status {status}.")


async def _against_gold(config: Config, work: Path, options: Options) -> NoiseFigures:
    """Compare the filter with gold on the work of a clean and of a noisy teacher."""
    try:
        searches, reports = map(float, options.noise.split(","))
    except ValueError:
        raise BadConfig(f"--noise {options.noise}: give two chances, such as 0.3,0.15.") from None
    rates = {"clean": (0.0, 0.0), "noisy": (searches, reports)}
    rollouts: dict[str, list[Rollout]] = {name: [] for name in rates}
    gold: dict[str, SubQuery] = {}
    async with mini_deployment(config, teacher=True) as mini:
        for seed in options.worlds:
            folder = work / f"unseen-{seed}"
            world = World(seed, "test")
            asked = _plain(_export(folder, world, options.questions))
            gold |= {question_key(known.text): known for known in _every_sub_query(world)}
            over_world = load_config(_config(mini, folder))
            async with open_runtime(
                over_world, lambda _step: None, cache=folder / CALLS, teacher=True
            ) as bench:
                for name, chances in rates.items():
                    worker = rollout_worker(bench, teaching=partial(_noisy, chances=chances))
                    path = folder / f"{name}.jsonl"
                    failed = await roll_out_all(worker, asked, path, _CONCURRENCY, lambda: None)
                    for reason in failed.values():
                        raise RolegateError(f"{len(failed)} questions failed: {reason}")
                    rollouts[name] += [rollout for _, rollout in read_jsonl(path, Rollout, ADVICE)]

    rows: list[Kept] = []
    rejected: dict[str, dict[str, int]] = {}
    for name, teacher_rollouts in rollouts.items():
        kept, reasons = filtered(teacher_rollouts, {})
        rows += kept_of(name, filtered(teacher_rollouts, {}, none=True)[0], kept, gold)
        for reason, count in reasons.items():
            rejected.setdefault(reason, dict.fromkeys(rates, 0))[name] = count
    return NoiseFigures(rows, rejected)


def kept_of(
    teacher: str,
    everything: Sequence[FilteredSample],
    kept: Sequence[FilteredSample],
    gold: Mapping[str, SubQuery],
) -> Iterator[Kept]:
    """Yield a row for each stratum that the filter can keep, over the sub-queries in `gold`, which
    has them by key.
    """

    def known(samples: Sequence[FilteredSample], stratum: Stratum) -> list[tuple[str, bool]]:
        executions = [sample.execution for sample in samples if sample.stratum == stratum]
        keyed = [(question_key(execution.sub_query), execution) for execution in executions]
        return [(key, _is_good(execution, gold[key])) for key, execution in keyed if key in gold]

    strata: tuple[Stratum, ...] = ("student_single", "teacher_single", "teacher_multi")
    for stratum in strata:
        candidates = known(everything, stratum)
        passed = known(kept, stratum)
        good = [key for key, is_good in candidates if is_good]
        keys = {key for key, _ in passed}
        yield Kept(
            teacher,
            stratum,
            len(candidates),
            len(good) / max(1, len(candidates)),
            len(passed),
            sum(is_good for _, is_good in passed) / max(1, len(passed)),
            sum(key in keys for key in good) / max(1, len(good)),
        )


def _is_good(execution: Execution, gold: SubQuery) -> bool:
    """Return whether an execution has the gold answer after as many searches as the gold plan."""
    same = normal_answer(execution.report.answer) == normal_answer(gold.report.answer)
    return same and len(execution.searches) == len(gold.searches)


def _noisy(role: Role, chances: tuple[float, float]) -> Role:
    model = role.model
    return replace(role, model=NoisyTeacher(model, model.name, model.endpoint, *chances))


def _every_sub_query(world: World) -> Iterator[SubQuery]:
    """Yield the gold sub-query of every wording about every fact."""
    examiner = Examiner(world, Library(world))
    for entity in world.entities:
        for relation in BY_SUBJECT[entity.kind]:
            if relation.name not in entity.values:
                continue
            plain = world.facts[entity.mention, relation.name].detour is None
            for wording in relation.ask:
                for by_alias in {False, plain and bool(entity.alias)}:
                    yield examiner.sub_query(entity, relation, wording, by_alias)


@dataclass(frozen=True, slots=True)
class NoisyTeacher:
    """Teacher with random flaws. The random draws depend on prompt and sampling alone, so that they
    repeat.
    """

    model: Model
    name: str
    endpoint: str
    searches: float
    """Chance of repeating its only search instead of reporting."""
    reports: float
    """Chance of reporting another name or number from its passages, either with the sentence that
    has it or with the evidence of the right answer.
    """

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the teacher's turn, possibly with a flaw."""
        completion = await self.model.complete(prompt)
        return msgspec.structs.replace(completion, text=self._spoilt(prompt, completion.text))

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """Complete, without deltas."""
        return await self.complete(prompt)

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """See `Model.count`."""
        return await self.model.count(prompt, text)

    def _spoilt(self, prompt: Prompt, text: str) -> str:
        turn = parse_turn(text)
        if not isinstance(turn, ReportTurn):
            return text
        rng = random.Random(f"{prompt.sampling.seed}/{prompt.messages}")
        shown = [
            message.content
            for message in prompt.messages[2:]
            if message.content.startswith("<documents>")
        ]
        if len(shown) == 1 and prompts.LAST_SEARCH not in shown[0] and rng.random() < self.searches:
            return prompt.messages[2].content
        if rng.random() >= self.reports:
            return text

        texts = re.findall("<text>(.*?)</text>", " ".join(shown), re.DOTALL)
        facts = [fact for passage in texts for fact in sentences(html.unescape(passage))]
        named = [(name, fact) for fact in facts for name in _NAME.findall(fact)]
        right = normal_answer(turn.report.answer)
        others = [(name, fact) for name, fact in named if normal_answer(name) not in right]
        if not others:
            return text
        name, sentence = rng.choice(others)
        evidence = (sentence,) if rng.random() < 0.5 else turn.report.evidence
        return report_text(Report(name, evidence))
