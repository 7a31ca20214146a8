"""The filter's worth: the same training on everything that the rollouts hold, on what the filter
lets through, and on gold trajectories of the same sub-queries; each compared with the untuned
executor on a held-out world.

With --noise, nothing is trained: a teacher that searches needlessly and reports what is wrong works
on unseen worlds, and one that does not; what the filter keeps of either is compared with gold,
stratum by stratum.
"""

import asyncio
import html
import random
import re
from collections import Counter
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
from executor_sft.miniworld.questions import Examiner, SubQuery
from executor_sft.miniworld.questions import Question as MiniQuestion
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

_AT_ONCE = 32
_ARMS = ("unfiltered", "filtered", "gold")
_SINGLE: Mix = {"student_single": 1000, "teacher_single": 500}
_MULTI: Mix = {"teacher_multi": 668}
"""The paper's mix, at most, for all arms: so they differ in what they learn from, and hardly in
how much.
"""


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    worlds: Annotated[tuple[int, ...], Meta(description="seeds of those to work on")] = (
        9001,
        9002,
        9003,
        9004,
    )
    questions: Annotated[int, Meta(ge=1, description="of each of them")] = 300
    held_out: Annotated[int, Meta(description="seed of the world to ask about")] = 13
    asked: Annotated[int, Meta(ge=1, description="questions about it")] = 200
    recipe: Annotated[str, Meta(description="of the trainings")] = "mini"
    work: (
        Annotated[Path, Meta(description="keeps the steps' folders, to go on after a kill")] | None
    ) = None
    noise: Annotated[
        str, Meta(description="SEARCHES,REPORTS: chances of what is needless or wrong, as 0.3,0.15")
    ] = ""


class Arm(msgspec.Struct, frozen=True):
    """An executor that has learnt from one kind of trajectories; `base` has learnt from none."""

    learnt_from: str
    trajectories: int
    not_needed: float | None
    """The share of second searches for sub-queries that one search answers, of those of the gold
    plans; None where there was no second search.
    """


class Figures(msgspec.Struct, frozen=True):
    """Arms, and how well each of them answers."""

    arms: list[Arm]
    evaluation: Evaluation


class Kept(msgspec.Struct, frozen=True):
    """A stratum: what its trajectories are worth before the filter and after. One is good that has
    the searches and the report of the gold plan.
    """

    teacher: str
    """`clean` or `noisy`."""
    stratum: Stratum
    candidates: int
    """Trajectories with a report."""
    good: float
    """Share of them."""
    kept: int
    precision: float
    """The share of good ones of those kept."""
    recall: float
    """The share of the good ones whose sub-query is kept in this stratum."""


class NoiseFigures(msgspec.Struct, frozen=True):
    """The filter's table, and how many it rejected for which reason, by teacher."""

    kept: list[Kept]
    rejected: dict[str, dict[str, int]]


async def measure(options: Options) -> Figures | NoiseFigures:
    """Roll out, train three times, and evaluate; or compare with gold. Raises `RolegateError`."""
    config = load_config(preset("mini"))
    if options.noise:
        with work_folder(options.work) as work:
            return await _against_gold(config, work, options)
    student = Path(config.engines["executor"].path)
    arms = dict.fromkeys((BASE, *_ARMS), 0)
    with work_folder(options.work) as work:
        async with mini_deployment(config, teacher=True) as mini:
            gold = [
                kept
                for seed in options.worlds
                for kept in await _world(mini, work, seed, options.questions)
            ]
            rolled_out = [work / f"world-{seed}" / "rollouts" for seed in options.worlds]
            mix = ",".join(f"{stratum}={count}" for stratum, count in (_SINGLE | _MULTI).items())
            await _step("filter", *rolled_out, "--none", "--mix", mix, "--out", work / "unfiltered")
            await _step("filter", *rolled_out, "--mix", mix, "--out", work / "filtered")
            _write_gold(work / "gold", gold)
            for arm in _ARMS:
                data = work / f"{arm}-data"
                trained = work / f"{arm}-trained"
                await _step("dataset", work / arm, "--model", student, "--out", data)
                await _step(
                    "train", data, "--model", student, "--recipe", options.recipe, "--out", trained
                )
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
    common = (
        "--config",
        _config(mini, folder),
        "--questions",
        folder / "questions.jsonl",
        "--concurrency",
        _AT_ONCE,
    )
    await _step("rollout", *common, "--out", out)
    async with _bench(mini, folder, {}) as bench:
        return [
            await _gold(bench, question, sub_query)
            for question in asked
            for sub_query in question.sub_queries
        ]


