"""Sweep over a grid of backbones, executors and topologies on the same questions (TBSS 4.1).

First a pilot: each pair answers a few questions, from which the total cost is estimated; these
answers count. After a kill or an interruption the same command resumes: no rollout runs twice, and
no completed call is paid for again. A sweep may grow: with more rollouts, a higher limit or more
pairs in the plan, it runs what is missing.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from math import isnan, nan
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.harness import Check
from benchmarks.study.cells import SweepCell, cells_of, engine_groups, weights_of
from benchmarks.study.plan import Plan, questions_of, read_plan
from benchmarks.study.results import RESULTS, QuestionResult, RowFile, read_rows, write_plan
from benchmarks.study.rollout import Asker
from benchmarks.study.spending import merged, prices_in
from executor_sft.asking import failures
from executor_sft.call_cache import CallCache
from executor_sft.command import agreed, show
from executor_sft.runtime import open_runtime
from executor_sft.step import Step
from router.errors import BadConfig, BadRequest
from router.ledger.usage import dollars
from serving.config.config import RoleConfig
from serving.engines.engine import Log
from serving.terminal import complain, progress_bar

_ZERO = 0.0, 0.0, 0.0
CELLS = "cells"
CALLS = "calls.jsonl"
JUDGEMENTS = "judgements.jsonl"
Settings = Mapping[str, Mapping[str, object]]
"""Everything that the calls of a cell depend on, by cell."""
Task = tuple[BenchmarkQuestion, int]
"""Question and number of the rollout."""


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the sweep."""

    plan: Annotated[Path, Meta(description="plan of the sweep (TOML)")] = msgspec.field(
        name="config"
    )
    out: Annotated[Path, Meta(description="folder of the results")]
    yes: Annotated[bool, Meta(description="do not ask to confirm the cost")] = False


class Figures(msgspec.Struct, frozen=True):
    """Check that no rollout failed; the same command retries failed ones."""

    checks: list[Check]


def measure(options: Options) -> Figures:
    """Run the sweep. Raises `RolegateError`."""
    plan = read_plan(options.plan)
    cells = cells_of(plan)
    step, settings = begin(options.out, plan, cells)
    failed = asyncio.run(_swept(plan, cells, step, settings, yes=options.yes))
    for rollout, why in failed.items():
        complain(f"{rollout}: {why}")
    return Figures([Check("every rollout is done", not failed, f"{len(failed)} failed")])


async def _swept(
    plan: Plan,
    cells: Sequence[SweepCell],
    step: Step,
    settings: Settings,
    *,
    yes: bool,
) -> dict[str, str]:
    """Run pilot and sweep; return the errors of failed rollouts. Raises `BadRequest` if the cost is
    not confirmed.
    """
    questions = questions_of(plan)
    with RowFile.open(step.folder) as rows, progress_bar() as bar:
        write_plan(step.folder, plan, [cell.name for cell in cells], questions)
        task = bar.add_task("pilot", visible=False)
        sweep = Sweep(
            plan,
            cells,
            questions,
            step.folder,
            rows,
            bar.console.print,
            lambda: bar.advance(task),
            settings,
        )
        failed: dict[str, str] = {}
        if any(map(sweep.left, cells)):
            step.reopen()
            pilot = {cell.name: sweep.pilot(cell) for cell in cells}
            bar.update(task, total=sum(map(len, pilot.values())), visible=True)
            await sweep.run(pilot)
            tasks = {cell.name: sweep.left(cell) for cell in cells}
            bar.stop()
            _show_estimates(step.folder, {name: len(left) for name, left in tasks.items()})
            kept = " The pilot's answers are kept."
            if not yes and not await asyncio.to_thread(agreed, "Go on?", kept):
                raise BadRequest(f"not confirmed.{kept}")
            bar.update(task, description="sweep", completed=0, total=sum(map(len, tasks.values())))
            bar.start()
            failed = await sweep.run(tasks)
    if not failed and step.finished is None:
        step.finish({"rollouts": len(cells) * len(questions) * plan.rollouts}, [RESULTS])
    return failed


def _show_estimates(folder: Path, left: dict[str, int]) -> None:
    done: dict[str, list[QuestionResult]] = {}
    for row in read_rows(folder / RESULTS):
        done.setdefault(row.cell, []).append(row)
    rows = msgspec.to_builtins(estimates(done, left))
    show({"rollouts left": sum(left.values()), "they will cost about": rows}, stderr=True)


class Estimate(msgspec.Struct, frozen=True):
    """Estimated cost of the remaining rollouts; None is unknown."""

    role: str
    model: str
    prompt_tokens: float | None
    completion_tokens: float | None
    dollars: float | None


def estimates(
    done: Mapping[str, Sequence[QuestionResult]], left: Mapping[str, int]
) -> list[Estimate]:
    """Estimate the cost by role and model, and in all. `done`: rows by cell. `left`: number of
    remaining rollouts by cell; each is assumed to cost the mean of its cell's rows, and an unknown
    amount without rows.
    """
    by_model: dict[tuple[str, str], tuple[float, ...]] = {}
    for cell, count in left.items():
        rows = done.get(cell, ()) if count else ()
        for total in merged(chain.from_iterable((*row.spent, *row.checking) for row in rows)):
            key = (total.role, total.model)
            known = total.attempts - total.attempts_without_usage
            cost = dollars([total])
            scale = count / len(rows)
            counted = scale * total.attempts / known if known else nan
            money = nan if cost is None else scale * cost
            amounts = counted * total.prompt_tokens, counted * total.completion_tokens, money
            by_model[key] = _sum([by_model.get(key, _ZERO), amounts])

    if blind := sum(bool(count) and not done.get(cell) for cell, count in left.items()):
        by_model["all", f"of {blind:,} pairs without a pilot"] = nan, nan, nan
    by_model["all", ""] = _sum([_ZERO, *by_model.values()])
    return [
        Estimate(*key, *(None if isnan(amount) else amount for amount in amounts))
        for key, amounts in by_model.items()
    ]


