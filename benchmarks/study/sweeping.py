"""A sweep at work: every cell answers every question, as often as it was left to do."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.asker import Asker
from benchmarks.study.cell import Cell, Prepared
from benchmarks.study.engine_groups import engine_groups
from benchmarks.study.plan import Plan
from benchmarks.study.pricing import prices_in
from benchmarks.study.provenance import provenance
from benchmarks.study.results import Results
from executor_sft.call_cache import CallCache
from executor_sft.runtime import Runtime, open_runtime
from executor_sft.step import Step
from router.errors import BadConfig, OutOfTime, RolegateError, UpstreamError, UpstreamUnavailable
from router.search.answerer import Judge
from serving.config.config import RoleConfig
from serving.engines.engine import Tell

CELLS, CALLS, JUDGEMENTS = "cells", "calls.jsonl", "judgements.jsonl"
_HOPELESS = 5
"""So many questions that fail before any is done are no accident."""
_AGAIN = "What was paid for is kept; start the same command again to go on."


@dataclass(frozen=True, slots=True)
class Task:
    """One rollout of one question."""

    question: BenchmarkQuestion
    rollout: int


@dataclass(frozen=True, slots=True)
class Sweeper:
    """Runs what is left of a plan, in a folder."""

    plan: Plan
    cells: Sequence[Prepared]
    questions: Sequence[BenchmarkQuestion]
    folder: Path
    results: Results
    tell: Tell
    advanced: Callable[[], None]
    """Called whenever a rollout is done, or has failed."""
    settings: Mapping[str, Mapping[str, object]]
    """By cell, what makes its calls what they are."""

    def left(self, cell: Prepared) -> list[Task]:
        """What this cell has still to do."""
        name, done = cell.cell.name, self.results.done
        tasks = (Task(question, rollout) for rollout in range(self.plan.rollouts) for question in self.questions)
        return [task for task in tasks if (name, task.question.id, task.rollout) not in done]

    def pilot(self, cell: Prepared) -> list[Task]:
        """Some of it, to estimate the whole by; none where the cell has done something already. More than one only
        while they are no more than a quarter of the work.
        """
        left = self.left(cell)
        if len(left) < len(self.questions) * self.plan.rollouts:
            return []
        count = min(self.plan.pilot, max(1, len(left) // 4), len(self.questions))
        return [Task(one, 0) for one in random.Random(self.plan.seed).sample(list(self.questions), count)]

    async def run(self, tasks_of: Callable[[Prepared], list[Task]]) -> dict[str, str]:
        """Do these tasks of all cells; why rollouts failed, by cell, question and rollout: their rows are missing, and
        the same command tries them again.

        Raises `BadConfig` and `BadIndex`, `UpstreamUnavailable` once an endpoint is gone, `UpstreamError` or
        `OutOfTime` where every question fails, and `StoreFailed`.
        """
        failed: dict[str, str] = {}
        for group in engine_groups(self.cells, self.plan.engines_at_once):
            tasks = [(cell, tasks_of(cell)) for cell in group]
            working = [(cell, its) for cell, its in tasks if its]
            if working:
                await self._group(working, failed)
        return failed

    async def _group(self, working: Sequence[tuple[Prepared, list[Task]]], failed: dict[str, str]) -> None:
        # Adapters are loaded into the executor's engine, and only cells that use one are sure to have that.
        first = next((cell for cell, _ in working if cell.adapter), working[0][0])
        beside: dict[str, RoleConfig] = {
            f"{cell.cell.name}: roles.{name}": role for cell, _ in working for name, role in cell.roles.items()
        }
        adapters = {cell.version: cell.adapter for cell, _ in working if cell.version and cell.adapter}
        async with open_runtime(first.config, self.tell, adapters=adapters, extra_roles=beside) as bench:
            await bench.retriever.search(["warm up"], 1)  # only then does a retriever elsewhere tell its index
            with CallCache.open(self.folder / JUDGEMENTS) as judgements:
                judge = replace(bench, cache=judgements).judge
                for cell, tasks in working:
                    self.tell(f"{cell.cell.name}: {len(tasks):,} rollouts")
                    folder = begin_cell(self.folder, cell.cell, self.settings[cell.cell.name])
                    with CallCache.open(folder / CALLS) as memory:
                        own = replace(bench, config=cell.config, cache=memory)
                        asker = await self._asker(cell, own, judge, judgements)
                        await self._cell(asker, tasks, failed)

    async def _asker(self, cell: Prepared, bench: Runtime, judge: Judge | None, judgements: CallCache) -> Asker:
        made_by = provenance(cell, bench.retriever.index_id, self.plan.temperature, self.plan.seed)
        self.results.check(cell.cell.name, made_by)
        prices = await asyncio.to_thread(prices_in, cell)
        return Asker(
            cell,
            bench,
            judge,
            prices,
            made_by,
            self.plan.temperature,
            self.plan.attribution,
            judgements,
            self.results.booked,
        )

    async def _cell(self, asker: Asker, tasks: Sequence[Task], failed: dict[str, str]) -> None:
        gate, done = asyncio.Semaphore(self.plan.concurrency), 0
        name, failures = asker.prepared.cell.name, 0

        async def one(task: Task) -> None:
            nonlocal done, failures
            async with gate:
                try:
                    row = await asker.ask(task.question, task.rollout, self.plan.seed + task.rollout)
                except (UpstreamError, OutOfTime) as error:
                    failures += 1
                    failed[f"{name}, {task.question.id}, rollout {task.rollout}"] = str(error)
                    hopeless = not done and failures >= min(_HOPELESS, len(tasks))
                    if hopeless or isinstance(error, UpstreamUnavailable):
                        raise
                else:
                    self.results.append(row)
                    done += 1
                self.advanced()

        try:
            async with asyncio.TaskGroup() as group:
                for task in tasks:
                    group.create_task(one(task))
        except ExceptionGroup as group_failed:
            raise _stopped(group_failed.exceptions[0], name, done, len(tasks)) from None


def begin_cell(folder: Path, cell: Cell, settings: Mapping[str, object]) -> Path:
    """The cell's folder in that of the sweep. Raises `BadConfig` where the cell was something else when it began."""
    try:
        return Step.begin(folder / CELLS / cell.folder, cell.name, {}, settings).folder
    except BadConfig as error:
        raise BadConfig(f"{cell.name} is not what it was, so its rows would not go together: {error}") from None


def _stopped(error: Exception, cell: str, done: int, of: int) -> Exception:
    """The same error; one that is raised on purpose says how far it came."""
    if isinstance(error, RolegateError):
        error.args = (f"{error.args[0].rstrip('.')}. {cell}: {done} of {of} rollouts are done. {_AGAIN}",)
    return error


def settings_of(plan: Plan) -> dict[str, object]:
    """What of a plan makes its results what they are, but for its models. Rollouts, questions and pairs may be added
    later.
    """
    return {"seed": plan.seed, "temperature": plan.temperature, "attribution": plan.attribution}
