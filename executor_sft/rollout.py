"""`rolegate sft rollout`: run teacher and student on the sub-queries of questions (TBSS 3.4).

The teacher is the model of `distillation.teacher`; the student is the config's executor. First,
each question is answered with the teacher as executor. Then the student works on every sub-query of
that run. If the student's report differs from the teacher's, the rest of the run is repeated with
the student's report, to get a final answer. If the teacher searched more than once for a sub-query,
it also tries this sub-query several times with only one search. `rolegate sft filter` then selects
the trajectories to train on. A question with columns asks for a table; reports are then judged by
the cells that they fill, not by a final answer.

With `--group 8`, there is no teacher. Instead, each question is answered, or each table filled,
eight times with different seeds. trajectories.jsonl then has the conversation of each agent, with
the reward of its run. `rolegate sft filter --best` keeps the best run of each question; `rolegate
sft weigh` turns all runs into training rows.

After an interruption, the same command resumes, and no model call is paid for twice.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import msgspec
from msgspec import Meta, structs

from executor_sft.asking import failures, in_flight
from executor_sft.command import Count, StepOptions, show
from executor_sft.jsonl import JsonlFile, read_jsonl, write_jsonl
from executor_sft.questions import Question, TableReports, select_questions
from executor_sft.reinforcement.rewards import item_f1
from executor_sft.runtime import (
    BASE,
    Runtime,
    Work,
    adapter_files,
    named_adapters,
    open_runtime,
    spread,
)
from executor_sft.step import Step, config_settings
from router.calls import Role
from router.errors import BadConfig, OutOfTime, UpstreamError, UpstreamUnavailable
from router.frozen import Frozen
from router.protocol import exact_match
from router.search import Executor, FactorizedSearch, RunContext
from router.search.answerer import Judge
from router.search.loop import settings_of
from router.table import TableRequest, WideSearch
from router.table.filling import TABLE_REPORTING
from router.trace import Execution, Run, Trajectory
from router.trace.export import Reward, agent_trajectories, reward_of
from router.trace.values import Result, TableRun, TopologyName
from serving.bulk import Ask
from serving.config.config import Config, RoleConfig
from serving.config.file import load_config
from serving.json_lines import write_json_lines
from serving.terminal import complain, progress_bar
from serving.topologies import executor_limits

ROLLOUTS = "rollouts.jsonl"
CALLS = "calls.jsonl"
TRAJECTORIES = "trajectories.jsonl"
ADVICE = "remove this line; the same command then rolls out its question again"
"""End of the error message about an invalid line in a file of rollouts."""
_TEMPERATURE = 0.7
"""Min sampling temperature of repeated tries. At a lower temperature, the tries would hardly
differ.
"""
_FAILED = ("retrieval_failed", "model_failed")
_TIME = "a run took too long; raise server.timeout_s, or lower --concurrency."


class RolloutOptions(StepOptions, kw_only=True):
    """Options of `rollout` and `mine`."""

    config: Path
    limit: Count | None = None
    """max questions to answer (default: all)"""
    leave_failed: bool = False
    """finish the step even if questions failed (default: the step stays unfinished, and the same
    command tries the failed questions again)
    """
    concurrency: Count = 8
    """number of questions to work on at the same time"""
    ray: str | None = None
    """work on this Ray cluster: local (this machine's cores), or HOST:PORT of the cluster's head
    (default: work in this process)
    """
    capped: Count = 3
    """if the teacher searched more than once for a sub-query, let it try this sub-query this many
    times again, each time with only one search
    """


class Options(RolloutOptions, kw_only=True):
    """Options of `rollout`."""

    questions: Path
    """file of questions with right answers, or of requests for tables. Each line is JSON, such as
    {"question": "When …?", "answer": "1864"}; a request for a table has columns instead of answer
    """
    exclude: tuple[Path, ...] = ()
    """files of held-out questions (JSON lines); leave out questions that are the same as, or nearly
    the same as, a held-out question
    """
    group: Annotated[int, Meta(ge=2)] | None = None
    """answer each question this many times with different seeds, without a teacher (default: run
    teacher and student)
    """
    temperature: Annotated[float, Meta(ge=_TEMPERATURE)] = 1.0
    """with --group: sampling temperature of all roles"""
    executor: str = BASE
    """with --group: executor to use: base (the config's executor), or the folder of a LoRA adapter
    for it
    """
    delegator: str = BASE
    """with --group: delegator to use: base (the config's delegator), or the folder of a LoRA
    adapter for it
    """
    topology: TopologyName = "factorized"
    """with --group: how the models share the work: factorized (no managers), or host (with the
    managers of the config between delegator and executors)
    """


class Verdict(Frozen):
    """Correctness of a final answer, or of a report on a part of a table."""

    exact_match: bool | None
    """True if the answer matches a right answer; None if no right answer is known."""
    accepted: bool | None = None
    """The judge's verdict; None if the judge was not asked, or its reply could not be parsed."""
    judged: bool = False
    """Whether the judge was asked."""

    @property
    def correct(self) -> bool:
        """True if the answer matches a right answer and the judge accepts it (TBSS 3.4). Without a
        judge, the match alone decides. Without right answers, the judge alone decides. Without
        both, the value is False.
        """
        if self.judged:
            return self.accepted is True and self.exact_match is not False
        return self.exact_match is True


class Sample(Frozen):
    """An executor's work on a sub-query. For a question, `answer` is the final answer of the
    teacher's run if the run is continued with this executor's report. For a table, `answer` is the
    answer in the report.
    """

    execution: Execution
    answer: str
    verdict: Verdict


class SubQueryRollout(Frozen):
    """The work of teacher and student on one sub-query."""

    teacher: Sample
    student: Sample
    capped: tuple[Sample, ...] = ()
    """Further tries of the teacher on the same sub-query, with only one search each. Empty if the
    teacher searched at most once, or if its answer was wrong.
    """


class Rollout(Frozen):
    """One line of `rollouts.jsonl`: the teacher's run on a question, and the work of teacher and
    student on each sub-query of that run.
    """

    question: Question
    trajectory: Trajectory | TableRun
    """The teacher's run."""
    verdict: Verdict
    """Correctness of the teacher's run."""
    sub_queries: tuple[SubQueryRollout, ...] = ()
    """Work on each sub-query, in the order in which the teacher's run dispatched the sub-queries.
    """


class Group(Frozen):
    """Several runs of the same question: one line of `rollouts.jsonl` with `--group`."""

    question: Question
    runs: tuple[Run, ...]

    @property
    def rewards(self) -> list[Reward]:
        """Reward of each run."""
        return [reward_of(run, self.question.golds, self.item_f1(run.result)) for run in self.runs]

    def item_f1(self, result: Result | None) -> float | None:
        """Return the item F1 (F1 over cells) of the table that a run filled. Return None if the run
        filled no table, or if the right rows are unknown.
        """
        if isinstance(result, TableRun) and self.question.rows:
            return item_f1(result, self.question.rows)
        return None


def check_failures(trajectory: Trajectory | TableRun, first: int, context: RunContext) -> None:
    """Raise the error of a run if its time ran out or an endpoint failed. The answer of such a run
    says nothing about the models.

    `context`: context of the run; it has the errors of endpoints. `first`: number of the first
    sub-query to check, from 0; earlier sub-queries were taken from another run. Raises `OutOfTime`
    or `UpstreamError`.
    """
    for index, execution in enumerate(trajectory.executions[first:], first):
        check_execution(execution, index, context)
    if trajectory.outcome == "time_exhausted":
        raise OutOfTime(_TIME)
    if trajectory.outcome == "delegation_failed":
        raise context.failures[None]


def check_some(
    executions: Iterable[Execution],
    failures: Mapping[int | None, UpstreamError],
) -> None:
    """Raise an error of `failures` if all `executions` failed, or if an endpoint is unavailable.
    Otherwise, failures are tolerated. `failures`: endpoints' errors, as in `RunContext.failures`.
    """
    hopeless = all(execution.outcome in _FAILED for execution in executions)
    for error in failures.values():
        if hopeless or isinstance(error, UpstreamUnavailable):
            raise error


async def fill(wide: WideSearch, table: TableRequest, context: RunContext) -> TableRun:
    """Fill a table once, and return the run. Raises `UpstreamError` if all executions failed or an
    endpoint is unavailable, and `OutOfTime` if the time of the run is up.
    """
    run = await wide.run(table.checked(wide.limits), context)
    check_some(run.executions, context.failures)
    check_failures(run, len(run.executions), context)
    return run


def check_execution(execution: Execution, index: int, context: RunContext) -> None:
    """Raise the error of an execution (an executor's work on one sub-query) if time ran out or an
    endpoint failed. `index`: number of the sub-query, from 0. Raises `OutOfTime` or
    `UpstreamError`.
    """
    if execution.outcome == "timed_out":
        raise OutOfTime(_TIME)
    if execution.outcome in _FAILED:
        raise context.failures[index]


class RolloutWorker(Frozen):
    """Runs teacher and student on questions, any number of questions concurrently."""

    search: FactorizedSearch
    """Search for answers, with the teacher as executor."""
    student: Executor
    capped: Sequence[Executor]
    """Executors with the teacher's model and at most one search, each with another seed."""
    judge: Judge | None
    context: Callable[..., RunContext]
    """Function that returns the context of a new run. It takes an optional time limit in seconds.
    """
    wide: WideSearch | None = None
    """Search that fills tables, with the teacher as executor; needed only for tables."""

    async def roll_out(self, question: Question) -> Rollout:
        """Run the teacher on a question, then the student on the sub-queries of that run. Return
        the results.

        Raises `UpstreamError` or `OutOfTime` if an endpoint failed or the time ran out, and
        `StoreFailed` if the call cache cannot be written.
        """
        if question.table:
            return await self._table(question, question.table)
        context = self.context()
        trajectory = await self.search.run(question.text, context)
        check_failures(trajectory, 0, context)
        run = Rollout(question, trajectory, await self._verdict(question, trajectory))

        rollouts = list[SubQueryRollout]()
        for round_ in range(len(trajectory.rounds)):
            for place, execution in enumerate(trajectory.block(round_)):
                teacher = Sample(execution, trajectory.answer, run.verdict)
                student = await self._sample(self.student, run, round_, place)
                needed = run.verdict.correct and len(execution.searches) >= 2
                capped = [
                    await self._sample(executor, run, round_, place)
                    for executor in (self.capped if needed else ())
                ]
                rollouts.append(SubQueryRollout(teacher, student, tuple(capped)))
        return structs.replace(run, sub_queries=tuple(rollouts))

    async def _sample(
        self,
        executor: Executor,
        run: Rollout,
        round_: int,
        place: int,
    ) -> Sample:
        """Let `executor` work on a sub-query of the teacher's run. If its report differs from the
        teacher's, run the rest of the search again with the new report, to get a final answer.

        `run`: the teacher's run. `round_`, `place`: number of the sub-query's round, and number of
        the sub-query in that round, both from 0.
        """
        trajectory = run.trajectory
        assert isinstance(trajectory, Trajectory)
        block = list(trajectory.block(round_))
        first = sum(trajectory.rounds[:round_])
        context = self.context()
        execution = await executor.run(block[place].sub_query, first + place, context)
        check_execution(execution, first + place, context)
        if execution.report == block[place].report:
            return Sample(execution, trajectory.answer, run.verdict)

        block[place] = execution
        context = self.context()
        changed = self.search.with_reports(trajectory, round_, block)
        continued = await self.search.proceed(run.question.text, changed, context)
        check_failures(continued, first + len(block), context)
        verdict = await self._verdict(run.question, continued)
        return Sample(execution, continued.answer, verdict)

    async def _table(self, question: Question, table: TableRequest) -> Rollout:
        """Let the teacher fill a table, then let the student work on each of its sub-queries.

        At most `limits.width` executors work at a time. A failed execution becomes a sample like
        any other. An error is raised only if all executions fail, an endpoint is unavailable or the
        time runs out.
        """
        assert self.wide
        limits = self.wide.limits
        context = self.context(limits.timeout_s)
        filled = await fill(self.wide, table, context)
        failures = dict[int | None, UpstreamError]()
        reports = TableReports(question, filled)

        async def sample(number: int, executor: Executor | None = None) -> Sample:
            execution = filled.executions[number]
            if executor:
                context = structs.replace(
                    self.context(), reporting=TABLE_REPORTING, failures=failures
                )
                execution = await executor.run(execution.sub_query, number, context)
                check_some(filled.executions, failures)
            right = None
            if question.rows:
                right = reports.flaw(filled.asks[number], execution) is None
            return Sample(execution, execution.report.answer, Verdict(right))

        async def work(number: int) -> SubQueryRollout:
            teacher = await sample(number)
            student = await sample(number, self.student)
            wrong = teacher.verdict.exact_match is False
            needless = wrong or len(teacher.execution.searches) < 2
            capped = [await sample(number, one) for one in (() if needless else self.capped)]
            return SubQueryRollout(teacher, student, tuple(capped))

        rollouts = await in_flight(work, range(len(filled.asks)), limits.width)
        check_some((rollout.student.execution for rollout in rollouts), failures)
        return Rollout(question, filled, Verdict(reports.right), tuple(rollouts))

    async def _verdict(self, question: Question, trajectory: Trajectory) -> Verdict:
        """Return the verdict on the final answer of `trajectory`. A judge is not asked about an
        answer that is known to be wrong.
        """
        answer = trajectory.answer
        matched = exact_match(answer, question.golds) if question.golds else None
        if exact_match(answer, question.rejected) and not matched:
            return Verdict(exact_match=False)
        if self.judge is None or matched is False:
            return Verdict(matched)

        evidence = list[str]()
        if not question.golds:
            for execution in trajectory.executions:
                evidence += execution.report.evidence
        ledger = self.context().ledger
        accepted = await self.judge.accepts(
            question.text,
            question.golds,
            answer,
            ledger,
            evidence,
        )
        return Verdict(matched, accepted, judged=True)


async def roll_out_group(
    runtime: Runtime,
    size: int,
    temperature: float,
    topology: TopologyName,
    question: Question,
) -> Group:
    """Answer a question or fill a table `size` times, each time with another seed for all roles.
    Return the runs. Raises the same errors as `RolloutWorker.roll_out`.
    """
    runs = [
        await roll_out_run(runtime.sampled(seed, temperature), topology, question)
        for seed in range(size)
    ]
    return Group(question, tuple(runs))


async def roll_out_run(runtime: Runtime, topology: TopologyName, question: Question) -> Run:
    """Answer a question or fill a table once, and return the run. Raises the same errors as
    `RolloutWorker.roll_out`.

    The runtime's seed becomes a part of the run's id.
    """
    result: Trajectory | TableRun
    roles: Mapping[str, Role]
    if question.table:
        wide, roles = runtime.tables(topology)
        context = runtime.context(wide.limits.timeout_s)
        result = await fill(wide, question.table, context)
    else:
        answering = runtime.topology(topology)
        roles = answering.roles
        context = runtime.context()
        result = await answering.loop.run(question.text, context)
        check_failures(result, 0, context)
    return Run(
        f"{question.id}/{runtime.seed}",
        "table" if question.table else "answer",
        question.text,
        "finished",
        "",
        result,
        settings_of(roles),
        tuple(context.ledger.calls),
        0.0,
        0.0,
    )


def teacher_config(config: Config) -> RoleConfig:
    """Return the config of the teacher's role. Raises `BadConfig` if the config has no teacher, or
    if the teacher's prompt differs from the student's.
    """
    teacher = config.distillation.teacher
    student = config.roles.execution
    if teacher is None:
        raise BadConfig(
            "distillation.teacher: is not set; add a table [distillation.teacher] with model, "
            "prompt, and base_url or engine, like the table [roles.execution] of the student."
        )
    prompts = {Path(role.prompt).read_text("utf-8").strip() for role in (teacher, student)}
    if len(prompts) > 1:
        raise BadConfig(
            f"distillation.teacher.prompt: {teacher.prompt} differs from {student.prompt}; name "
            "the prompt of roles.execution, because the student must be trained with the prompt "
            "that it gets when it is served."
        )
    return teacher


def rollout_worker(runtime: Runtime, capped: int = 3) -> RolloutWorker:
    """Return a worker with the config's teacher and student. Their endpoints are asked to return
    token ids.

    `capped`: number of the teacher's tries with only one search. The first try has the config's
    temperature. All further tries have at least the temperature `_TEMPERATURE`, so that they
    differ. Raises `BadConfig` if the config has no teacher.
    """
    runtime = replace(runtime, asking={"execution": {"return_token_ids": True}})
    config = teacher_config(runtime.config)
    one_search = structs.replace(executor_limits(runtime.config.search), max_searches=1)
    warm = max(config.temperature, _TEMPERATURE)
    runtimes = [runtime, *(runtime.sampled(seed, warm) for seed in range(1, capped))]
    roles = [sampled.role("execution", config) for sampled in runtimes]
    teacher = runtime.executor(roles[0])
    return RolloutWorker(
        runtime.search(teacher),
        runtime.executor(),
        [runtime.executor(role, one_search) for role in roles],
        runtime.judge,
        runtime.context,
        runtime.tables("factorized", teacher)[0],
    )


async def roll_out_all(
    roll_out: Ask,
    questions: Sequence[Question],
    path: Path,
    concurrency: int,
    on_done: Callable[[], None],
    *,
    kind: type[Any] = Rollout,
) -> dict[str, str]:
    """Roll out the questions whose rollouts are not in the file `path` yet, `concurrency` at a
    time. Return the error message of each failed question; keys are question ids.

    Each rollout becomes a line of the file; in the end, the lines are in the order of the
    questions. `roll_out`: returns the rollout of a question, of the type `kind`. `on_done`: called
    once for every question that is rolled out or has failed, and at the beginning once for every
    question in the file.

    Raises the same errors as `failures`, and `StoreFailed` if the file cannot be written. Finished
    rollouts are kept in the file.
    """
    with closing(JsonlFile(path, kind, ADVICE)) as file:
        done = {rollout.question.id for rollout in file}
        for _ in done:
            on_done()

        async def append(question: Question) -> None:
            file.append(await roll_out(question))

        failed = await failures(
            append,
            [question for question in questions if question.id not in done],
            concurrency,
            on_done,
            name=lambda question: question.id,
            so_far=lambda count: f"{count} of {len(questions)} questions are rolled out",
            done=len(done),
        )
        rollouts = {rollout.question.id: rollout for rollout in file}

    # Order the lines, so that the file does not depend on which question was finished first
    ordered = [rollouts[question.id] for question in questions if question.id in rollouts]
    write_jsonl(path, ordered)
    return failed


def mean(values: Iterable[float]) -> float:
    """Return the mean of `values`; 0 if there are no values."""
    return fmean(list(values) or [0])


def search_counts(searches: Iterable[int]) -> dict[str, float]:
    """Return figures about the searches of executors (TBSS Table 4): the number of executions (an
    execution is an executor's work on one sub-query), the mean number of searches, and the numbers
    of executions with no search, one search, and more.

    `searches`: number of searches of each execution.
    """
    counts = list(searches)
    return {
        "invocations": len(counts),
        "average": mean(counts),
        "none": counts.count(0),
        "one": counts.count(1),
        "more": sum(count > 1 for count in counts),
    }


def figures_of(path: Path, models: Mapping[str, str]) -> dict[str, Any]:
    """Return the figures of all rollouts in the file `path`.

    `exact_match` and `correct` are shares of all questions; under `executors`, `exact_match` is a
    share of the executor's executions. `models`: names of the models of `teacher` and `student`.
    """
    rollouts = list(read_jsonl(path, Rollout, ADVICE))
    verdicts = [rollout.verdict for rollout in rollouts]
    sub_queries = list(chain.from_iterable(rollout.sub_queries for rollout in rollouts))
    executors = {}
    for name, model in models.items():
        samples: list[Sample] = [getattr(sub_query, name) for sub_query in sub_queries]
        executors[name] = {
            **search_counts(len(sample.execution.searches) for sample in samples),
            "model": model,
            "no_report": sum(sample.execution.failed for sample in samples),
            "exact_match": mean(sample.verdict.exact_match is True for sample in samples),
        }
    return {
        "executors": executors,
        "questions": len(rollouts),
        "exact_match": mean(verdict.exact_match is True for verdict in verdicts),
        "correct": mean(verdict.correct for verdict in verdicts),
        "unread": sum(verdict.judged and verdict.accepted is None for verdict in verdicts),
        "no_search": sum(not rollout.sub_queries for rollout in rollouts),
    }


def run(options: Options) -> int:
    """Run the step and return the exit status."""
    questions, selection = select_questions(options.questions, options.exclude, options.limit)
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
        settings = options.settings(
            "limit",
            "group",
            "temperature",
            "executor",
            "delegator",
            "topology",
        )
        settings |= config_settings(load_config(options.config))
        step = Step.begin(options.out, "rollout", inputs, settings)
    return roll_out_step(step, options, questions, selection)


def begin_step(
    name: str,
    options: RolloutOptions,
    inputs: Mapping[str, Path],
    settings: Mapping[str, object],
) -> Step:
    """Begin or resume the step `name`, which is `rollout` or `mine`. Raises `BadConfig` if the
    config has no teacher, or if the step was begun with other inputs or settings.
    """
    config = load_config(options.config)
    extra_roles = {"teacher": teacher_config(config), "judge": config.distillation.judge}
    all_settings = {
        **options.settings("limit", "capped"),
        **settings,
        **config_settings(config, extra_roles),
    }
    return Step.begin(options.out, name, inputs, all_settings)


def roll_out_step(
    step: Step,
    options: RolloutOptions,
    questions: Sequence[Question],
    selection: dict[str, int],
) -> int:
    """Roll out the questions, unless the step is already finished. Print the figures and return the
    exit status.

    If a question failed, the step stays unfinished and the status is 1, unless
    `options.leave_failed` is set. `selection`: counts of the questions that were left out, for the
    figures.
    """
    if (manifest := step.finished) is not None:
        complain(
            f"{step.folder}: was finished at {manifest.finished_at}; name a new folder to repeat it"
        )
        show(manifest.figures, as_json=options.json)
        return 0
    if not questions:
        raise BadConfig(
            f"{step.folder}: no question is left to roll out (questions: "
            f"{', '.join(f'{n} {why}' for why, n in selection.items())}); give more questions."
        )
    if isinstance(options, Options) and options.group:
        work = _group(options, options.group, questions)
    else:
        work = _teach(options, questions)
    figures = {"selection": selection, **asyncio.run(work)}
    show(figures, as_json=options.json)
    if figures["failed"] and not options.leave_failed:
        complain(
            "Some questions failed. Run the same command to try them again, or add --leave-failed "
            "to finish the step without them."
        )
        return 1
    files = [name for name in (ROLLOUTS, TRAJECTORIES) if (step.folder / name).exists()]
    step.finish(figures, files)
    return 0


async def _teach(options: RolloutOptions, questions: Sequence[Question]) -> dict[str, Any]:
    config = load_config(options.config)
    async with open_runtime(config, complain, cache=options.out / CALLS, teacher=True) as runtime:
        figures = await _rolled_out(
            lambda runtime: rollout_worker(runtime, options.capped).roll_out,
            runtime,
            questions,
            options,
        )
    models = {"teacher": teacher_config(config).model, "student": config.roles.execution.model}
    return {**figures, **figures_of(options.out / ROLLOUTS, models)}


async def _group(options: Options, size: int, questions: Sequence[Question]) -> dict[str, Any]:
    executors = named_adapters([options.executor])
    delegators = named_adapters([options.delegator])

    def work(runtime: Runtime) -> Ask:
        extra = {"return_token_ids": True, "logprobs": True}
        asking = dict.fromkeys(runtime.config.roles.by_name, extra)
        asked = replace(runtime.with_versions(*executors, *delegators), asking=asking)
        return partial(roll_out_group, asked, size, options.temperature, options.topology)

    async with open_runtime(
        load_config(options.config),
        complain,
        cache=options.out / CALLS,
        adapters=executors,
        delegators=delegators,
    ) as runtime:
        figures = await _rolled_out(work, runtime, questions, options)

    groups = list(read_jsonl(options.out / ROLLOUTS, Group, ADVICE))
    write_json_lines(options.out / TRAJECTORIES, _trajectories(groups))
    rewards = [group.rewards for group in groups]
    right = Counter(sum(reward.exact_match is True for reward in group) for group in rewards)
    means = {}
    for name in Reward.__struct_fields__:
        values = [getattr(reward, name) for reward in chain.from_iterable(rewards)]
        means[name] = mean(value for value in values if value is not None)
    by_right = {f"{count} right": right[count] for count in sorted(right)}
    return {**figures, **means, "groups": by_right}


def _trajectories(groups: Sequence[Group]) -> Iterator[object]:
    for group in groups:
        for run in group.runs:
            score = group.item_f1(run.result)
            yield from agent_trajectories(run, group.question.golds, score)


async def _rolled_out(
    work: Work,
    runtime: Runtime,
    questions: Sequence[Question],
    options: RolloutOptions,
) -> dict[str, Any]:
    """Roll out the questions with a progress bar. Return the error messages of failed questions
    (`failed`), and counts of model calls and their tokens (`spent`). `work`: makes the function
    that rolls out a question, see `spread`.
    """
    with progress_bar() as bar:
        task = bar.add_task("rolling out", total=len(questions))
        failed = await roll_out_all(
            spread(runtime, work, options.ray),
            questions,
            options.out / ROLLOUTS,
            options.concurrency,
            lambda: bar.advance(task),
            kind=Group if isinstance(options, Options) and options.group else Rollout,
        )
    assert runtime.cache is not None
    return {"failed": failed, "spent": msgspec.to_builtins(runtime.cache.spent)}