def _sum(amounts: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the sums of the columns; NaN, which is unknown, makes a sum NaN."""
    return tuple(map(sum, zip(*amounts, strict=True)))


def begin(folder: Path, plan: Plan, cells: Sequence[SweepCell]) -> tuple[Step, Settings]:
    """Start or resume a sweep, to which rollouts, questions and pairs may have been added. Raises
    `BadConfig` if the folder holds another sweep, or if a cell has changed.
    """
    inputs = {f"questions {number}": Path(path) for number, path in enumerate(plan.questions, 1)}
    own = {"seed": plan.seed, "temperature": plan.temperature, "attribution": plan.attribution}
    step = Step.begin(folder, "sweep", inputs, own)
    weights = cache(weights_of)  # many cells share an engine
    settings = {cell.name: cell.settings(weights) for cell in cells}
    for cell in cells:
        if (folder / CELLS / cell.folder).exists():
            begin_cell(folder, cell, settings)
    return step, settings


def begin_cell(folder: Path, cell: SweepCell, settings: Settings) -> Path:
    """Start or resume a cell and return its folder. Raises `BadConfig` if the cell has changed
    since it was started.
    """
    try:
        return Step.begin(folder / CELLS / cell.folder, cell.name, {}, settings[cell.name]).folder
    except BadConfig as error:
        raise BadConfig(
            f"{cell.name} has changed, so its rows cannot be combined: {error}"
        ) from None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs the remaining rollouts of a plan, with results in a folder."""

    plan: Plan
    cells: Sequence[SweepCell]
    questions: Sequence[BenchmarkQuestion]
    folder: Path
    rows: RowFile
    log: Log
    on_rollout: Callable[[], None]
    """Called after each rollout, also a failed one."""
    settings: Settings

    def left(self, cell: SweepCell) -> list[Task]:
        """Return the remaining rollouts of a cell."""
        return [
            (question, rollout)
            for rollout in range(self.plan.rollouts)
            for question in self.questions
            if (cell.name, question.id, rollout) not in self.rows.done
        ]

    def pilot(self, cell: SweepCell) -> list[Task]:
        """Choose the rollouts of the pilot: none if the cell has rows, else at most a quarter of
        the work, but at least one.
        """
        left = self.left(cell)
        if len(left) < len(self.questions) * self.plan.rollouts:
            return []
        count = min(self.plan.pilot, max(1, len(left) // 4), len(self.questions))
        questions = random.Random(self.plan.seed).sample(list(self.questions), count)
        return [(question, 0) for question in questions]

    async def run(self, tasks: Mapping[str, list[Task]]) -> dict[str, str]:
        """Run tasks by cell. Return the errors of failed rollouts by cell, question and rollout;
        the same command retries them.

        Raises `BadConfig` and `BadIndex`, `UpstreamUnavailable` if an endpoint is gone,
        `UpstreamError` or `OutOfTime` if every question fails, and `StoreFailed`.
        """
        failed: dict[str, str] = {}
        for group in engine_groups(self.cells, self.plan.engines_at_once):
            if working := [cell for cell in group if tasks[cell.name]]:
                await self._run_group(working, tasks, failed)
        return failed

    async def _run_group(
        self, cells: Sequence[SweepCell], tasks: Mapping[str, list[Task]], failed: dict[str, str]
    ) -> None:
        # Adapters are loaded into the executor's engine, which only cells with adapters surely have
        first = next((cell for cell in cells if cell.adapter), cells[0])
        roles: dict[str, RoleConfig] = {
            f"{cell.name}: roles.{name}": role
            for cell in cells
            for name, role in cell.roles.items()
        }
        adapters = {cell.version: cell.adapter for cell in cells if cell.version and cell.adapter}
        async with open_runtime(
            first.config, self.log, adapters=adapters, extra_roles=roles
        ) as bench:
            # A remote retriever reports its index only after a search
            await bench.retriever.search(["warm up"], 1)
            self.rows.check_index(bench.retriever.index_id)
            with CallCache.open(self.folder / JUDGEMENTS) as judgements:
                judge = replace(bench, cache=judgements).judge
                for cell in cells:
                    self.log(f"{cell.name}: {len(tasks[cell.name]):,} rollouts")
                    folder = begin_cell(self.folder, cell, self.settings)
                    with CallCache.open(folder / CALLS) as memory:
                        asker = Asker(
                            cell,
                            replace(bench, config=cell.config, cache=memory),
                            judge,
                            await asyncio.to_thread(prices_in, cell),
                            self.plan.temperature,
                            self.plan.attribution,
                            judgements,
                            self.rows.booked,
                        )
                        failed |= await self._run_cell(asker, tasks[cell.name])

    async def _run_cell(self, asker: Asker, tasks: Sequence[Task]) -> dict[str, str]:
        name = asker.cell.name

        async def roll_out(task: Task) -> None:
            question, rollout = task
            self.rows.append(await asker.ask(question, rollout, self.plan.seed + rollout))

        return await failures(
            roll_out,
            tasks,
            self.plan.concurrency,
            self.on_rollout,
            name=lambda task: f"{name}, {task[0].id}, rollout {task[1]}",
            so_far=lambda count: f"{name}: {count} of {len(tasks)} rollouts are done",
        )
