"""`rolegate sft rollout`: let teacher and student work on the sub-queries of questions (TBSS 3.4).

The backbone answers each question with the teacher as its executor; the student works on every
sub-query beside it, and where its report differs, the run goes on from there to see which answer
that leads to. What the teacher found with two searches it looks for again with one, several times.
So `rolegate sft filter` can tell what is worth learning. A question with columns asks for a table,
of which each report is right or wrong by itself.

With `--group 8`, each question is answered eight times instead, by models that are all sampled:
trajectories.jsonl has what each agent said, with the run's reward; `rolegate sft filter --best`
reads such rollouts.

Interrupted, the same command goes on where it was, and no model call is paid for twice.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from executor_sft.asking import failures, in_flight
from executor_sft.command import StepOptions, show
from executor_sft.jsonl import JsonlFile, read_jsonl
from executor_sft.questions import HeldOut, Question, TableReports, read_questions
from executor_sft.runtime import BASE, Runtime, adapter_files, named_adapters, open_runtime
from executor_sft.step import Step, config_settings
from router.calls import Role
from router.errors import BadConfig, OutOfTime, UpstreamError, UpstreamUnavailable
from router.protocol import exact_match
from router.search import Executor, FactorizedSearch, RunContext
from router.search.answerer import Judge
from router.search.loop import settings_of
from router.table import TableRequest, WideSearch
from router.trace import Execution, Run, Trajectory
from router.trace.export import Reward, agent_trajectories, reward_of
from router.trace.values import TableRun
from serving.config.config import Config, RoleConfig
from serving.config.file import load_config
from serving.files import write_atomically
from serving.json_lines import write_json_lines
from serving.terminal import complain, progress_bar
from serving.topologies import executor_limits

ROLLOUTS = "rollouts.jsonl"
CALLS = "calls.jsonl"
TRAJECTORIES = "trajectories.jsonl"
ADVICE = "remove this line, and it is rolled out again"
"""For a line that is no rollout."""
_TEMPERATURE = 0.7
"""At least, of what is tried again."""
_FAILED = ("retrieval_failed", "model_failed")
_TIME = (
    "time ran out; allow more with server.timeout_s, or ask for less at once with --concurrency."
)


class RolloutOptions(StepOptions, frozen=True, kw_only=True):
    """Options of `rollout` and `mine`."""

    config: Path
    limit: Annotated[int, Meta(ge=1, description="so many questions at most")] | None = None
    leave_failed: Annotated[bool, Meta(description="finish without the questions that failed")] = (
        False
    )
    concurrency: Annotated[int, Meta(ge=1, description="questions in flight")] = 8
    capped: Annotated[
        int, Meta(ge=1, description="tries of the teacher with one search, where it made more")
    ] = 3


class Options(RolloutOptions, frozen=True, kw_only=True):
    """Options of `rollout`."""

    questions: Annotated[
        Path, Meta(description="questions with right answers, or tables, JSON lines")
    ]
    exclude: Annotated[tuple[Path, ...], Meta(description="files of questions to leave out")] = ()
    group: (
        Annotated[int, Meta(ge=2, description="runs of each question, and no teacher")] | None
    ) = None
    temperature: Annotated[float, Meta(ge=_TEMPERATURE, description="of all roles in a group")] = (
        1.0
    )
    executor: Annotated[str, Meta(description=f"in a group: {BASE}, or an adapter's folder")] = BASE
    delegator: Annotated[str, Meta(description="the same")] = BASE


class Verdict(msgspec.Struct, frozen=True):
    """Correctness of a final answer."""

    exact_match: bool | None
    """None where no right answer is known."""
    accepted: bool | None = None
    """The judge's verdict; None where it was not asked, or its reply could not be read."""
    judged: bool = False
    """The judge was asked."""

    @property
    def correct(self) -> bool:
        """By exact match, where a right answer is known, and by the judge, where one was asked
        (TBSS 3.4).
        """
        return (
            self.accepted is True and self.exact_match is not False
            if self.judged
            else self.exact_match is True
        )


class Sample(msgspec.Struct, frozen=True):
    """One executor's work on one sub-query, and the answer that it leads to in the teacher's
    run.
    """

    execution: Execution
    answer: str
    verdict: Verdict


class SubQueryRollout(msgspec.Struct, frozen=True):
    """A sub-query with all samples of it."""

    teacher: Sample
    student: Sample
    capped: tuple[Sample, ...] = ()
    """The teacher's again, with one search at most; only where it was correct with two or more."""


