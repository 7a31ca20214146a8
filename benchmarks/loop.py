"""The whole loop, from logged traffic to a better executor in service, on a mini world whose names no model has seen.

The untuned executor serves behind a gateway over gRPC; clients ask and tell the right answers afterwards. `rolegate sft
retrain` makes a version of that, which works as shadow; the gate takes it to canary and to active while clients keep
asking. Then a spoiled version is let in as a canary, and the gate takes it out again. A loop that was stopped goes on
in its folder where it was.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from itertools import islice
from pathlib import Path

import msgspec
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rolegate.client import AsyncClient
from rolegate.v1.executor_version_service_pb2 import ExecutorVersion, ExecutorVersionState

from benchmarks.child import child
from benchmarks.loop_asking import ENDED, Asked, LoopAsking
from benchmarks.mini_deployment import mini_deployment
from benchmarks.spoiled import publish_spoiled
from executor_sft.jsonl import JsonlFile
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.questions import Question
from executor_sft.miniworld.world import World
from executor_sft.step import Step, read_manifest
from router.errors import RolegateError
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.engines.engine import Log
from serving.files import write_atomically
from serving.logs import errors_only

_REGISTERED = ExecutorVersionState.EXECUTOR_VERSION_STATE_REGISTERED
_NOTES = "asked.jsonl"
_CANARY_SHARE = 0.5
"""Of the questions; with the default, most of them would be no trial."""


class Figures(msgspec.Struct, frozen=True):
    """What was seen."""

    seed: int
    logged: Asked
    """With the untuned executor."""
    before: Asked
    """The held-out questions, before."""
    after: Asked
    """The same ones, with the version that was promoted."""
    steps_s: dict[str, float]
    """Seconds of each step of `retrain`."""
    swap: Asked
    """What was asked while the version went from shadow to active."""
    version_state: str
    decisions: list[dict[str, object]]
    spoiled: Asked
    """What was asked while a spoiled version was a canary."""
    spoiled_state: str
    spoiled_decisions: list[dict[str, object]]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; 1 where a request failed, or where the gate did not come to what it should."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench loop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=31, help="of the world (default: 31)")
    parser.add_argument("--questions", type=int, default=500, metavar="N", help="logged ones (default: 500)")
    parser.add_argument("--held-out", type=int, default=200, metavar="N", help="for EM before and after (default: 200)")
    parser.add_argument("--most", type=int, default=1500, metavar="N", help="questions for each trial (default: 1500)")
    parser.add_argument("--in-flight", type=int, default=8, metavar="N", help="questions at once (default: 8)")
    parser.add_argument("--recipe", default="mini", metavar="NAME", help="of the training (default: mini)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps the steps' folders there")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    errors_only()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(_looped(given, (given.work or Path(folder)).resolve()))
    encoded = msgspec.json.format(msgspec.json.encode(figures), indent=2)
    if given.json:
        write_atomically(given.json, encoded + b"\n")
    print(encoded.decode())
    for name in ("before", "after"):
        asked: Asked = getattr(figures, name)
        print(f"exact match {name}: {asked.exact_match:.3f} of {asked.questions}")
    failed = sum(
        asked.failed for asked in (figures.logged, figures.before, figures.swap, figures.after, figures.spoiled)
    )
    return int(failed > 0 or (figures.version_state, figures.spoiled_state) != ENDED)


async def _looped(given: argparse.Namespace, work: Path) -> Figures:
    settings = {name: getattr(given, name) for name in ("seed", "questions", "held_out", "most", "recipe")}
    step = Step.begin(work, "loop", {}, settings)
    if done := step.finished:
        return msgspec.convert(done.figures, Figures)
    questions = _distinct(export(World(given.seed, "test"), work / "world", sum(_counts(given))))
    parts = iter(questions)
    held_out, logged, tried, tried_spoiled = (list(islice(parts, count)) for count in _counts(given))
    lines = msgspec.json.Encoder().encode_lines(
        [{"id": one.id, "text": one.text, "answer": one.answer} for one in held_out]
    )
    write_atomically(work / "held_out.jsonl", lines)
    console, file = Console(stderr=True), work / "rolegate.toml"
    async with AsyncExitStack() as stack:
        notes = stack.enter_context(closing(JsonlFile(work / _NOTES)))
        deployment = mini_deployment(_teller(console), _config(work / "world"), teacher=True)
        mini = await stack.enter_async_context(deployment)
        mini.config(file, f"sqlite:///{work}/runs.db", versions=work / "versions")
        gateway = await stack.enter_async_context(child("benchmarks.gateway_child", str(file)))
        client = await stack.enter_async_context(AsyncClient(gateway.told[0]))
        asking = LoopAsking(client, given.in_flight, notes, console)
        await asking.all("before", held_out, "held-out questions, before", feedback=False)
        await asking.all("logged", logged, "logged questions", feedback=True)
        if not await _published(client):
            await _retrain(given, file, gateway.told[0], work)
        version, *others = await _published(client)
        if version.state == _REGISTERED:
            await client.set_version_traffic(version.version, "shadow")
        state = await asking.until_decided("swap", version.version, tried)
        await asking.all("after", held_out, "held-out questions, after", feedback=False)
        if not others:
            await client.register_version(publish_spoiled(work / "versions", version.version))
        _, bad = await _published(client)
        if bad.state == _REGISTERED:
            await client.set_version_traffic(bad.version, "canary", _CANARY_SHARE)
        bad_state = await asking.until_decided("spoiled", bad.version, tried_spoiled)
        decided = [MessageToDict(one) for one in await client.version_decisions()]
    figures = Figures(
        seed=given.seed,
        logged=asking.asked("logged"),
        before=asking.asked("before"),
        after=asking.asked("after"),
        steps_s=_seconds(work),
        swap=asking.asked("swap"),
        version_state=state,
        decisions=[one for one in decided if one["version"] == version.version],
        spoiled=asking.asked("spoiled"),
        spoiled_state=bad_state,
        spoiled_decisions=[one for one in decided if one["version"] == bad.version],
    )
    step.finish(msgspec.to_builtins(figures), [_NOTES])
    return figures


def _counts(given: argparse.Namespace) -> tuple[int, ...]:
    """Questions: held out, logged, and for each trial."""
    return given.held_out, given.questions, given.most, given.most


def _config(world: Path) -> Config:
    config = over(load_config(preset("mini")), world)
    gate = msgspec.structs.replace(config.versions.gate, canary_share=_CANARY_SHARE)
    return msgspec.structs.replace(config, versions=msgspec.structs.replace(config.versions, gate=gate))


async def _published(client: AsyncClient) -> list[ExecutorVersion]:
    """The versions that are on record as adapters, oldest first."""
    return sorted((one for one in await client.versions() if one.manifest_json), key=lambda one: one.version)


async def _retrain(given: argparse.Namespace, config: Path, address: str, work: Path) -> None:
    """`rolegate sft retrain`, in a process of its own. Raises `RolegateError` where it stops."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "executor_sft", "retrain", "--config", str(config), "--work", str(work / "retrain")),
        *("--evaluation", str(work / "held_out.jsonl"), "--address", address, "--recipe", given.recipe, "--yes"),
        *("--model", load_config(preset("mini")).engines["executor"].path, "--concurrency", str(given.in_flight)),
        stdout=sys.stderr,
    )
    if status := await process.wait():
        raise RolegateError(f"rolegate sft retrain ended with status {status}.")


def _seconds(work: Path) -> dict[str, float]:
    folders = [path.parent for path in sorted((work / "retrain").glob("*/manifest.json"))]
    return {folder.name: read_manifest(folder).seconds for folder in folders}


def _distinct(questions: Sequence[Question]) -> list[Question]:
    return list({question.text: question for question in questions}.values())


def _teller(console: Console) -> Log:
    return lambda step: console.print(step, style="dim")
