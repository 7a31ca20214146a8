"""The whole loop, from logged traffic to a better executor in service, on a mini world whose names
no model has seen.

The untuned executor serves behind a gateway over gRPC; clients ask and tell the right answers
afterwards. `rolegate sft retrain` makes a version of that, which works as shadow; the gate takes it
to canary and to active while clients keep asking. Then a degraded version is let in as a canary,
and the gate takes it out again.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from google.protobuf.json_format import MessageToDict
from msgspec import Meta
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.executor_version_service_pb2 import ExecutorVersionState

from benchmarks import harness
from benchmarks.gateway import gateway
from benchmarks.harness import Check, work_folder
from benchmarks.load import in_flight
from benchmarks.mini_deployment import mini_deployment
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.questions import Question
from executor_sft.miniworld.world import World
from executor_sft.step import read_manifest
from router.background import background_tasks
from router.errors import RolegateError
from router.protocol import exact_match
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.engines.versions import MANIFEST, verified, write_version
from serving.files import write_atomically
from serving.terminal import complain

Stage = Literal["before", "logged", "swap", "after", "degraded"]
ENDED = ("EXECUTOR_VERSION_STATE_ACTIVE", "EXECUTOR_VERSION_STATE_ROLLED_BACK")
"""States of a version that the gate has decided on."""
_WEIGHTS = "adapter_model.safetensors"
_LAST_TRIALS_S = 10.0
"""Time for the last trials after the last answer."""
_CANARY_SHARE = 0.5
"""Of the questions; with the default, three fifths of them would be no trial."""
_NOISE = 2
"""Noise over the weights themselves, by their standard deviations. Once, the mini executor is as
good as before; twice, three quarters of its turns are right; three times, none is.
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
    """Figures of the loop."""

    checks: list[Check]
    asked: list[Asked]
    steps_s: dict[str, float]
    """Seconds of each step of `retrain`."""
    decisions: dict[str, list[dict[str, object]]]
    """By version."""


class Asking:
    """Clients that ask, and tell the right answers."""

    def __init__(self, client: AsyncClient, at_once: int) -> None:
        self._client = client
        self._at_once = at_once

    async def all(self, stage: Stage, questions: Iterable[Question], *, feedback: bool) -> Asked:
        """Ask all questions of a stage; their sums."""
        right = failed = 0

        async def ask(question: Question) -> None:
            nonlocal right, failed
            try:
                answer = await self._client.ask(question.text)
                if feedback:
                    await self._client.feedback(answer.run_id, right_answer=question.answer)
                right += exact_match(answer.answer, [question.answer])
            except GatewayError as error:
                complain(f"failed: {error}")
                # Which is a model's own way to be wrong
                failed += error.reason != "MALFORMED_OUTPUT"

        count = len(await in_flight(ask, questions, self._at_once, f"questions, {stage}"))
        return Asked(stage, count, right, failed, right / count if count else 0.0)

    async def until_decided(
        self, stage: Stage, version: str, questions: Sequence[Question]
    ) -> tuple[str, Asked]:
        """Ask until the gate has promoted the version or rolled it back, or all was asked; the
        version's state.
        """
        ended = asyncio.Event()

        async def watch() -> None:
            while True:
                if await self._state(version) in ENDED:
                    ended.set()
                await asyncio.sleep(1)

        async with background_tasks(watch()):
            asked = await self.all(
                stage, takewhile(lambda _: not ended.is_set(), questions), feedback=True
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _LAST_TRIALS_S)
        return await self._state(version), asked

    async def _state(self, version: str) -> str:
        (state,) = [one.state for one in await self._client.versions() if one.version == version]
        return ExecutorVersionState.Name(state)


