"""A grid of backbones, executors and topologies on the same questions, as often as it takes (TBSS
4.1).

First, each pair answers a few questions, and what the whole will cost is estimated from that; these
answers count. Killed or interrupted, the same command goes on where it was: no rollout is done
twice, and no call that has ended is paid for again. A sweep may grow: with more rollouts, a higher
limit or further pairs in its file, it does what is missing.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isnan, nan
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.harness import Check
from benchmarks.study.cells import Cell, cells_of, engine_groups, weights_of
from benchmarks.study.plan import Plan, questions_of, read_plan
from benchmarks.study.results import RESULTS, Row, RowFile, read_rows, write_plan
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

_NOTHING = 0.0, 0.0, 0.0
CELLS = "cells"
CALLS = "calls.jsonl"
JUDGEMENTS = "judgements.jsonl"
Settings = Mapping[str, Mapping[str, object]]
"""By cell, everything that makes its calls what they are."""
Task = tuple[BenchmarkQuestion, int]
"""A question and the number of its rollout."""


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    plan: Annotated[Path, Meta(description="the sweep, as TOML")] = msgspec.field(name="config")
    out: Annotated[Path, Meta(description="where its results go")]
    yes: Annotated[bool, Meta(description="do not ask whether that may be spent")] = False


class Figures(msgspec.Struct, frozen=True):
    """Fails where rollouts failed; the same command tries them again."""

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
    plan: Plan, cells: Sequence[Cell], step: Step, settings: Settings, *, yes: bool
) -> dict[str, str]:
    """Run pilot and sweep; reasons of rollouts that failed. Raises `BadRequest` where it is not
    agreed to.
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
                raise BadRequest(f"not agreed to.{kept}")
            bar.update(task, description="sweep", completed=0, total=sum(map(len, tasks.values())))
            bar.start()
            failed = await sweep.run(tasks)
    if not failed and step.finished is None:
        step.finish({"rollouts": len(cells) * len(questions) * plan.rollouts}, [RESULTS])
    return failed


def _show_estimates(folder: Path, left: dict[str, int]) -> None:
    done: dict[str, list[Row]] = {}
    for row in read_rows(folder / RESULTS):
        done.setdefault(row.cell, []).append(row)
    found = msgspec.to_builtins(estimates(done, left))
    show({"rollouts left": sum(left.values()), "they will cost about": found}, stderr=True)


class Estimate(msgspec.Struct, frozen=True):
    """The cost of the work that is left; None is unknown."""

    role: str
    model: str
    prompt_tokens: float | None
    completion_tokens: float | None
    dollars: float | None


def estimates(done: Mapping[str, Sequence[Row]], left: Mapping[str, int]) -> list[Estimate]:
    """Estimate by role and model, then in all. `done`, `left`: rows and rollouts to be done, by
    cell; each takes what those of its cell took on average, and nobody knows what where there was
    none.
    """
    found: dict[tuple[str, str], tuple[float, ...]] = {}
    for cell, count in left.items():
        rows = done.get(cell, ())
        for one in (
            merged(one for row in rows for one in (*row.spent, *row.checking)) if count else ()
        ):
            key = (one.role, one.model)
            known = one.attempts - one.attempts_without_usage
            cost = dollars([one])
            scale = count / len(rows)
            counted = scale * one.attempts / known if known else nan
            money = nan if cost is None else scale * cost
            amounts = counted * one.prompt_tokens, counted * one.completion_tokens, money
            found[key] = _sum([found.get(key, _NOTHING), amounts])
    if blind := sum(bool(count) and not done.get(cell) for cell, count in left.items()):
        found["all", f"of {blind:,} pairs without a pilot"] = nan, nan, nan
    found["all", ""] = _sum([_NOTHING, *found.values()])
    return [
        Estimate(*key, *(None if isnan(one) else one for one in amounts))
        for key, amounts in found.items()
    ]


def _sum(amounts: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Sum up column by column; of what nobody knows, which is NaN, nobody knows the sum."""
    return tuple(map(sum, zip(*amounts, strict=True)))


def begin(folder: Path, plan: Plan, cells: Sequence[Cell]) -> tuple[Step, Settings]:
    """Begin a sweep, or go on. Rollouts, questions and pairs may be added later. Raises `BadConfig`
    where the folder holds another sweep, or where a cell has begun as something else.
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


def begin_cell(folder: Path, cell: Cell, settings: Settings) -> Path:
    """The cell's folder in that of the sweep. Raises `BadConfig` where the cell was something
    else when it began.
    """
    try:
        return Step.begin(folder / CELLS / cell.folder, cell.name, {}, settings[cell.name]).folder
    except BadConfig as error:
        raise BadConfig(
            f"{cell.name} is not what it was, so its rows would not go together: {error}"
        ) from None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rest of a plan, in a folder."""

    plan: Plan
    cells: Sequence[Cell]
    questions: Sequence[BenchmarkQuestion]
    folder: Path
    rows: RowFile
    log: Log
    on_rollout: Callable[[], None]
    """Called whenever a rollout is done, or has failed."""
    settings: Settings

    def left(self, cell: Cell) -> list[Task]:
        """List the cell's rollouts that are still to be done."""
        return [
            (question, rollout)
            for rollout in range(self.plan.rollouts)
            for question in self.questions
            if (cell.name, question.id, rollout) not in self.rows.done
        ]

    def pilot(self, cell: Cell) -> list[Task]:
        """Choose some of them, to estimate the whole by; none where the cell has done something
        already. More than one only while they are no more than a quarter of the work.
        """
        left = self.left(cell)
        if len(left) < len(self.questions) * self.plan.rollouts:
            return []
        count = min(self.plan.pilot, max(1, len(left) // 4), len(self.questions))
        return [
            (one, 0) for one in random.Random(self.plan.seed).sample(list(self.questions), count)
        ]

    async def run(self, tasks: Mapping[str, list[Task]]) -> dict[str, str]:
        """Do these tasks, by cell; return why rollouts failed, by cell, question and rollout: their
        rows are missing, and the same command tries them again.

        Raises `BadConfig` and `BadIndex`, `UpstreamUnavailable` once an endpoint is gone,
        `UpstreamError` or `OutOfTime` where every question fails, and `StoreFailed`.
        """
        failed: dict[str, str] = {}
        for group in engine_groups(self.cells, self.plan.engines_at_once):
            if working := [cell for cell in group if tasks[cell.name]]:
                await self._run_group(working, tasks, failed)
        return failed

    async def _run_group(
        self, cells: Sequence[Cell], tasks: Mapping[str, list[Task]], failed: dict[str, str]
    ) -> None:
        # Adapters are loaded into the executor's engine, and only cells that use one are sure to
        # have that.
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
            # Only then does a retriever elsewhere tell its index
            await bench.retriever.search(["warm up"], 1)
            self.rows.check_index(bench.retriever.index_id)
            with CallCache.open(self.folder / JUDGEMENTS) as judgements:
                judge = replace(bench, cache=judgements).judge
                for cell in cells:
                    self.log(f"{cell.name}: {len(tasks[cell.name]):,} rollouts")
                    with CallCache.open(
                        begin_cell(self.folder, cell, self.settings) / CALLS
                    ) as memory:
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

        async def one(task: Task) -> None:
            question, rollout = task
            self.rows.append(await asker.ask(question, rollout, self.plan.seed + rollout))

        return await failures(
            one,
            tasks,
            self.plan.concurrency,
            self.on_rollout,
            name=lambda task: f"{name}, {task[0].id}, rollout {task[1]}",
            so_far=lambda count: f"{name}: {count} of {len(tasks)} rollouts are done",
        )