async def _gold(bench: Runtime, question: MiniQuestion, sub_query: SubQuery) -> FilteredSample:
    """A faultless executor's run, with real passages."""
    turns = [
        *(f"<search>{query}</search>" for query in sub_query.searches),
        report_text(sub_query.report),
    ]
    role = bench.role("execution", bench.config.roles.execution)
    faultless = bench.executor(replace(role, model=ScriptedModel(turns)))
    execution: Execution = await faultless.run(sub_query.text, 0, bench.context())
    stratum: Stratum = "teacher_single" if len(sub_query.searches) == 1 else "teacher_multi"
    return FilteredSample(stratum, question.id, "", execution)


def _write_gold(folder: Path, gold: Sequence[FilteredSample]) -> None:
    """Keep those that the retriever can carry out, in the filter's own kind of folder: every point
    of the report must stand in a passage that was found.
    """
    step = Step.begin(folder, "gold", {}, {"trajectories": len(gold)})
    if step.finished is None:
        runs = [(kept, kept.execution) for kept in gold if not kept.execution.failed]
        carried_out = [kept for kept, run in runs if all(run.citations(run.report.evidence))]
        chosen = mixed(carried_out, {"teacher_single": sum(_SINGLE.values()), **_MULTI}, seed=1)
        write_atomically(folder / RESULT, msgspec.json.Encoder().encode_lines(chosen))
        step.finish({"samples": len(chosen)}, [RESULT])


def _bench(
    mini: MiniDeployment, folder: Path, adapters: Mapping[str, Path]
) -> AbstractAsyncContextManager[Runtime]:
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
    enough = {
        sub_query.text: len(sub_query.searches)
        for question in asked
        for sub_query in question.sub_queries
    }
    twice = [
        run
        for one in answered
        for run in one.executions
        if len(run.searches) > 1 and run.sub_query in enough
    ]
    return fmean(enough[run.sub_query] == 1 for run in twice) if twice else None


async def _step(command: str, *arguments: object) -> None:
    """Run a step of the distillation in a thread, as it runs an event loop of its own."""
    if status := await asyncio.to_thread(run, [command, *map(str, arguments)]):
        raise RolegateError(f"{command} ended with status {status}.")


async def _against_gold(config: Config, work: Path, options: Options) -> NoiseFigures:
    """What the filter keeps of a clean and of a noisy teacher's work on the same questions."""
    try:
        searches, reports = map(float, options.noise.split(","))
    except ValueError:
        raise BadConfig(f"--noise {options.noise}: give two chances, as 0.3,0.15.") from None
    rates = {"clean": (0.0, 0.0), "noisy": (searches, reports)}
    rollouts: dict[str, list[Rollout]] = {name: [] for name in rates}
    gold: dict[str, SubQuery] = {}
    async with mini_deployment(config, teacher=True) as mini:
        for seed in options.worlds:
            folder = work / f"unseen-{seed}"
            world = World(seed, "test")
            asked = [
                Question(one.id, one.text, (one.answer,))
                for one in _export(folder, world, options.questions)
            ]
            gold |= {question_key(one.text): one for one in _every_sub_query(world)}
            of = load_config(_config(mini, folder))
            async with open_runtime(
                of, lambda _step: None, cache=folder / CALLS, teacher=True
            ) as bench:
                for name, chances in rates.items():
                    worker = rollout_worker(bench, teaching=partial(_noisy, chances=chances))
                    path = folder / f"{name}.jsonl"
                    failed = await roll_out_all(worker, asked, path, _AT_ONCE, lambda: None)
                    for why in failed.values():
                        raise RolegateError(f"{len(failed)} questions failed: {why}")
                    rollouts[name] += [rollout for _, rollout in read_jsonl(path, Rollout, ADVICE)]
    rows: list[Kept] = []
    rejected: dict[str, Counter[str]] = {}
    for name, its in rollouts.items():
        kept, rejected[name] = filtered(its, {})
        rows += kept_of(name, filtered(its, {}, none=True)[0], kept, gold)
    whys = dict.fromkeys(why for reasons in rejected.values() for why in reasons)
    return NoiseFigures(
        rows, {why: {name: its[why] for name, its in rejected.items()} for why in whys}
    )


