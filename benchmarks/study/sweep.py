"""Sweep over a grid of backbones, executors and topologies on the same questions (TBSS 4.1).

After a kill or an interruption the same command resumes: no rollout runs twice, and no completed
call is paid for again. A sweep may grow: with more rollouts, a higher limit or more pairs in the
plan, it runs what is missing. So a low limit shows what an answer costs before many are asked for.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.baselines.single_agent import NoRetrieval, SingleAgent, limits_alone
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.harness import Check
from benchmarks.study.cells import SweepCell, cells_of, engine_groups
from benchmarks.study.plan import Plan, questions_of, read_plan
from benchmarks.study.results import ADVICE, RESULTS, QuestionResult, write_plan
from executor_sft.asking import failures
from executor_sft.call_cache import CallCache
from executor_sft.jsonl import JsonlFile
from executor_sft.rollout import check_failures
from executor_sft.runtime import Runtime, open_runtime
from executor_sft.step import Step
from router.errors import BadConfig
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
"""Passages in which a right answer is looked for, by query."""
Task = tuple[BenchmarkQuestion, int]
"""Question and number of the rollout."""


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the sweep."""

    plan: Annotated[Path, Meta(description="plan of the sweep (TOML)")] = msgspec.field(
        name="config"
    )
    out: Annotated[Path, Meta(description="folder of the results")]


class Figures(msgspec.Struct, frozen=True):
    """Check that no rollout failed; the same command retries failed ones."""

    checks: list[Check]


async def measure(options: Options) -> Figures:
    """Run the sweep. Raises `RolegateError`."""
    plan = read_plan(options.plan)
    cells = cells_of(plan)
    step = begin(options.out, plan, cells)
    with (
        closing(JsonlFile(step.folder / RESULTS, QuestionResult, ADVICE)) as rows,
        progress_bar() as bar,
    ):
        questions = questions_of(plan)
        write_plan(step.folder, plan, [cell.name for cell in cells], questions)
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
        )
        left = [cell for cell in cells if tasks[cell.name]]
        if left:
            step.reopen()
        failed: dict[str, str] = {}
        for group in engine_groups(left, plan.engines_at_once):
            failed |= await sweep.run(group, tasks)

    if not failed and step.finished is None:
        step.finish({"rollouts": len(cells) * len(questions) * plan.rollouts}, [RESULTS])
    for rollout, why in failed.items():
        complain(f"{rollout}: {why}")
    return Figures([Check("every rollout is done", not failed, f"{len(failed)} failed")])


def begin(folder: Path, plan: Plan, cells: Sequence[SweepCell]) -> Step:
    """Start or resume a sweep, to which rollouts, questions and pairs may have been added. Raises
    `BadConfig` if the folder holds another sweep, or if a cell has changed.
    """
    inputs = {f"questions {number}": Path(path) for number, path in enumerate(plan.questions, 1)}
    step = Step.begin(folder, "sweep", inputs, {"seed": plan.seed, "temperature": plan.temperature})
    for cell in cells:
        if (folder / CELLS / cell.folder).exists():
            begin_cell(folder, cell)
    return step


def begin_cell(folder: Path, cell: SweepCell) -> Path:
    """Start or resume a cell and return its folder. Raises `BadConfig` if the cell has changed
    since it was started.
    """
    try:
        return Step.begin(folder / CELLS / cell.folder, cell.name, {}, cell.settings).folder
    except BadConfig as error:
        raise BadConfig(
            f"{cell.name} has changed, so its rows cannot be combined: {error}"
        ) from None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs the remaining rollouts of a plan, with results in a folder."""

    plan: Plan
    folder: Path
    rows: JsonlFile[QuestionResult]
    log: Log
    on_rollout: Callable[[], None]
    """Called after each rollout, also a failed one."""

    async def run(
        self, cells: Sequence[SweepCell], tasks: Mapping[str, list[Task]]
    ) -> dict[str, str]:
        """Run tasks by cell, of cells whose engines run together. Return the errors of failed
        rollouts by cell, question and rollout; the same command retries them.

        Raises `BadConfig` and `BadIndex`, `UpstreamUnavailable` if an endpoint is gone,
        `UpstreamError` or `OutOfTime` if every question fails, and `StoreFailed`.
        """
        # Adapters are loaded into the executor's engine, which only cells with adapters surely have
        first = next((cell for cell in cells if cell.adapter), cells[0])
        roles = {
            f"{cell.name}: roles.{name}": role
            for cell in cells
            for name, role in cell.roles.items()
        }
        adapters = {cell.version: cell.adapter for cell in cells if cell.version}
        failed: dict[str, str] = {}
        async with open_runtime(
            first.config, self.log, adapters=adapters, extra_roles=roles
        ) as bench:
            # A remote retriever reports its index only after a search
            await bench.retriever.search(["warm up"], 1)
            self.check_index(bench.retriever.index_id)
            with CallCache.open(self.folder / JUDGEMENTS) as judgements:
                judge = replace(bench, cache=judgements).judge
                for cell in cells:
                    self.log(f"{cell.name}: {len(tasks[cell.name]):,} rollouts")
                    with CallCache.open(begin_cell(self.folder, cell) / CALLS) as calls:
                        runtime = replace(bench, config=cell.config, cache=calls)
                        failed |= await self._run_cell(cell, runtime, judge, tasks[cell.name])
        return failed

    def check_index(self, index: str | None) -> None:
        """Raise `BadConfig` if rows were made with another index."""
        if others := {row.index for row in self.rows} - {index}:
            raise BadConfig(
                f"{self.rows.path}: its rows come from index {others.pop()!r}, but the index is "
                f"now {index!r}; use the former index, or start in a new folder."
            )

    async def _run_cell(
        self,
        cell: SweepCell,
        runtime: Runtime,
        judge: Judge | None,
        tasks: Sequence[Task],
    ) -> dict[str, str]:
        async def roll_out(task: Task) -> None:
            question, rollout = task
            seeded = runtime.sampled(self.plan.seed + rollout, self.plan.temperature)
            self.rows.append(
                await ask(
                    cell,
                    seeded,
                    judge,
                    question,
                    rollout,
                )
            )

        return await failures(
            roll_out,
            tasks,
            self.plan.concurrency,
            self.on_rollout,
            name=lambda task: f"{cell.name}, {task[0].id}, rollout {task[1]}",
            so_far=lambda count: f"{cell.name}: {count} of {len(tasks)} rollouts are done",
        )


async def ask(
    cell: SweepCell,
    runtime: Runtime,
    judge: Judge | None,
    question: BenchmarkQuestion,
    rollout: int,
) -> QuestionResult:
    """Ask once and judge the answer. `runtime`: with the cell's config. Raises `UpstreamError`,
    `OutOfTime` and `StoreFailed`, because a failing endpoint is no fault of the model.
    """
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
    """Return the cell's way to answer."""
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
    """Return the role that lost a wrong answer; None if the run does not show it."""
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
