"""The paper's Tables 4 and 5 in miniature: the naive, the distilled and the teaching executor on held-out mini worlds,
under the same backbone and answerer, through real vLLM and real retrieval, once for each limit of executor turns.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.mini_deployment import MiniDeployment, mini_deployment
from executor_sft.command import show
from executor_sft.evaluate import BASE, TEACHER, Answered, Evaluation, adapter_name, answers, evaluation_of
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.world import World
from executor_sft.questions import Question
from executor_sft.runtime import open_runtime
from router.errors import BadConfig
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.files import write_atomically
from serving.logs import errors_only

_AT_ONCE = 32
"""Questions: engines without a GPU take hardly longer for many sequences than for one."""


class Figures(msgspec.Struct, frozen=True):
    """What was measured."""

    worlds: list[int]
    evaluations: list[Evaluation]
    """One for each limit of turns."""
    gap_closed: list[float | None]
    """For each: how much of the gap in exact match between the naive executor and the teacher the distilled one closes;
    None where there is no gap.
    """


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench executors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, nargs="+", default=[11, 12], metavar="SEED", help="(default: 11 12)")
    parser.add_argument("--questions", type=int, default=150, metavar="N", help="of each world (default: 150)")
    parser.add_argument("--rollouts", type=int, default=4, metavar="K", help="of each question (default: 4)")
    parser.add_argument("--temperature", type=float, default=0.3, metavar="T", help="of all roles (default: 0.3)")
    parser.add_argument("--turns", type=int, nargs="+", default=[3, 4], metavar="K", help="(default: 3 4)")
    parser.add_argument("--version", type=Path, metavar="DIR", help="the distilled one (default: the shipped one)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps every call there, to go on after a kill")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    errors_only()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(_measured(given, given.work or Path(folder)))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    console = Console()
    for evaluation, closed in zip(figures.evaluations, figures.gap_closed, strict=True):
        show(msgspec.to_builtins(evaluation))
        console.print(f"gap closed: {'–' if closed is None else f'{closed:.3f}'}\n")
    return 0


async def _measured(given: argparse.Namespace, work: Path) -> Figures:
    console = Console(stderr=True)
    config = load_config(preset("mini"))
    version = given.version or (Path(config.versions.start) if config.versions.start else None)
    if version is None:
        raise BadConfig("--version: the preset mini starts without one; name the folder of the distilled executor.")
    answered: dict[int, dict[str, list[Answered]]] = {turns: {} for turns in given.turns}
    async with mini_deployment(lambda step: console.print(step, style="dim"), config, teacher=True) as mini:
        for seed in given.worlds:
            folder = work / f"world-{seed}"
            asked = export(World(seed, "test"), folder, given.questions)
            questions = [Question(one.id, one.text, (one.answer,)) for one in asked]
            for turns in given.turns:
                found = await _world(
                    mini, folder, turns, version=version, questions=questions, given=given, console=console
                )
                for name, ones in found.items():
                    answered[turns].setdefault(name, []).extend(ones)
    evaluations = [
        evaluation_of(found, _limited(config, turns).search, given.rollouts, given.temperature)
        for turns, found in answered.items()
    ]
    return Figures(given.worlds, evaluations, [_gap_closed(evaluation) for evaluation in evaluations])


async def _world(
    mini: MiniDeployment,
    folder: Path,
    turns: int,
    *,
    version: Path,
    questions: Sequence[Question],
    given: argparse.Namespace,
    console: Console,
) -> dict[str, list[Answered]]:
    """What the three executors answer in one world."""
    there = msgspec.structs.replace(mini, of=over(mini.of, folder), retrieval="")
    config = _limited(there.config(folder / "rolegate.toml", f"sqlite:///{folder}/runs.db"), turns)
    name = adapter_name(version)
    async with open_runtime(
        config, lambda _step: None, cache=folder / "calls.jsonl", adapters={name: version}
    ) as bench:
        return await answers(
            bench,
            [BASE, name, TEACHER],
            questions,
            rollouts=given.rollouts,
            temperature=given.temperature,
            concurrency=_AT_ONCE,
            console=console,
        )


def _limited(config: Config, turns: int) -> Config:
    search = msgspec.structs.replace(config.search, max_turns=turns, max_searches=turns - 1)
    return msgspec.structs.replace(config, search=search)


def _gap_closed(evaluation: Evaluation) -> float | None:
    naive, distilled, teacher = (row.exact_match for row in evaluation.rows)
    return (distilled - naive) / (teacher - naive) if teacher > naive else None
