"""`rolegate sft mine`: roll out logged questions again, with the teacher as executor.

Reads the config's store: runs of kind answer, failures included, but none of tenants that have opted out and none whose
texts were not kept. Which answers are right is known from clients' feedback (a right answer, or an answer that they
liked), or from the judge. Prints what that would take and asks; then it does what `rolegate sft rollout` does.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from executor_sft.logged import Counts, Selection, select
from executor_sft.questions import read_texts
from executor_sft.rerun_estimate import estimate, estimate_table
from executor_sft.rolling_out import teacher_of
from executor_sft.rollout import add_common, rolled_out, settings_of
from executor_sft.step import Step
from router.errors import BadConfig, BadRequest
from router.runs.archive import RunFilter
from router.store.archive import SQLArchive
from router.trace.call import Price
from serving.cli.options import FORMATS, chosen_config, moment
from serving.cli.store import opened_store
from serving.config.config import Config
from serving.config.prices import price_of
from serving.files import write_atomically
from serving.logs import errors_only

SELECTION = "selection.json"


def main(arguments: Sequence[str]) -> int:
    """Run the step; the exit status, 1 where it was not agreed to."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft mine", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser)
    parser.add_argument("--since", metavar="TIME", help=FORMATS)
    parser.add_argument("--until", metavar="TIME", help="runs that started before")
    parser.add_argument("--tenant", metavar="NAME", help="one tenant's only")
    parser.add_argument(
        "--evaluation", type=Path, nargs="+", action="extend", default=[], metavar="FILE", help="questions to leave out"
    )
    parser.add_argument(
        "--then-evaluate",
        type=int,
        default=0,
        metavar="RUNS",
        help="runs of an evaluation that is to follow; the estimate counts them",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    given = parser.parse_args(arguments)
    errors_only()
    config = chosen_config(given)
    settings = settings_of(config, given) | {name: getattr(given, name) for name in ("since", "until", "tenant")}
    kept = given.out / SELECTION
    selection = None
    if not kept.exists():
        selection = asyncio.run(_selected(config, given))
        if selection is None:
            return 1
    step = Step.begin(given.out, "mine", {f"evaluation {path}": path for path in given.evaluation}, settings)
    if selection is not None:
        write_atomically(kept, msgspec.json.encode(selection))
    selection = _read(kept)
    return rolled_out(step, config, selection.questions, msgspec.to_builtins(selection.counts), given)


async def _selected(config: Config, given: argparse.Namespace) -> Selection | None:
    """What is to be rolled out; None where somebody does not want that. Raises `BadRequest` where nothing is there, or
    nobody to ask.
    """
    wanted = RunFilter(
        tenant=given.tenant,
        kind="answer",
        start=given.since and moment(given.since).timestamp(),
        end=given.until and moment(given.until).timestamp(),
        training=True,
    )
    evaluation, judge = read_texts(given.evaluation), config.distillation.judge is not None
    console = Console()
    async with opened_store(given) as database:
        archive = SQLArchive(database)
        with console.status("reading logged runs"):
            selection, calls, shared = await select(archive, wanted, evaluation, judge=judge, limit=given.limit)
    console.print(_counts_table(selection.counts))
    if selection.counts.unreadable:
        console.print("What cannot be read: `rolegate store check` names it; an older release may read it.")
    if not selection.questions:
        raise BadRequest("no logged question can be used; send feedback with right answers, or name a judge.")
    prices = await asyncio.to_thread(_prices, config)
    evaluated = given.then_evaluate / len(selection.questions)
    console.print(estimate_table(estimate(calls, prices, shared, evaluated)))
    return selection if given.yes or _agreed(len(selection.questions)) else None


def _agreed(questions: int) -> bool:
    """Ask at the terminal. Raises `BadRequest` where there is none."""
    if not sys.stdin.isatty():
        raise BadRequest("there is nobody to ask whether that may be spent; --yes says so.")
    return input(f"Roll out {questions} questions? [y/N] ").strip().casefold() in ("y", "yes")


def _prices(config: Config) -> dict[str, Price | None]:
    roles = config.roles
    named = {
        "delegation": roles.delegation,
        "teacher": teacher_of(config),
        "student": roles.execution,
        "answer": roles.answer,
    }
    return {name: price_of(role, config.prices) for name, role in named.items()}


def _counts_table(counts: Counts) -> Table:
    table = Table("logged runs")
    table.add_column("how many", justify="right")
    for name, count in msgspec.to_builtins(counts).items():
        table.add_row(name.replace("_", " "), f"{count:,}")
    return table


def _read(path: Path) -> Selection:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Selection)
    except msgspec.DecodeError as error:
        raise BadConfig(f"{path}: {error}; begin in a new folder.") from None
