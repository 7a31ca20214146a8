"""A grid of backbones, executors and topologies on the same questions, as often as it takes (TBSS 4.1).

First, each pair answers a few questions, and what the whole will cost is estimated from that; these answers count.
Killed or interrupted, the same command goes on where it was: no rollout is done twice, and no call that has ended is
paid for again. A sweep may grow: with more rollouts, a higher limit or further pairs in its file, it does what is
missing.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.harness import Check, tell
from benchmarks.load import progress
from benchmarks.study.cells import Cell, cells_of
from benchmarks.study.plan import Plan, questions_of, read_plan
from benchmarks.study.results import write_plan
from benchmarks.study.rows import RESULTS, Row, RowFile, read_rows
from benchmarks.study.spending import estimates
from benchmarks.study.sweeping import Settings, Sweep, begin
from executor_sft.command import show
from executor_sft.step import Step
from router.errors import BadRequest


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
    failed = asyncio.run(_swept(plan, cells, step, settings, agreed=options.yes))
    for rollout, why in failed.items():
        tell(f"{rollout}: {why}")
    return Figures([Check("every rollout is done", not failed, f"{len(failed)} failed")])


async def _swept(plan: Plan, cells: Sequence[Cell], step: Step, settings: Settings, *, agreed: bool) -> dict[str, str]:
    """Reasons of rollouts that failed. Raises `BadRequest` where it is not agreed to."""
    questions = questions_of(plan)
    with RowFile.open(step.folder) as rows, progress() as bar:
        write_plan(step.folder, plan, [cell.name for cell in cells], questions)
        task = bar.add_task("pilot", visible=False)
        sweep = Sweep(plan, cells, questions, step.folder, rows, bar.console.print, lambda: bar.advance(task), settings)
        failed: dict[str, str] = {}
        if any(map(sweep.left, cells)):
            step.reopen()
            pilot = {cell.name: sweep.pilot(cell) for cell in cells}
            bar.update(task, total=sum(map(len, pilot.values())), visible=True)
            failed = await sweep.run(pilot)
            tasks = {cell.name: sweep.left(cell) for cell in cells}
            bar.stop()
            _show_estimates(step.folder, {name: len(left) for name, left in tasks.items()})
            if not agreed:
                await asyncio.to_thread(_agree)
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


def _agree() -> None:
    """Ask at the terminal. Raises `BadRequest` where there is none, or the answer is not yes."""
    again = "The pilot's answers are kept."
    if not sys.stdin.isatty():
        raise BadRequest(f"there is nobody to ask whether that may be spent; --yes says so. {again}")
    if input("Go on? [y/N] ").strip().casefold() not in ("y", "yes"):
        raise BadRequest(f"not agreed to. {again}")
