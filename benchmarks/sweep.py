"""A grid of backbones, executors and topologies on the same questions, as often as it takes (TBSS 4.1).

First, each pair answers a few questions, and what the whole will cost and how long it will take are estimated from
that; these answers count. Killed or interrupted, the same command goes on where it was: no rollout is done twice, and
no call that has ended is paid for again. A sweep may grow: with more rollouts, a higher limit or further pairs in its
file, it does what is missing.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.study.cells import Cell, cells_of
from benchmarks.study.plan import Plan, questions_of, read_plan
from benchmarks.study.results import write_plan
from benchmarks.study.rows import RESULTS, Row, RowFile, read_rows
from benchmarks.study.spending import estimate_table, estimates, time_left
from benchmarks.study.sweep import Settings, Sweep, begin
from executor_sft.step import Step
from router.errors import BadRequest
from serving.logs import errors_only


def main(arguments: Sequence[str]) -> int:
    """Run the sweep; the exit status, 1 where rollouts failed."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the sweep, as TOML")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where its results go")
    parser.add_argument("--yes", action="store_true", help="do not ask whether that may be spent")
    given = parser.parse_args(arguments)
    errors_only()
    plan = read_plan(given.config)
    cells = cells_of(plan)
    step, settings = begin(given.out, plan, cells)
    failed = asyncio.run(_swept(plan, cells, step, settings, agreed=given.yes))
    for which, why in failed.items():
        print(f"rolegate bench: {which}: {why}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} rollouts failed; the same command tries them again.", file=sys.stderr)
        return 1
    print(f"{given.out}: finished; `rolegate bench report {given.out} --out DIR` makes its report.")
    return 0


async def _swept(plan: Plan, cells: Sequence[Cell], step: Step, settings: Settings, *, agreed: bool) -> dict[str, str]:
    """Why rollouts failed. Raises `BadRequest` where it is not agreed to."""
    console, questions = Console(stderr=True), questions_of(plan)
    with RowFile.open(step.folder) as rows, Progress(console=console) as bar:
        write_plan(step.folder, plan, [cell.name for cell in cells], questions)
        task = bar.add_task("pilot", visible=False)
        sweep = Sweep(
            plan,
            cells,
            questions,
            step.folder,
            rows,
            lambda text: console.print(text, style="dim"),
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
            total = sum(map(len, tasks.values()))
            bar.stop()
            _show_estimates(console, step.folder, {name: len(left) for name, left in tasks.items()}, plan.concurrency)
            if not agreed:
                await asyncio.to_thread(_agree)
            bar.update(task, description="sweep", completed=0, total=total)
            bar.start()
            failed = await sweep.run(tasks)
    if not failed and step.finished is None:
        step.finish({"rollouts": len(cells) * len(questions) * plan.rollouts}, [RESULTS])
    return failed


def _show_estimates(console: Console, folder: Path, left: dict[str, int], concurrency: int) -> None:
    done: dict[str, list[Row]] = {}
    for row in read_rows(folder / RESULTS):
        done.setdefault(row.cell, []).append(row)
    console.print(estimate_table(estimates(done, left), sum(left.values())))
    console.print(time_left(done, left, concurrency), highlight=False)


def _agree() -> None:
    """Ask at the terminal. Raises `BadRequest` where there is none, or the answer is not yes."""
    again = "The pilot's answers are kept."
    if not sys.stdin.isatty():
        raise BadRequest(f"there is nobody to ask whether that may be spent; --yes says so. {again}")
    if input("Go on? [y/N] ").strip().casefold() not in ("y", "yes"):
        raise BadRequest(f"not agreed to. {again}")
