"""The whole loop, from logged traffic to a better executor in service, on a mini world whose names no model has seen.

The untuned executor serves behind a gateway over gRPC; clients ask and tell the right answers afterwards. `rolegate sft
retrain` makes a version of that, which works as shadow; the gate takes it to canary and to active while clients keep
asking. Then a spoiled version is let in as a canary, and the gate takes it out again.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.progress import Progress
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.executor_version_service_pb2 import ExecutorVersionState

from benchmarks.child import child
from benchmarks.mini_deployment import mini_deployment
from benchmarks.spoiled import publish_spoiled
from executor_sft.miniworld.config import over
from executor_sft.miniworld.export import export
from executor_sft.miniworld.questions import Question
from executor_sft.miniworld.world import World
from executor_sft.step import read_manifest
from router.errors import RolegateError
from router.scoring import exact_match
from serving.config_file import load_config, preset
from serving.engine import Tell
from serving.logs import errors_only
from serving.retrieval.atomic_file import write_atomically

_LAST_TRIALS_S = 10.0
"""What the last trials may take after the last answer."""
_ENDED = ("EXECUTOR_VERSION_STATE_ACTIVE", "EXECUTOR_VERSION_STATE_ROLLED_BACK")


class Asked(msgspec.Struct, frozen=True):
    """Some questions, one after the other or side by side."""

    questions: int
    right: int
    failed: int
    """Requests that ended in an error."""

    @property
    def exact_match(self) -> float:
        """The share of right answers."""
        return self.right / self.questions if self.questions else 0.0


class Figures(msgspec.Struct, frozen=True):
    """What was seen."""

    seed: int
    logged: Asked
    """With the untuned executor."""
    before: Asked
    """The held-out questions, before."""
    after: Asked
    """The same ones, with the version that was promoted."""
    retrain_s: float
    steps_s: dict[str, float]
    """Seconds of each step of the training."""
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
    return int(failed > 0 or (figures.version_state, figures.spoiled_state) != _ENDED)


async def _looped(given: argparse.Namespace, work: Path) -> Figures:
    console = Console(stderr=True)
    if (work / "runs.db").exists():
        raise RolegateError(f"{work}: holds another loop's runs and versions; name a new folder.")
    world, preset_mini = work / "world", load_config(preset("mini"))
    questions = _distinct(export(World(given.seed, "test"), world, given.questions + given.held_out + 2 * given.most))
    held_out, logged = questions[: given.held_out], questions[given.held_out :][: given.questions]
    fresh = iter(questions[given.held_out + given.questions :])
    lines = msgspec.json.Encoder().encode_lines(
        [{"id": one.id, "text": one.text, "answer": one.answer} for one in held_out]
    )
    write_atomically(work / "held_out.jsonl", lines)
    async with AsyncExitStack() as stack:
        deployment = mini_deployment(_teller(console), over(preset_mini, world), teacher=True)
        mini = await stack.enter_async_context(deployment)
        file = work / "rolegate.toml"
        mini.config(file, f"sqlite:///{work}/runs.db", versions=work / "versions")
        gateway = await stack.enter_async_context(child("benchmarks.gateway_child", str(file)))
        client = await stack.enter_async_context(AsyncClient(gateway.told[0]))
        asking = _Asking(client, given.in_flight, console)
        before = await asking.all(held_out, "held-out questions, before", feedback=False)
        told = await asking.all(logged, "logged questions", feedback=True)
        begun = time.monotonic()
        await _retrain(given, file, gateway.told[0], work)
        retrain_s = time.monotonic() - begun
        (version,) = [one.version for one in await client.versions() if one.manifest_json]
        swap, state = await asking.until_decided(version, fresh, given.most)
        after = await asking.all(held_out, "held-out questions, after", feedback=False)
        bad = publish_spoiled(work / "versions", version)
        await client.register_version(bad)
        await client.set_version_traffic(bad, "canary", 0.5)
        spoiled, bad_state = await asking.until_decided(bad, fresh, given.most)
        decided = [MessageToDict(one) for one in await client.version_decisions()]
    return Figures(
        given.seed,
        told,
        before,
        after,
        round(retrain_s, 1),
        _seconds(work),
        swap,
        state,
        [one for one in decided if one["version"] == version],
        spoiled,
        bad_state,
        [one for one in decided if one["version"] == bad],
    )


class _Asking:
    """Clients that ask, and tell the right answers."""

    def __init__(self, client: AsyncClient, in_flight: int, console: Console) -> None:
        self._client, self._in_flight, self._console = client, in_flight, console

    async def all(self, questions: Sequence[Question], title: str, *, feedback: bool) -> Asked:
        """Ask them all."""
        with Progress(console=self._console) as progress:
            waiting = iter(progress.track(questions, description=title))
            return await self._ask(waiting, feedback=feedback)

    async def until_decided(self, version: str, questions: Iterator[Question], most: int) -> tuple[Asked, str]:
        """Ask on until the gate has promoted the version or rolled it back; and what it came to."""
        ended = asyncio.Event()

        def wanted() -> Iterator[Question]:
            for question in itertools.islice(questions, most):
                if ended.is_set():
                    return
                yield question

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch(version, ended))
            asked = await self._ask(wanted(), feedback=True)
            if not ended.is_set():
                await asyncio.sleep(_LAST_TRIALS_S)
                ended.set()
        return asked, watching.result()

    async def _watch(self, version: str, ended: asyncio.Event) -> str:
        """The version's state, once it is one of `_ENDED`, or when all was asked."""
        while True:
            (state,) = [one.state for one in await self._client.versions() if one.version == version]
            name = ExecutorVersionState.Name(state)
            if name in _ENDED or ended.is_set():
                ended.set()
                return name
            await asyncio.sleep(1)

    async def _ask(self, questions: Iterator[Question], *, feedback: bool) -> Asked:
        tally: Counter[str] = Counter()

        async def keep_asking() -> None:
            for question in questions:
                tally["questions"] += 1
                try:
                    answer = await self._client.ask(question.text)
                    if feedback:
                        await self._client.feedback(answer.run_id, gold_answer=question.answer)
                    tally["right"] += exact_match(answer.answer, [question.answer])
                except GatewayError as error:
                    self._console.print(f"failed: {error}", style="red")
                    tally["failed"] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(keep_asking())
        return Asked(tally["questions"], tally["right"], tally["failed"])


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


def _teller(console: Console) -> Tell:
    return lambda step: console.print(step, style="dim")
