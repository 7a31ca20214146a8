"""A grid of backbones, executors and topologies on the same questions, as often as it takes (TBSS 4.1).

First, each pair answers a few questions, and what the whole will cost is estimated from that; these answers count.
Killed or interrupted, the same command goes on where it was: no rollout is done twice, and no call that has ended is
paid for again. A sweep may grow: with more rollouts, a higher limit, or further pairs, it does what is missing.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.asked_questions import asked_questions
from benchmarks.study.cell import Prepared, base_config, prepared
from benchmarks.study.estimating import CellPilot, estimate_table, estimates
from benchmarks.study.plan import Plan, read_plan
from benchmarks.study.results import RESULTS, Results
from benchmarks.study.study_data import PLAN, KeptPlan, read_plan_of
from benchmarks.study.sweeping import CELLS, Sweeper, settings_of
from benchmarks.study.weights import weights_of
from executor_sft.config_settings import config_settings
from executor_sft.step import Step, digest_of
from router.errors import BadConfig, BadRequest
from serving.logs import errors_only
from serving.retrieval.atomic_file import write_atomically


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
    cells, questions = prepared(plan), asked_questions(plan.questions, plan.limit)
    step = begun(given.out, plan, cells)
    _check_limit(given.out, len(questions))
    kept = KeptPlan(
        plan.title,
        len(questions),
        plan.rollouts,
        tuple(cell.cell.name for cell in cells),
        {name: model.parameters for name, model in plan.models.items()},
    )
    write_atomically(given.out / PLAN, msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")
    failed = asyncio.run(_swept(plan, cells, questions, step, given.yes))
    for which, why in failed.items():
        print(f"rolegate bench: {which}: {why}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} rollouts failed; the same command tries them again.", file=sys.stderr)
        return 1
    if step.finished is None:
        step.finish({"rollouts": len(cells) * len(questions) * plan.rollouts}, [RESULTS])
    print(f"{given.out}: finished; `rolegate bench report {given.out} --out DIR` makes its report.")
    return 0


def begun(folder: Path, plan: Plan, cells: Sequence[Prepared]) -> Step:
    """Begin, or go on; each pair has a folder of its own in it. Raises `BadConfig` where it holds another sweep, or a
    pair was something else.
    """
    inputs = {f"questions {number}": Path(path) for number, path in enumerate(plan.questions, 1)}
    step = Step.begin(folder, "sweep", inputs, settings_of(plan))
    judge = base_config(plan).distillation.judge
    weights = cache(weights_of)  # many pairs share an engine
    for cell in cells:
        roles = {**cell.roles, "judge": judge}
        settings = {
            "topology": cell.cell.topology,
            "adapter": cell.adapter and digest_of(cell.adapter / "adapter_model.safetensors"),
            "weights": {
                name: weights(cell.config.engines[role.engine].path)
                for name, role in roles.items()
                if role and role.engine
            },
            **config_settings(
                cell.config, {"judge": judge, **{f"{name}, here": role for name, role in cell.roles.items()}}
            ),
        }
        Step.begin(folder / CELLS / cell.cell.folder, cell.cell.name, {}, settings)
    return step


def _check_limit(folder: Path, questions: int) -> None:
    """Raise `BadConfig` where more questions than these have been asked: a report could not tell them apart."""
    if (folder / PLAN).exists() and (before := read_plan_of(folder).questions) > questions:
        raise BadConfig(f"{folder}: is about {before:,} questions, and now there are {questions:,}; raise limit again.")


async def _swept(
    plan: Plan, cells: Sequence[Prepared], questions: Sequence[BenchmarkQuestion], step: Step, agreed: bool
) -> dict[str, str]:
    """Why rollouts failed. Raises `BadRequest` where it is not agreed to."""
    console = Console(stderr=True)
    with Results.open(step.folder) as results, Progress(console=console) as bar:
        task = bar.add_task("pilot")
        sweeper = Sweeper(
            plan,
            cells,
            questions,
            step.folder,
            results,
            lambda text: console.print(text, style="dim"),
            lambda: bar.advance(task),
        )
        pilot = sweeper.pilot_questions()
        bar.update(task, total=sum(len(sweeper.left(cell, pilot, 1)) for cell in cells))
        await sweeper.run(pilot, 1)
        left = {cell.cell.name: len(sweeper.left(cell, questions, plan.rollouts)) for cell in cells}
        if not any(left.values()):
            return {}
        step.reopen()
        pilots = {cell.cell.name: CellPilot() for cell in cells}
        for row in results.rows():
            if row.cell in pilots:
                pilots[row.cell].add(row)
        bar.stop()
        console.print(estimate_table(estimates(pilots, left), sum(left.values())))
        if not agreed:
            await asyncio.to_thread(_agree)
        bar.update(task, description="sweep", completed=0, total=sum(left.values()))
        bar.start()
        return await sweeper.run(questions, plan.rollouts)


def _agree() -> None:
    """Ask at the terminal. Raises `BadRequest` where there is none, or the answer is not yes."""
    again = "What the pilot paid for is kept."
    if not sys.stdin.isatty():
        raise BadRequest(f"there is nobody to ask whether that may be spent; --yes says so. {again}")
    if input("Go on? [y/N] ").strip().casefold() not in ("y", "yes"):
        raise BadRequest(f"not agreed to. {again}")