class Rollout(msgspec.Struct, frozen=True):
    """A question with everything that was made of it; one line of `rollouts.jsonl`."""

    question: Question
    trajectory: Trajectory | TableRun
    """The teacher's run."""
    verdict: Verdict
    sub_queries: tuple[SubQueryRollout, ...] = ()
    """In order of dispatch; of a table, by the numbers of its asks."""


class Group(msgspec.Struct, frozen=True):
    """A question with several runs; one line of `rollouts.jsonl` of `--group`."""

    question: Question
    runs: tuple[Run, ...]

    @property
    def rewards(self) -> list[Reward]:
        """Of the runs."""
        return [reward_of(run, self.question.golds) for run in self.runs]


def check_failures(trajectory: Trajectory | TableRun, first: int, context: RunContext) -> None:
    """Raise the failure that a run answered in spite of: time ran out, or an endpoint failed.
    `first`: the number of the first sub-query that was worked on in `context`.
    """
    for index, execution in enumerate(trajectory.executions[first:], first):
        check_execution(execution, index, context)
    if trajectory.outcome == "time_exhausted":
        raise OutOfTime(_TIME)
    if trajectory.outcome == "delegation_failed":
        raise context.failures[None]


def check_some(
    executions: Iterable[Execution], failures: Mapping[int | None, UpstreamError]
) -> None:
    """Raise the failure of an endpoint that is gone, or any where no executor did its work."""
    hopeless = all(execution.outcome in _FAILED for execution in executions)
    for error in failures.values():
        if hopeless or isinstance(error, UpstreamUnavailable):
            raise error


def check_execution(execution: Execution, index: int, context: RunContext) -> None:
    """Raise the failure that an execution reported in spite of. `index`: the number of its
    sub-query.
    """
    match execution.outcome:
        case "timed_out":
            raise OutOfTime(_TIME)
        case outcome if outcome in _FAILED:
            raise context.failures[index]


@dataclass(frozen=True, slots=True)
class RolloutWorker:
    """Rolls out any number of questions at once."""

    search: FactorizedSearch
    """With the teacher as executor."""
    student: Executor
    capped: Sequence[Executor]
    """The teacher with one search at most, each with another seed."""
    judge: Judge | None
    context: Callable[..., RunContext]
    """For one run, which may be given so many seconds."""
    wide: WideSearch | None = None
    """The search that fills tables, with the teacher as executor; None where none are asked for."""

    async def roll_out(self, question: Question) -> Rollout:
        """Sample `question` and its sub-queries. An executor that could not do its work is an
        error, not a sample: raises `UpstreamError`, `OutOfTime` and `StoreFailed`.
        """
        if question.table:
            return await self._table(question, question.table)
        context = self.context()
        trajectory = await self.search.run(question.text, context)
        check_failures(trajectory, 0, context)
        run = Rollout(question, trajectory, await self._verdict(question, trajectory))
        rollouts: list[SubQueryRollout] = []
        for number in range(len(trajectory.rounds)):
            for place, execution in enumerate(trajectory.block(number)):
                student = await self._sample(self.student, run, number, place)
                needed = run.verdict.correct and len(execution.searches) >= 2
                tries = self.capped if needed else ()
                capped = tuple(
                    [await self._sample(executor, run, number, place) for executor in tries]
                )
                rollouts.append(
                    SubQueryRollout(
                        Sample(execution, trajectory.answer, run.verdict), student, capped
                    )
                )
        return msgspec.structs.replace(run, sub_queries=tuple(rollouts))

    async def _sample(self, executor: Executor, run: Rollout, number: int, place: int) -> Sample:
        """The work of `executor` on a sub-query, by its round and its place there, and where
        its report leads to.
        """
        trajectory = run.trajectory
        assert isinstance(trajectory, Trajectory)
        block = list(trajectory.block(number))
        context = self.context()
        first = sum(trajectory.rounds[:number])
        execution = await executor.run(block[place].sub_query, first + place, context)
        check_execution(execution, first + place, context)
        if execution.report == block[place].report:
            return Sample(execution, trajectory.answer, run.verdict)
        block[place] = execution
        context = self.context()
        changed = self.search.instead(trajectory, number, block)
        led = await self.search.proceed(run.question.text, changed, context)
        check_failures(led, first + len(block), context)
        return Sample(execution, led.answer, await self._verdict(run.question, led))

    async def _table(self, question: Question, table: TableRequest) -> Rollout:
        """The rollout of a table, by as many executors at once as fill it. Those that could not do
        their work stay among the samples, and cost nothing else, unless there are no others.
        """
        assert self.wide
        limits = self.wide.limits
        context = self.context(self.wide.limits.timeout_s)
        found = await self.wide.run(table.checked(limits), context)
        check_some(found.executions, context.failures)
        check_failures(found, len(found.executions), context)
        failures = dict[int | None, UpstreamError]()
        reports = TableReports(question, found)

        async def sample(number: int, executor: Executor | None = None) -> Sample:
            execution = found.executions[number]
            if executor:
                context = replace(self.context(), tabular=True, failures=failures)
                execution = await executor.run(execution.sub_query, number, context)
                check_some(found.executions, failures)
            right = reports.flaw(found.asks[number], execution) is None if question.rows else None
            return Sample(execution, execution.report.answer, Verdict(right))

        async def work(number: int) -> SubQueryRollout:
            teacher = await sample(number)
            student = await sample(number, self.student)
            needless = teacher.verdict.exact_match is False or len(teacher.execution.searches) < 2
            tries = [
                await sample(number, executor) for executor in (() if needless else self.capped)
            ]
            return SubQueryRollout(teacher, student, tuple(tries))

        rolled_out = await in_flight(work, range(len(found.asks)), limits.width, lambda: None)
        check_some((one.student.execution for one in rolled_out), failures)
        return Rollout(question, found, Verdict(reports.right), tuple(rolled_out))

    async def _verdict(self, question: Question, trajectory: Trajectory) -> Verdict:
        """The verdict on an answer; the judge is asked only where it decides."""
        answer = trajectory.answer
        matched = exact_match(answer, question.golds) if question.golds else None
        if exact_match(answer, question.rejected) and not matched:
            return Verdict(exact_match=False)
        if self.judge is None or matched is False:
            return Verdict(matched)
        evidence = (
            ()
            if question.golds
            else [p for run in trajectory.executions for p in run.report.evidence]
        )
        ledger = self.context().ledger
        accepted = await self.judge.accepts(question.text, question.golds, answer, ledger, evidence)
        return Verdict(matched, accepted, judged=True)


