"""A grid of backbones, executors and topologies on the same questions, as often as it takes (TBSS 4.1).

First, each pair answers a few questions, and what the whole will cost and how long it will take are estimated from
that; these answers count. Killed or interrupted, the same command goes on where it was: no rollout is done twice, and
no call that has ended is paid for again. A sweep may grow: with more rollouts, a higher limit or further pairs in its
file, it does what is missing.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.study.asked_questions import asked_questions
from benchmarks.study.cell import Prepared, base_config, prepared
from benchmarks.study.estimating import CellPilot, estimate_table, estimates, seconds_left, time_line
from benchmarks.study.plan import Plan, read_plan
from benchmarks.study.results import RESULTS, Results
from benchmarks.study.study_data import PLAN, KeptPlan
from benchmarks.study.sweeping import CELLS, Sweeper, begin_cell, settings_of
from benchmarks.study.weights import weights_of
from executor_sft.step import Step, config_settings, digest_of
from router.errors import BadRequest
from serving.files import write_atomically
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
    cells, questions = prepared(plan), asked_questions(plan.questions, plan.limit)
    step, settings = begun(given.out, plan, cells)
    failed = asyncio.run(_swept(plan, cells, questions, step, settings, agreed=given.yes))
    for which, why in failed.items():
        print(f"rolegate bench: {which}: {why}", file=sys.stderr)
    if failed:
        print(f"{len(failed)} rollouts failed; the same command tries them again.", file=sys.stderr)
        return 1
    if step.finished is None:
        step.finish({"rollouts": len(cells) * len(questions) * plan.rollouts}, [RESULTS])
    print(f"{given.out}: finished; `rolegate bench report {given.out} --out DIR` makes its report.")
    return 0


def begun(folder: Path, plan: Plan, cells: Sequence[Prepared]) -> tuple[Step, dict[str, dict[str, object]]]:
    """Begin, or go on; and by cell, what makes its calls what they are. Raises `BadConfig` where the folder holds
    another sweep, or where a cell has begun as something else.
    """
    inputs = {f"questions {number}": Path(path) for number, path in enumerate(plan.questions, 1)}
    step = Step.begin(folder, "sweep", inputs, settings_of(plan))
    judge = base_config(plan).distillation.judge
    weights = cache(weights_of)  # many cells share an engine
    settings: dict[str, dict[str, object]] = {}
    for cell in cells:
        roles = {**cell.roles, "judge": judge}
        settings[cell.cell.name] = {
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
        if (folder / CELLS / cell.cell.folder).exists():
            begin_cell(folder, cell.cell, settings[cell.cell.name])
    return step, settings


async def _swept(
    plan: Plan,
    cells: Sequence[Prepared],
    questions: Sequence[BenchmarkQuestion],
    step: Step,
    settings: Mapping[str, Mapping[str, object]],
    *,
    agreed: bool,
) -> dict[str, str]:
    """Why rollouts failed. Raises `BadRequest` where it is not agreed to."""
    console = Console(stderr=True)
    with Results.open(step.folder) as results, Progress(console=console) as bar:
        _keep(plan, cells, questions, step.folder)
        task = bar.add_task("pilot", visible=False)
        sweeper = Sweeper(
            plan,
            cells,
            questions,
            step.folder,
            results,
            lambda text: console.print(text, style="dim"),
            lambda: bar.advance(task),
            settings,
        )
        if not any(map(sweeper.left, cells)):
            return {}
        step.reopen()
        pilots = {cell.cell.name: sweeper.pilot(cell) for cell in cells}
        bar.update(task, total=sum(map(len, pilots.values())), visible=True)
        await sweeper.run(lambda cell: pilots[cell.cell.name])
        left = {cell.cell.name: len(sweeper.left(cell)) for cell in cells}
        spent = {cell.cell.name: CellPilot() for cell in cells}
        for row in results.rows():
            if row.cell in spent:
                spent[row.cell].add(row)
        bar.stop()
        console.print(estimate_table(estimates(spent, left), sum(left.values())))
        console.print(time_line(seconds_left(spent, left, plan.concurrency)), highlight=False)
        if not agreed:
            await asyncio.to_thread(_agree)
        bar.update(task, description="sweep", completed=0, total=sum(left.values()))
        bar.start()
        return await sweeper.run(sweeper.left)


def _keep(plan: Plan, cells: Sequence[Prepared], questions: Sequence[BenchmarkQuestion], folder: Path) -> None:
    """Write down what a report needs to know of the plan."""
    kept = KeptPlan(
        plan.title,
        tuple(question.id for question in questions),
        plan.rollouts,
        tuple(cell.cell.name for cell in cells),
        {name: model.parameters for name, model in plan.models.items()},
    )
    write_atomically(folder / PLAN, msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")


def _agree() -> None:
    """Ask at the terminal. Raises `BadRequest` where there is none, or the answer is not yes."""
    again = "What the pilot paid for is kept."
    if not sys.stdin.isatty():
        raise BadRequest(f"there is nobody to ask whether that may be spent; --yes says so. {again}")
    if input("Go on? [y/N] ").strip().casefold() not in ("y", "yes"):
        raise BadRequest(f"not agreed to. {again}")