def kept_of(
    teacher: str,
    everything: Sequence[FilteredSample],
    kept: Sequence[FilteredSample],
    gold: Mapping[str, SubQuery],
) -> Iterator[Kept]:
    """A row for each stratum that the filter can keep, of those sub-queries that `gold` has, by
    their key.
    """

    def known(samples: Sequence[FilteredSample], stratum: Stratum) -> list[tuple[str, bool]]:
        keyed = [
            (question_key(one.execution.sub_query), one)
            for one in samples
            if one.stratum == stratum
        ]
        return [(key, _is_good(one.execution, gold[key])) for key, one in keyed if key in gold]

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
    """True for the gold report, after as many searches as it takes."""
    same = normal_answer(execution.report.answer) == normal_answer(gold.report.answer)
    return same and len(execution.searches) == len(gold.searches)


def _noisy(role: Role, chances: tuple[float, float]) -> Role:
    model = role.model
    return replace(role, model=NoisyTeacher(model, model.name, model.endpoint, *chances))


def _every_sub_query(world: World) -> Iterator[SubQuery]:
    """The gold of everything that can be asked about one fact."""
    examiner = Examiner(world, Library(world))
    for entity in world.entities:
        for relation in (one for one in BY_SUBJECT[entity.kind] if one.name in entity.values):
            plain = world.facts[entity.mention, relation.name].detour is None
            for wording in relation.ask:
                for by_alias in {False, plain and bool(entity.alias)}:
                    yield examiner.sub_query(entity, relation, wording, by_alias)


@dataclass(frozen=True, slots=True)
class NoisyTeacher:
    """A teacher with flaws, each by a chance that hangs on what it was shown and how it is
    sampled: they come again.
    """

    model: Model
    name: str
    endpoint: str
    searches: float
    """The chance that it searches again, in the same words, where one search was enough to
    report.
    """
    reports: float
    """The chance that its report names something else that it was shown: with the sentence that has
    it, or with the evidence of the right one.
    """

    async def complete(self, prompt: Prompt) -> Completion:
        """The teacher's turn, as it comes out."""
        completion = await self.model.complete(prompt)
        return msgspec.structs.replace(completion, text=self._spoilt(prompt, completion.text))

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """The same; nobody follows it."""
        return await self.complete(prompt)

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """The teacher's own count."""
        return await self.model.count(prompt, text)

    def _spoilt(self, prompt: Prompt, text: str) -> str:
        turn = parse_turn(text)
        if not isinstance(turn, ReportTurn):
            return text
        rng = random.Random(f"{prompt.sampling.seed}/{prompt.messages}")
        shown = [
            one.content for one in prompt.messages[2:] if one.content.startswith("<documents>")
        ]
        if len(shown) == 1 and prompts.LAST_SEARCH not in shown[0] and rng.random() < self.searches:
            return prompt.messages[2].content
        if rng.random() >= self.reports:
            return text
        texts = re.findall("<text>(.*?)</text>", " ".join(shown), re.DOTALL)
        said = [sentence for one in texts for sentence in sentences(html.unescape(one))]
        named = [
            (name, one) for one in said for name in re.findall(r"[A-Z]\w+(?: [A-Z]\w+)*|\d{4}", one)
        ]
        others = [
            both
            for both in named
            if normal_answer(both[0]) not in normal_answer(turn.report.answer)
        ]
        if not others:
            return text
        name, sentence = rng.choice(others)
        return report_text(
            Report(name, (sentence,) if rng.random() < 0.5 else turn.report.evidence)
        )