@dataclass(frozen=True, slots=True)
class GroupWorker:
    """Answers any number of questions at once, each of them several times."""

    runtime: Runtime
    size: int
    temperature: float

    async def roll_out(self, question: Question) -> Group:
        """Answer `question`, all roles sampled. Raises as `RolloutWorker` does."""
        runs = []
        for seed in range(self.size):
            sampled = self.runtime.sampled(seed, self.temperature)
            topology = sampled.topology("factorized")
            context = sampled.context()
            found = await topology.loop.run(question.text, context)
            check_failures(found, 0, context)
            more = settings_of(topology.roles), tuple(context.ledger.calls), 0.0, 0.0
            runs.append(
                Run(f"{question.id}/{seed}", "answer", question.text, "finished", "", found, *more)
            )
        return Group(question, tuple(runs))


Worker = RolloutWorker | GroupWorker


def teacher_config(config: Config) -> RoleConfig:
    """The teacher's role. Raises `BadConfig` where the config names none, or one with a prompt
    of its own.
    """
    teacher = config.distillation.teacher
    student = config.roles.execution
    if teacher is None:
        raise BadConfig(
            "distillation.teacher: is not set; add a table [distillation.teacher] with "
            "model, prompt and where it is "
            "served, as in [roles.execution], which is the student."
        )
    if (
        Path(teacher.prompt).read_text("utf-8").strip()
        != Path(student.prompt).read_text("utf-8").strip()
    ):
        raise BadConfig(
            f"distillation.teacher.prompt: {teacher.prompt} differs from "
            f"{student.prompt}; name the prompt of "
            "roles.execution, as the student learns under the one that it serves with."
        )
    return teacher


