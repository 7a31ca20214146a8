"""Run a sweep: each combination of backbone (the delegator's model), executor and topology in the
plan answers the same questions (TBSS 4.1).

A rollout is one answer to one question. The same command resumes an interrupted sweep: it repeats
no finished rollout, and without Ray, it pays for no completed model call again. If you add
rollouts, questions or combinations to the plan, it runs only what is missing. Begin with few
questions, to see what an answer costs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from benchmarks import harness
from benchmarks.baselines.single_agent import NoRetrieval, SingleAgent, limits_alone
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.harness import Check
from benchmarks.study.cells import SweepCell, cells_of, engine_groups
from benchmarks.study.plan import Plan, questions_of, read_plan
from benchmarks.study.results import ADVICE, PLAN, RESULTS, KeptPlan, QuestionResult
from executor_sft.asking import failures
from executor_sft.call_cache import CallCache
from executor_sft.jsonl import JsonlFile
from executor_sft.rollout import check_failures
from executor_sft.runtime import Runtime, open_runtime, spread
from executor_sft.step import Step, write_json
from router.errors import BadConfig
from router.frozen import Frozen
from router.protocol import exact_match
from router.protocol.scoring import token_f1
from router.search.answerer import Judge
from router.search.loop import Loop
from router.trace import Run, Trajectory
from router.trace.attribution import Loss, attribute
from router.trace.call import totals
from router.trace.values import by_executors
from serving.engines.engine import Log
from serving.terminal import complain, progress_bar

CELLS = "cells"
CALLS = "calls.jsonl"
JUDGEMENTS = "judgements.jsonl"
_LOOKED_AT = 20
"""Number of passages per query when the corpus is searched for the right answers. This search helps
to find the role that caused a wrong answer.
"""
Task = tuple[BenchmarkQuestion, int]
"""A rollout to run: the question, and the number of the rollout, from 0."""


class Options(harness.Options):
    """Options of the sweep."""

    plan: Path = msgspec.field(name="config")
    """TOML file with the plan of the sweep: questions, models, their combinations and the number of
    answers. docs/study.md has an example
    """
    out: Path
    """folder for the results; an unfinished sweep in this folder is resumed"""
    ray: str | None = None
    """work on this Ray cluster: local (this machine's cores), or HOST:PORT of the cluster's head
    (default: work in this process)
    """


class Figures(Frozen):
    """The check that no rollout failed. If it is not met, the same command tries the failed
    rollouts again.
    """

    checks: list[Check]


async def measure(options: Options) -> Figures:
    """Run all rollouts of the plan that are not finished yet. Raises `BadConfig` or `BadCorpus` if
    the plan is invalid, and the errors of `Sweep.run`.
    """
    plan = read_plan(options.plan)
    cells = cells_of(plan)
    step = begin(options.out, plan, cells)
    with (
        closing(JsonlFile(step.folder / RESULTS, QuestionResult, ADVICE)) as rows,
        progress_bar() as bar,
    ):
        questions = questions_of(plan)
        kept = KeptPlan(
            plan.title,
            tuple(question.id for question in questions),
            plan.rollouts,
            tuple(cell.name for cell in cells),
            {name: model.parameters for name, model in plan.models.items()},
        )
        write_json(step.folder / PLAN, kept)
        done = {(row.cell, row.question_id, row.rollout) for row in rows}
        tasks = {
            cell.name: [
                (question, rollout)
                for rollout in range(plan.rollouts)
                for question in questions
                if (cell.name, question.id, rollout) not in done
            ]
            for cell in cells
        }
        task = bar.add_task("sweep", total=sum(map(len, tasks.values())))
        sweep = Sweep(
            plan,
            step.folder,
            rows,
            bar.console.print,
            partial(bar.advance, task),
            options.ray,
        )
        left = [cell for cell in cells if tasks[cell.name]]
        if left:
            step.reopen()
        failed = dict[str, str]()
        for group in engine_groups(left, plan.engines_at_once):
            failed |= await sweep.run(group, tasks)

    if not failed and step.finished is None:
        step.finish({"rollouts": len(cells) * len(questions) * plan.rollouts}, [RESULTS])
    for rollout, why in failed.items():
        complain(f"{rollout}: {why}")
    return Figures([Check("every rollout is done", not failed, f"{len(failed)} failed")])


def begin(folder: Path, plan: Plan, cells: Sequence[SweepCell]) -> Step:
    """Begin a sweep in `folder`, or resume the sweep in it. The plan may have more rollouts,
    questions or pairs than before. Raises `BadConfig` if the folder contains another sweep, or if a
    cell has changed.
    """
    inputs = {f"questions {number}": Path(path) for number, path in enumerate(plan.questions, 1)}
    step = Step.begin(folder, "sweep", inputs, {"seed": plan.seed, "temperature": plan.temperature})
    for cell in cells:
        if (folder / CELLS / cell.folder).exists():
            begin_cell(folder, cell)
    return step


def begin_cell(folder: Path, cell: SweepCell) -> Path:
    """Begin or resume a cell of the sweep in `folder`, and return the cell's folder. Raises
    `BadConfig` if the cell has changed since it was begun.
    """
    try:
        return Step.begin(folder / CELLS / cell.folder, cell.name, {}, cell.settings).folder
    except BadConfig as error:
        raise BadConfig(
            f"the settings of {cell.name} have changed, so its new results would not fit the old "
            f"ones: {error}"
        ) from None


class Sweep(Frozen):
    """Runs the remaining rollouts of a plan, and appends their results to a file."""

    plan: Plan
    folder: Path
    rows: JsonlFile[QuestionResult]
    log: Log
    on_rollout: Callable[[], None]
    """Called after each rollout, also if it failed."""
    ray: str | None
    """Ray cluster to work on; None to work in this process."""

    async def run(
        self, cells: Sequence[SweepCell], tasks: Mapping[str, list[Task]]
    ) -> dict[str, str]:
        """Start the engines of a group of cells, and run the cells' rollouts. Return the error
        messages of failed rollouts; the keys name cell, question and rollout.

        `tasks`: rollouts to run, by cell. Raises `BadConfig`, `BadIndex` and `StoreFailed`;
        `UpstreamUnavailable` if an endpoint is unavailable; and `UpstreamError` or `OutOfTime` if
        the first rollouts of a cell all fail.
        """
        # The runtime loads adapters into the executor's engine, so it needs the config of a cell
        # with an adapter, if there is one
        first = next((cell for cell in cells if cell.adapter), cells[0])
        roles = {
            f"{cell.name}: roles.{name}": role
            for cell in cells
            for name, role in cell.roles.items()
        }
        adapters = {cell.version: cell.adapter for cell in cells if cell.version}
        failed = dict[str, str]()
        async with open_runtime(
            first.config, self.log, adapters=adapters, extra_roles=roles
        ) as bench:
            # A remote retriever learns the id of its index with the first search
            await bench.retriever.search(["warm up"], 1)
            self.check_index(bench.retriever.index_id)
            with CallCache.open(self.folder / JUDGEMENTS) as judgements:
                # Workers on Ray have their own judge
                judge = None if self.ray else replace(bench, cache=judgements).judge
                for cell in cells:
                    self.log(f"{cell.name}: {len(tasks[cell.name]):,} rollouts")
                    with CallCache.open(begin_cell(self.folder, cell) / CALLS) as calls:
                        runtime = replace(bench, config=cell.config, cache=calls)
                        failed |= await self._run_cell(cell, runtime, judge, tasks[cell.name])
        return failed

    def check_index(self, index: str | None) -> None:
        """Raise `BadConfig` if earlier results were made with another index. `index`: id of the
        index that is used now.
        """
        if others := {row.index for row in self.rows} - {index}:
            raise BadConfig(
                f"{self.rows.path}: the results come from the index {others.pop()!r}, but the "
                f"index is now {index!r}; use the old index, or name a new folder (--out)."
            )

    async def _run_cell(
        self,
        cell: SweepCell,
        runtime: Runtime,
        judge: Judge | None,
        tasks: Sequence[Task],
    ) -> dict[str, str]:
        """Run the rollouts of one cell. Return the error messages of failed rollouts, as `run`
        does.
        """
        plan = self.plan  # without the open file of results, which cannot be pickled
        on_task = spread(
            runtime, lambda runtime: partial(ask, cell, plan, judge, runtime), self.ray
        )

        async def roll_out(task: Task) -> None:
            self.rows.append(await on_task(task))

        return await failures(
            roll_out,
            tasks,
            self.plan.concurrency,
            self.on_rollout,
            name=lambda task: f"{cell.name}, {task[0].id}, rollout {task[1]}",
            so_far=lambda count: f"{cell.name}: {count} of {len(tasks)} rollouts are done",
        )


async def ask(
    cell: SweepCell, plan: Plan, judge: Judge | None, runtime: Runtime, task: Task
) -> QuestionResult:
    """Let a cell answer a question once, and return the result with its scores.

    `judge`: judge of the answer; None for the runtime's judge. `runtime`: runtime with the cell's
    config. Raises `UpstreamError` if an endpoint fails, and `OutOfTime` if the run takes too long:
    then the model gave no answer that could be scored. Raises `StoreFailed` if the call cache
    cannot be written.
    """
    question, rollout = task
    judge = judge or runtime.judge
    runtime = runtime.sampled(plan.seed + rollout, plan.temperature)
    context = runtime.context()
    begun = time.monotonic()
    result = await _loop(cell, runtime).run(question.question, context)
    latency_s = time.monotonic() - begun
    check_failures(result, 0, context)

    accepted = None
    if judge:
        accepted = await judge.accepts(
            question.question, question.answers, result.answer, runtime.context().ledger
        )
    matched = exact_match(result.answer, question.answers)
    right = matched if accepted is None else accepted
    calls = context.ledger.calls
    cached = runtime.cache and runtime.cache.hits(calls)
    return QuestionResult(
        cell=cell.name,
        topology=cell.topology,
        backbone=cell.backbone,
        executor=cell.executor or "",
        dataset=question.dataset,
        question_id=question.id,
        question=question.question,
        golds=question.answers,
        rollout=rollout,
        answer=result.answer,
        outcome=result.outcome,
        exact_match=matched,
        f1=token_f1(result.answer, question.answers),
        judged=judge is not None,
        accepted=accepted,
        searches=tuple(len(work.searches) for work in by_executors(result.executions)),
        spent=tuple(totals(calls)),
        latency_s=None if cached else round(latency_s, 4),
        lost_by=None if right or not cell.executor else await _lost_by(runtime, question, result),
        index=runtime.retriever.index_id,
    )


def _loop(cell: SweepCell, runtime: Runtime) -> Loop:
    """Return the search with which the cell answers questions."""
    search = cell.config.search
    match cell.topology:
        case "factorized" | "host" as topology:
            execution = runtime.role("execution", cell.roles["execution"], version=cell.version)
            return runtime.topology(topology, runtime.executor(execution)).loop
        case "single_agent":
            return SingleAgent(
                runtime.role("delegation", cell.roles["delegation"]),
                runtime.retriever,
                limits_alone(cell.config, search.max_rounds, search.max_sub_queries),
                search.require_evidence,
            )
    return NoRetrieval(runtime.role("delegation", cell.roles["delegation"]))


async def _lost_by(
    runtime: Runtime, question: BenchmarkQuestion, result: Trajectory
) -> Loss | None:
    """Return the role that caused a wrong answer; None if the run does not show it.

    The corpus is searched for the right answers, to find out whether an executor could have found
    them.
    """
    run = Run(
        "",
        "answer",
        question.question,
        "finished",
        "",
        result,
        {},
        (),
        0.0,
        0.0,
    )
    queries = [*question.answers, *(f"{run.request} {gold}" for gold in question.answers)]
    found = await runtime.retriever.search(queries, _LOOKED_AT)
    attribution = attribute(run, question.answers, [passage for some in found for passage in some])
    return attribution.lost_by if attribution else None
