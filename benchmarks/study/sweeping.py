"""A sweep at work: every cell answers every question, as often as it was left to do."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.asker import Asker
from benchmarks.study.cell import Prepared
from benchmarks.study.engine_groups import engine_groups
from benchmarks.study.plan import Plan
from benchmarks.study.pricing import prices_in
from benchmarks.study.provenance import provenance
from benchmarks.study.results import Results
from executor_sft.memory import Memory
from executor_sft.workbench import Workbench, workbench
from router.errors import OutOfTime, RolegateError, UpstreamError, UpstreamUnavailable
from router.judge import Judge
from serving.config import RoleConfig
from serving.engine import Tell

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

    def left(self, cell: Prepared, questions: Sequence[BenchmarkQuestion], rollouts: int) -> list[Task]:
        """What this cell has still to do of these."""
        name, done = cell.cell.name, self.results.done
        tasks = (Task(question, rollout) for rollout in range(rollouts) for question in questions)
        return [task for task in tasks if (name, task.question.id, task.rollout) not in done]

    def pilot_questions(self) -> list[BenchmarkQuestion]:
        """Some of all, the same ones every time; more than one only while they are no more than a tenth of the work."""
        count = min(self.plan.pilot, max(1, len(self.questions) * self.plan.rollouts // 10), len(self.questions))
        return random.Random(self.plan.seed).sample(list(self.questions), count)

    async def run(self, questions: Sequence[BenchmarkQuestion], rollouts: int) -> dict[str, str]:
        """Do what is left of these questions with all cells; why rollouts failed, by cell, question and rollout: their
        rows are missing, and the same command tries them again.

        Raises `BadConfig` and `BadIndex`, `UpstreamUnavailable` once an endpoint is gone, `UpstreamError` or
        `OutOfTime` where every question fails, and `StoreFailed`.
        """
        failed: dict[str, str] = {}
        for group in engine_groups(self.cells, self.plan.engines_at_once):
            tasks = [(cell, self.left(cell, questions, rollouts)) for cell in group]
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
        async with workbench(first.config, self.tell, adapters=adapters, beside=beside) as bench:
            await bench.retriever.search(["warm up"], 1)  # only then does a retriever elsewhere tell its index
            with self._memory(JUDGEMENTS) as judgements:
                judge = replace(bench, memory=judgements).judge
                for cell, tasks in working:
                    self.tell(f"{cell.cell.name}: {len(tasks):,} rollouts")
                    with self._memory(f"{CELLS}/{cell.cell.folder}/{CALLS}") as memory:
                        own = replace(bench, config=cell.config, memory=memory)
                        asker = await self._asker(cell, own, judge, judgements)
                        await self._cell(asker, tasks, failed)

    @contextmanager
    def _memory(self, name: str) -> Iterator[Memory]:
        with Memory.open(self.folder / name) as memory:
            yield memory

    async def _asker(self, cell: Prepared, bench: Workbench, judge: Judge | None, judgements: Memory) -> Asker:
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


def _stopped(error: Exception, cell: str, done: int, of: int) -> Exception:
    """The same error; one that is raised on purpose says how far it came."""
    if isinstance(error, RolegateError):
        error.args = (f"{error.args[0].rstrip('.')}. {cell}: {done} of {of} rollouts are done. {_AGAIN}",)
    return error


def settings_of(plan: Plan) -> dict[str, object]:
    """What of a plan makes its results what they are, but for its models. Rollouts, questions and pairs may be added
    later.
    """
    names = "seed temperature attribution".split()
    return {name: msgspec.to_builtins(getattr(plan, name)) for name in names}