def rollout_worker(
    runtime: Runtime, capped: int = 3, teaching: Callable[[Role], Role] = replace
) -> RolloutWorker:
    """A worker with the config's teacher and student, which tell their tokens. `capped`: tries with
    one search, sampled but for the first, as they would else be the same. `teaching`: makes another
    role of the teacher's. Raises `BadConfig`.
    """
    runtime = replace(runtime, asking={"execution": {"return_token_ids": True}})
    config = teacher_config(runtime.config)
    once = replace(executor_limits(runtime.config.search), max_searches=1)
    warm = max(config.temperature, _TEMPERATURE)
    again = [runtime, *(runtime.sampled(seed, warm) for seed in range(1, capped))]
    first, *others = [teaching(one.role("execution", config)) for one in again]
    tries = [runtime.executor(role, once) for role in (first, *others)]
    executor = runtime.executor(first)
    search = runtime.search(executor)
    wide = runtime.wide_search(executor)
    return RolloutWorker(search, runtime.executor(), tries, runtime.judge, runtime.context, wide)


async def roll_out_all(
    worker: Worker,
    questions: Sequence[Question],
    path: Path,
    concurrency: int,
    on_done: Callable[[], None],
) -> dict[str, str]:
    """Roll out whatever is not in `path` yet, so many questions at once; a line for each, at the
    end in the order of the questions. Returns why questions failed, by their ids; these are not in
    the file. `on_done`: called for every question that is done, before or now, or has failed.

    Raises what `failures` raises, and `StoreFailed`; all that was done is then kept.
    """
    kind: type[Any] = Group if isinstance(worker, GroupWorker) else Rollout
    with closing(JsonlFile(path, kind, ADVICE)) as file:
        done = {rollout.question.id for rollout in file}
        for _ in done:
            on_done()

        async def one(question: Question) -> None:
            file.append(await worker.roll_out(question))

        failed = await failures(
            one,
            [question for question in questions if question.id not in done],
            concurrency,
            on_done,
            name=lambda question: question.id,
            so_far=lambda count: f"{count} of {len(questions)} questions are rolled out",
            done=len(done),
        )
        rollouts = {rollout.question.id: rollout for rollout in file}
    ordered = [rollouts[question.id] for question in questions if question.id in rollouts]
    # Does not tell who was quicker
    write_atomically(path, msgspec.json.Encoder().encode_lines(ordered))
    return failed


def search_counts(searches: Iterable[int]) -> dict[str, float]:
    """Executor runs, and the searches that they made: on average, and how many made none, one or
    more (TBSS Table 4). `searches`: of each run.
    """
    counts = list(searches)
    runs = len(counts)
    none = counts.count(0)
    one = counts.count(1)
    average = sum(counts) / max(1, runs)
    return {
        "invocations": runs,
        "average": average,
        "none": none,
        "one": one,
        "more": runs - none - one,
    }


def figures_of(path: Path, models: Mapping[str, str]) -> dict[str, Any]:
    """Count a file of rollouts. `models`: of teacher and student. Shares are of questions, and
    of executor runs.
    """
    rollouts = [rollout for _, rollout in read_jsonl(path, Rollout, ADVICE)]
    verdicts = [rollout.verdict for rollout in rollouts]
    executors = {}
    for name, model in models.items():
        samples: list[Sample] = [
            getattr(work, name) for rollout in rollouts for work in rollout.sub_queries
        ]
        executors[name] = {
            **search_counts(len(sample.execution.searches) for sample in samples),
            "model": model,
            "no_report": sum(sample.execution.failed for sample in samples),
            "exact_match": fmean([sample.verdict.exact_match is True for sample in samples] or [0]),
        }
    return {
        "executors": executors,
        "questions": len(rollouts),
        "exact_match": fmean([verdict.exact_match is True for verdict in verdicts] or [0]),
        "correct": fmean([verdict.correct for verdict in verdicts] or [0]),
        "unread": sum(verdict.judged and verdict.accepted is None for verdict in verdicts),
        "no_search": sum(not rollout.sub_queries for rollout in rollouts),
    }


def run(options: Options) -> int:
    """Run the step; the exit status."""
    listed, duplicates = read_questions(options.questions, tables=options.group is None)
    held_out = HeldOut.read(options.exclude)
    likeness = [held_out.likeness(question.text) for question in listed]
    chosen = [question for question, like in zip(listed, likeness, strict=True) if like is None]
    selection = {
        "read": len(listed) + duplicates,
        "duplicates": duplicates,
        "excluded": likeness.count("same"),
        "nearly_excluded": likeness.count("near"),
        "over_limit": len(chosen) - len(chosen[: options.limit]),
    }
    inputs = {
        "questions": options.questions,
        **{f"exclude {path}": path for path in options.exclude},
    }
    if options.group is None:
        step = begin_step("rollout", options, inputs, {})
    else:
        inputs |= adapter_files(
            named_adapters([options.executor]) | named_adapters([options.delegator])
        )
        told = ("limit", "group", "temperature", "executor", "delegator")
        settings = {name: getattr(options, name) for name in told} | config_settings(
            load_config(options.config)
        )
        step = Step.begin(options.out, "rollout", inputs, settings)
    return roll_out_step(step, options, chosen[: options.limit], selection)


