"""A held-out mini world, asked over gRPC through real vLLM and real retrieval.

Beside the exact match of whole runs stand two ceilings: with the gold decomposition (executor and answerer do their
part), and with the gold reports (the answerer alone). What is lost between two columns is lost by one role.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc
import msgspec
from rich.console import Console
from rich.progress import Progress
from rolegate.v1 import answer_service_pb2 as answer_pb

from benchmarks.mini_client import MiniClient
from benchmarks.mini_report import MiniReport, show
from benchmarks.mini_report import report as make_report
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.world import World
from serving.composition import running_gateway
from serving.config.config import ReuseConfig
from serving.config.file import load_config, preset
from serving.files import write_atomically
from serving.logs import errors_only

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Outside(msgspec.Struct, frozen=True):
    question: str


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench mini", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=11, help="the seed of the world; its names are never trained on")
    parser.add_argument("--questions", type=int, default=200, metavar="N", help="how many (default: 200)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="other models than the preset mini's")
    parser.add_argument("--outside", type=Path, metavar="FILE", help="a questions.jsonl from another world")
    parser.add_argument("--outside-questions", type=int, default=100, metavar="N", help="how many of it (default: 100)")
    parser.add_argument("--concurrency", type=int, default=8, help="questions in flight (default: 8)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    errors_only()
    report = asyncio.run(_run(given))
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    show(report, Console())
    return 0


async def _run(given: argparse.Namespace) -> MiniReport:
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        questions = export(World(given.seed, "test"), Path(folder), given.questions)
        config = over(load_config(given.config or preset("mini")), Path(folder))
        config = msgspec.structs.replace(config, reuse=ReuseConfig(enabled=False))
        async with (
            running_gateway(config, "127.0.0.1:0", lambda text: console.print(text, style="dim")) as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            client = MiniClient(channel, Path(config.roles.answer.prompt).read_text("utf-8").strip())
            with Progress(console=console) as progress:
                asked = await _all(progress, "asking", questions, client.ask, given.concurrency)
                confident = await _confident_outside(given, client, progress)
        return make_report(given.seed, asked, confident)


async def _all(
    progress: Progress,
    title: str,
    items: Sequence[Item],
    ask: Callable[[Item], Awaitable[Result]],
    concurrency: int,
) -> list[Result]:
    """`ask` of every item, in order, so many at once."""
    gate = asyncio.Semaphore(concurrency)
    bar = progress.add_task(title, total=len(items))

    async def one(item: Item) -> Result:
        async with gate:
            result = await ask(item)
            progress.advance(bar)
            return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(item)) for item in items]
    return [task.result() for task in tasks]


async def _confident_outside(given: argparse.Namespace, client: MiniClient, progress: Progress) -> list[str] | None:
    """The questions of another world that got an answer nevertheless; None where none were asked."""
    if given.outside is None:
        return None
    lines = given.outside.read_text("utf-8").splitlines()[: given.outside_questions]
    questions = [msgspec.json.decode(line, type=_Outside).question for line in lines]
    answers = await _all(progress, "asking from outside", questions, client.answer, given.concurrency)
    refused = (answer_pb.ANSWER_OUTCOME_OUT_OF_SCOPE, answer_pb.ANSWER_OUTCOME_NOT_FOUND)
    return [question for question, answer in zip(questions, answers, strict=True) if answer.outcome not in refused]