async def measure(options: Options) -> Figures:
    """Go through the loop. Raises `RolegateError`."""
    counts = options.held_out, options.questions, options.most, options.most
    async with AsyncExitStack() as stack:
        work = stack.enter_context(work_folder(options.work))
        exported = export(World(options.seed, "test"), work / "world", sum(counts))
        parts = iter({question.text: question for question in exported}.values())
        held_out, logged, tried, tried_degraded = (list(islice(parts, count)) for count in counts)
        rows = [
            {"id": one.id, "question": one.text, "golden_answers": [one.answer]} for one in held_out
        ]
        write_atomically(work / "held_out.jsonl", msgspec.json.Encoder().encode_lines(rows))
        file = work / "rolegate.toml"
        mini = await stack.enter_async_context(mini_deployment(_config(work), teacher=True))
        mini.config(file, versions=work / "versions")
        address = (await stack.enter_async_context(gateway(file))).words[0]
        client = await stack.enter_async_context(AsyncClient(address))
        asking = Asking(client, options.in_flight)
        before = await asking.all("before", held_out, feedback=False)
        traffic = await asking.all("logged", logged, feedback=True)
        await _retrain(options, file, address, work)
        (better,) = [one.version for one in await client.versions() if one.manifest_json]
        await client.set_version_traffic(better, "shadow")
        state, swap = await asking.until_decided("swap", better, tried)
        after = await asking.all("after", held_out, feedback=False)
        degraded = publish_degraded(work / "versions", better)
        await client.register_version(degraded)
        await client.set_version_traffic(degraded, "canary", _CANARY_SHARE)
        bad_state, bad = await asking.until_decided("degraded", degraded, tried_degraded)
        decided = [MessageToDict(one) for one in await client.version_decisions()]
        folders = [path.parent for path in sorted((work / "retrain").glob("*/manifest.json"))]
        steps_s = {folder.name: read_manifest(folder).seconds for folder in folders}
    asked = [before, traffic, swap, after, bad]
    failed = sum(one.failed for one in asked)
    checks = [
        Check("no request fails", failed == 0, f"{failed} failed"),
        Check("the better version is promoted", state == ENDED[0], state),
        Check("the degraded version is rolled back", bad_state == ENDED[1], bad_state),
    ]
    decisions = {
        name: [one for one in decided if one["version"] == name] for name in (better, degraded)
    }
    return Figures(checks, asked, steps_s, decisions)


def _config(work: Path) -> Config:
    config = over(load_config(preset("mini")), work / "world")
    gate = msgspec.structs.replace(config.versions.gate, canary_share=_CANARY_SHARE)
    held_out = str((work / "held_out.jsonl").resolve())
    versions = msgspec.structs.replace(config.versions, held_out=held_out, gate=gate)
    return msgspec.structs.replace(config, versions=versions)


async def _retrain(options: Options, config: Path, address: str, work: Path) -> None:
    """Run `rolegate sft retrain` in a process of its own. Raises `RolegateError` where it stops."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "executor_sft",
            "retrain",
            "--config",
            str(config),
            "--work",
            str(work / "retrain"),
        ),
        *(
            "--evaluation",
            str(work / "held_out.jsonl"),
            "--address",
            address,
            "--recipe",
            options.recipe,
            "--yes",
        ),
        *(
            "--model",
            load_config(preset("mini")).engines["executor"].path,
            "--concurrency",
            str(options.in_flight),
        ),
        stdout=sys.stderr,
    )
    if status := await process.wait():
        raise RolegateError(f"rolegate sft retrain ended with status {status}.")


def publish_degraded(versions: Path, version: str) -> str:
    """Publish a copy of `version` with noise in its weights; its name."""
    import torch
    from safetensors.torch import load_file, save_file

    manifest = verified(versions / version)
    chance = torch.Generator().manual_seed(0)

    def noisy(weight: torch.Tensor) -> torch.Tensor:
        noise = _NOISE * weight.float().std() * torch.randn(weight.shape, generator=chance)
        return weight + noise.to(weight.dtype)

    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder) / "model"
        shutil.copytree(versions / version, content, ignore=shutil.ignore_patterns(MANIFEST))
        weights = load_file(content / _WEIGHTS)
        save_file({name: noisy(weight) for name, weight in weights.items()}, content / _WEIGHTS)
        return write_version(versions, content, manifest).name