def begin_step(
    name: str, options: RolloutOptions, inputs: Mapping[str, Path], settings: Mapping[str, object]
) -> Step:
    """Begin a step that rolls out. Raises `BadConfig` where nobody teaches."""
    config = load_config(options.config)
    extra_roles = {"teacher": teacher_config(config), "judge": config.distillation.judge}
    made_with = {
        "limit": options.limit,
        "capped": options.capped,
        **settings,
        **config_settings(config, extra_roles),
    }
    return Step.begin(options.out, name, inputs, made_with)


def roll_out_step(
    step: Step, options: RolloutOptions, questions: Sequence[Question], selection: dict[str, int]
) -> int:
    """Roll out, unless that was done, and print the figures; the exit status. Where questions
    failed, the step is not finished, unless it is to be without them.
    """
    if (manifest := step.finished) is not None:
        complain(f"{step.folder}: was finished before, at {manifest.finished_at}")
        show(manifest.figures, as_json=options.json)
        return 0
    if not questions:
        raise BadConfig(f"{step.folder}: no question is left to roll out ({selection}).")
    work = (
        _group(options, questions)
        if isinstance(options, Options) and options.group
        else _teach(options, questions)
    )
    figures = {"selection": selection, **asyncio.run(work)}
    show(figures, as_json=options.json)
    if figures["failed"] and not options.leave_failed:
        complain(
            "The same command tries those that failed again; --leave-failed goes on without them."
        )
        return 1
    step.finish(
        figures, [name for name in (ROLLOUTS, TRAJECTORIES) if (step.folder / name).exists()]
    )
    return 0


async def _teach(options: RolloutOptions, questions: Sequence[Question]) -> dict[str, Any]:
    config = load_config(options.config)
    async with open_runtime(config, complain, cache=options.out / CALLS, teacher=True) as runtime:
        done = await _rolled_out(
            rollout_worker(runtime, options.capped), runtime, questions, options
        )
    models = {"teacher": teacher_config(config).model, "student": config.roles.execution.model}
    return {**done, **figures_of(options.out / ROLLOUTS, models)}


async def _group(options: Options, questions: Sequence[Question]) -> dict[str, Any]:
    executors = named_adapters([options.executor])
    delegators = named_adapters([options.delegator])
    opened = partial(open_runtime, load_config(options.config), complain, cache=options.out / CALLS)
    async with opened(adapters=executors, delegators=delegators) as runtime:
        asking = {
            role: {"return_token_ids": True, "logprobs": True}
            for role in runtime.config.roles.by_name
        }
        asked = replace(runtime.with_versions(*executors, *delegators), asking=asking)
        worker = GroupWorker(asked, options.group or 1, options.temperature)
        done = await _rolled_out(worker, runtime, questions, options)
    groups = [group for _, group in read_jsonl(options.out / ROLLOUTS, Group, ADVICE)]
    lines = (
        line
        for one in groups
        for run in one.runs
        for line in agent_trajectories(run, one.question.golds)
    )
    write_json_lines(options.out / TRAJECTORIES, lines)
    rewards = [group.rewards for group in groups]
    right = Counter(sum(reward.exact_match is True for reward in of) for of in rewards)
    told = {
        name: [getattr(reward, name) for of in rewards for reward in of]
        for name in Reward.__struct_fields__
    }
    means = {
        name: fmean([one for one in values if one is not None] or [0])
        for name, values in told.items()
    }
    return {**done, **means, "groups": {f"{count} right": right[count] for count in sorted(right)}}


async def _rolled_out(
    worker: Worker, runtime: Runtime, questions: Sequence[Question], options: RolloutOptions
) -> dict[str, Any]:
    """Roll out with a bar; why questions failed, and what was spent."""
    with progress_bar() as bar:
        task = bar.add_task("rolling out", total=len(questions))
        path = options.out / ROLLOUTS
        failed = await roll_out_all(
            worker, questions, path, options.concurrency, lambda: bar.advance(task)
        )
    assert runtime.cache is not None
    return {"failed": failed, "spent": msgspec.to_builtins(runtime.cache.spent)}
