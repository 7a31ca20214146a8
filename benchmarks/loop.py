"""The whole loop, from logged traffic to a better executor in service, on a mini world whose names no model has seen.

The untuned executor serves behind a gateway over gRPC; clients ask and tell the right answers afterwards. `rolegate sft
retrain` makes a version of that, which works as shadow; the gate takes it to canary and to active while clients keep
asking. Then a degraded version is let in as a canary, and the gate takes it out again. A loop that was stopped goes on
in its folder where it was.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
from google.protobuf.json_format import MessageToDict
from msgspec import Meta
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.executor_version_service_pb2 import ExecutorVersion, ExecutorVersionState
from safetensors.torch import load_file, save_file

from benchmarks import harness
from benchmarks.gateway import gateway
from benchmarks.harness import Check, tell, work_folder
from benchmarks.load import in_flight
from benchmarks.mini_deployment import mini_deployment
from executor_sft.jsonl import JsonlFile
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.questions import Question
from executor_sft.miniworld.world import World
from executor_sft.step import Step, read_manifest
from router.errors import RolegateError
from router.protocol.scoring import exact_match
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.engines.versions import MANIFEST, verified, write_version
from serving.files import write_atomically

Stage = Literal["before", "logged", "swap", "after", "degraded"]
ENDED = ("EXECUTOR_VERSION_STATE_ACTIVE", "EXECUTOR_VERSION_STATE_ROLLED_BACK")
"""States of a version that the gate has decided on."""
_REGISTERED = ExecutorVersionState.EXECUTOR_VERSION_STATE_REGISTERED
_NOTES, _WEIGHTS = "asked.jsonl", "adapter_model.safetensors"
_LAST_TRIALS_S = 10.0
"""Time for the last trials after the last answer."""
_CANARY_SHARE = 0.5
"""Of the questions; with the default, most of them would be no trial."""
_NOISE = 2
"""Noise over the weights themselves, by their standard deviations. Once, the mini executor is as good as before; twice,
three quarters of its turns are right; three times, none is.
"""


class Options(harness.Options, frozen=True, kw_only=True):
    """Its options."""

    seed: Annotated[int, Meta(description="of the world")] = 31
    questions: Annotated[int, Meta(ge=1, description="logged ones")] = 500
    held_out: Annotated[int, Meta(ge=1, description="for exact match before and after")] = 200
    most: Annotated[int, Meta(ge=1, description="questions for each trial")] = 1500
    in_flight: Annotated[int, Meta(ge=1, description="questions at once")] = 8
    recipe: Annotated[str, Meta(description="of the training")] = "mini"
    work: Annotated[Path, Meta(description="keeps the steps' folders")] | None = None


class Asked(msgspec.Struct, frozen=True):
    """Questions of a stage."""

    stage: Stage
    questions: int
    right: int
    failed: int
    """Requests that ended in an error."""
    exact_match: float


class Figures(msgspec.Struct, frozen=True):
    """What was seen of the loop."""

    checks: list[Check]
    asked: list[Asked]
    steps_s: dict[str, float]
    """Seconds of each step of `retrain`."""
    decisions: dict[str, list[dict[str, object]]]
    """By version."""


class Noted(msgspec.Struct, frozen=True):
    """A line of the notes: one request, when it has ended."""

    stage: Stage
    question_id: str
    right: bool
    failed: bool


class Asking:
    """Clients that ask, and tell the right answers; what is noted is not asked again."""

    def __init__(self, client: AsyncClient, at_once: int, notes: JsonlFile) -> None:
        self._client, self._at_once, self._notes = client, at_once, notes
        self._noted = [msgspec.json.decode(line, type=Noted) for line in notes.lines()]

    def asked(self, stage: Stage) -> Asked:
        """The sums of a stage."""
        noted = [each for each in self._noted if each.stage == stage]
        right, failed = sum(each.right for each in noted), sum(each.failed for each in noted)
        return Asked(stage, len(noted), right, failed, right / len(noted) if noted else 0.0)

    async def all(self, stage: Stage, questions: Sequence[Question], *, feedback: bool) -> None:
        """Ask all questions of a stage."""
        await self._ask(stage, self._left(stage, questions), feedback=feedback)

    async def until_decided(self, stage: Stage, version: str, questions: Sequence[Question]) -> str:
        """Ask until the gate has promoted the version or rolled it back, or all was asked; the version's state."""
        ended = asyncio.Event()
        if (state := await self._state(version)) in ENDED:
            return state

        def wanted() -> Iterator[Question]:
            for question in self._left(stage, questions):
                if ended.is_set():
                    return
                yield question

        async def watch() -> str:
            while True:
                state = await self._state(version)
                if state in ENDED or ended.is_set():
                    ended.set()
                    return state
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            await self._ask(stage, wanted(), feedback=True)
            if not ended.is_set():
                await asyncio.sleep(_LAST_TRIALS_S)
                ended.set()
        return watching.result()

    async def _state(self, version: str) -> str:
        (state,) = [one.state for one in await self._client.versions() if one.version == version]
        return ExecutorVersionState.Name(state)

    def _left(self, stage: Stage, questions: Sequence[Question]) -> list[Question]:
        noted = {each.question_id for each in self._noted if each.stage == stage}
        return [question for question in questions if question.id not in noted]

    async def _ask(self, stage: Stage, questions: Sequence[Question] | Iterator[Question], *, feedback: bool) -> None:
        async def ask(question: Question) -> None:
            right = failed = False
            try:
                answer = await self._client.ask(question.text)
                if feedback:
                    await self._client.feedback(answer.run_id, gold_answer=question.answer)
                right = exact_match(answer.answer, [question.answer])
            except GatewayError as error:
                tell(f"failed: {error}")
                failed = error.reason != "MALFORMED_OUTPUT"  # which is a model's own way to be wrong
            self._noted.append(Noted(stage, question.id, right, failed))
            self._notes.append(msgspec.json.encode(self._noted[-1]))

        await in_flight(ask, questions, self._at_once, f"questions, {stage}")


async def measure(options: Options) -> Figures:
    """Go through the loop. Raises `RolegateError`."""
    with work_folder(options.work) as work:
        settings = msgspec.structs.asdict(msgspec.structs.replace(options, work=None, in_flight=0))
        step = Step.begin(work, "loop", {}, settings)
        if done := step.finished:
            return msgspec.convert(done.figures, Figures)
        figures = await _looped(options, work)
        step.finish(msgspec.to_builtins(figures), [_NOTES])
        return figures


async def _looped(options: Options, work: Path) -> Figures:
    counts = options.held_out, options.questions, options.most, options.most
    exported = export(World(options.seed, "test"), work / "world", sum(counts))
    parts = iter({question.text: question for question in exported}.values())
    held_out, logged, tried, tried_degraded = (list(islice(parts, count)) for count in counts)
    rows = [{"id": one.id, "text": one.text, "answer": one.answer} for one in held_out]
    write_atomically(work / "held_out.jsonl", msgspec.json.Encoder().encode_lines(rows))
    file = work / "rolegate.toml"
    async with AsyncExitStack() as stack:
        notes = stack.enter_context(closing(JsonlFile(work / _NOTES)))
        mini = await stack.enter_async_context(mini_deployment(tell, _config(work / "world"), teacher=True))
        mini.config(file, f"sqlite:///{work}/runs.db", versions=work / "versions")
        address = (await stack.enter_async_context(gateway(file))).words[0]
        client = await stack.enter_async_context(AsyncClient(address))
        asking = Asking(client, options.in_flight, notes)
        await asking.all("before", held_out, feedback=False)
        await asking.all("logged", logged, feedback=True)
        if not await _published(client):
            await _retrain(options, file, address, work)
        version, *others = await _published(client)
        if version.state == _REGISTERED:
            await client.set_version_traffic(version.version, "shadow")
        state = await asking.until_decided("swap", version.version, tried)
        await asking.all("after", held_out, feedback=False)
        if not others:
            await client.register_version(publish_degraded(work / "versions", version.version))
        _, bad = await _published(client)
        if bad.state == _REGISTERED:
            await client.set_version_traffic(bad.version, "canary", _CANARY_SHARE)
        bad_state = await asking.until_decided("degraded", bad.version, tried_degraded)
        decided = [MessageToDict(one) for one in await client.version_decisions()]
    stages: tuple[Stage, ...] = "before", "logged", "swap", "after", "degraded"
    asked = [asking.asked(stage) for stage in stages]
    failed = sum(one.failed for one in asked)
    checks = [
        Check("no request fails", failed == 0, f"{failed} failed"),
        Check("the better version is promoted", state == ENDED[0], state),
        Check("the degraded version is rolled back", bad_state == ENDED[1], bad_state),
    ]
    folders = [path.parent for path in sorted((work / "retrain").glob("*/manifest.json"))]
    decisions = {name: [one for one in decided if one["version"] == name] for name in (version.version, bad.version)}
    return Figures(checks, asked, {folder.name: read_manifest(folder).seconds for folder in folders}, decisions)


def _config(world: Path) -> Config:
    config = over(load_config(preset("mini")), world)
    gate = msgspec.structs.replace(config.versions.gate, canary_share=_CANARY_SHARE)
    return msgspec.structs.replace(config, versions=msgspec.structs.replace(config.versions, gate=gate))


async def _published(client: AsyncClient) -> list[ExecutorVersion]:
    """The versions that are on record as adapters, oldest first."""
    return sorted((one for one in await client.versions() if one.manifest_json), key=lambda one: one.version)


async def _retrain(options: Options, config: Path, address: str, work: Path) -> None:
    """Run `rolegate sft retrain` in a process of its own. Raises `RolegateError` where it stops."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "executor_sft", "retrain", "--config", str(config), "--work", str(work / "retrain")),
        *("--evaluation", str(work / "held_out.jsonl"), "--address", address, "--recipe", options.recipe, "--yes"),
        *("--model", load_config(preset("mini")).engines["executor"].path, "--concurrency", str(options.in_flight)),
        stdout=sys.stderr,
    )
    if status := await process.wait():
        raise RolegateError(f"rolegate sft retrain ended with status {status}.")


def publish_degraded(versions: Path, version: str, seed: int = 0) -> str:
    """Publish a copy of `version` with noise in its weights; its name."""
    manifest, chance = verified(versions / version), torch.Generator().manual_seed(seed)

    def noisy(weight: torch.Tensor) -> torch.Tensor:
        noise = _NOISE * weight.float().std() * torch.randn(weight.shape, generator=chance)
        return weight + noise.to(weight.dtype)

    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder) / "model"
        shutil.copytree(versions / version, content, ignore=shutil.ignore_patterns(MANIFEST))
        weights = load_file(content / _WEIGHTS)
        save_file({name: noisy(weight) for name, weight in weights.items()}, content / _WEIGHTS)
        return write_version(versions, content, manifest).name
