"""Run the whole training loop, from stored runs to a better executor in production. The questions
are about a mini world whose names no model has seen.

1. A gateway serves the untuned executor. Clients ask questions and send the right answers as
   feedback.
2. `rolegate sft retrain` trains a version from these runs. The version starts as a shadow, which
   repeats finished runs. While clients keep asking, the gate (a statistical test in the gateway)
   makes the version a canary, which serves a share of the runs, and then the active version.
3. A version that was degraded on purpose starts as a canary, and the gate rolls it back.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Literal

from google.protobuf.json_format import MessageToDict
from msgspec.structs import replace
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1.executor_version_service_pb2 import ExecutorVersionState

from benchmarks import harness
from benchmarks.gateway import gateway
from benchmarks.harness import Check, run_sft, work_folder
from benchmarks.load import in_flight
from benchmarks.mini_deployment import mini_deployment
from executor_sft.command import Count
from executor_sft.jsonl import write_jsonl
from executor_sft.miniworld.export import export, over
from executor_sft.miniworld.questions import MiniQuestion
from executor_sft.miniworld.world import World
from router.background import background_tasks
from router.frozen import Frozen
from router.protocol import exact_match
from serving.config.config import Config
from serving.config.file import load_config, preset
from serving.engines.versions import MANIFEST, verified, write_version
from serving.terminal import complain

Stage = Literal["before", "logged", "swap", "after", "degraded"]
"""Stages in which questions are asked. `before`: held-out questions, answered with the untuned
executor. `logged`: questions whose runs are the training data. `swap`: while the gate decides about
the trained version. `after`: held-out questions, answered with the trained version. `degraded`:
while the gate decides about the degraded version.
"""
ENDED = ("EXECUTOR_VERSION_STATE_ACTIVE", "EXECUTOR_VERSION_STATE_ROLLED_BACK")
"""States of a version after the gate's decision: promoted, or rolled back."""
_WORLD = 31
"""Seed of the world."""
_WEIGHTS = "adapter_model.safetensors"
_LAST_TRIALS_S = 10.0
"""Max seconds to wait for the gate's decision after the last answer."""
_CANARY_SHARE = 0.5
"""Share of the questions that the canary (the version on trial) works on. At 0.5, every question
counts in the comparison of the two versions. At the default of 0.2, only two fifths count: the
questions of the canary, and equally many of the active version.
"""
_NOISE = 2
"""Standard deviation of the noise that degrades a version, relative to the standard deviation of
the weights. At 1, the mini executor is as good as without noise; at 2, three quarters of its turns
are right; at 3, no turn is right.
"""


class Options(harness.Options):
    """Options of the benchmark."""

    questions: Count = 500
    """number of questions whose runs are the training data"""
    held_out: Count = 200
    """number of held-out questions, which are asked before and after the training"""
    max_questions: Count = 1500
    """max number of questions to ask until the gateway has promoted the trained version, and as
    many until it has rolled back the bad version
    """
    in_flight: Count = 8
    """number of questions to ask at the same time"""
    work: Path | None = None
    """folder for the world, the training steps and the versions (default: a temporary folder)"""


class StageScores(Frozen):
    """Results of the questions of one stage."""

    stage: Stage
    questions: int
    right: int
    failed: int
    """Number of requests that ended with an error. Malformed output of a model counts as a wrong
    answer instead.
    """
    exact_match: float
    """Share of right answers."""


class Figures(Frozen):
    """Checks, results of each stage, and the gate's decisions about versions."""

    checks: list[Check]
    asked: list[StageScores]
    decisions: dict[str, list[dict[str, object]]]
    """Decisions of the gate, by version."""


class QuestionRunner(Frozen):
    """Client that asks questions and sends their right answers as feedback."""

    client: AsyncClient
    concurrency: int

    async def all(
        self, stage: Stage, questions: Iterable[MiniQuestion], *, feedback: bool
    ) -> StageScores:
        """Ask all questions of a stage, and return their results. `feedback`: also send the right
        answer to each question.
        """
        right = 0
        failed = 0

        async def ask(question: MiniQuestion) -> None:
            nonlocal right, failed
            try:
                answer = await self.client.ask(question.text)
                if feedback:
                    await self.client.feedback(answer.run_id, right_answer=question.answer)
                right += exact_match(answer.answer, [question.answer])
            except GatewayError as error:
                complain(f"a question failed: {error}")
                # Malformed output is a wrong answer, not a failed request
                failed += error.reason != "MALFORMED_OUTPUT"

        count = len(await in_flight(ask, questions, self.concurrency, f"questions, {stage}"))
        return StageScores(
            stage,
            count,
            right,
            failed,
            right / count if count else 0.0,
        )

    async def until_decided(
        self,
        stage: Stage,
        version: str,
        questions: Sequence[MiniQuestion],
    ) -> tuple[str, StageScores]:
        """Ask questions until the gate has promoted or rolled back the version, or until no
        question is left. Return the version's state, and the results of the questions.
        """
        decided = asyncio.Event()

        async def watch() -> None:
            while True:
                if await self._state(version) in ENDED:
                    decided.set()
                await asyncio.sleep(1)

        async with background_tasks(watch()):
            asked = await self.all(
                stage, takewhile(lambda _: not decided.is_set(), questions), feedback=True
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(decided.wait(), _LAST_TRIALS_S)
        return await self._state(version), asked

    async def _state(self, version: str) -> str:
        states = {known.version: known.state for known in await self.client.versions()}
        return ExecutorVersionState.Name(states[version])


async def measure(options: Options) -> Figures:
    """Run the whole loop. Raises `RolegateError` if a step fails."""
    async with AsyncExitStack() as stack:
        work = stack.enter_context(work_folder(options.work))
        held_out, logged, tried, tried_degraded = _write_questions(work, options)
        file = work / "rolegate.toml"
        mini = await stack.enter_async_context(mini_deployment(_config(work), teacher=True))
        mini.config(file, versions=work / "versions")
        address = (await stack.enter_async_context(gateway(file))).words[0]
        client = await stack.enter_async_context(AsyncClient(address))
        asking = QuestionRunner(client, options.in_flight)

        before = await asking.all("before", held_out, feedback=False)
        traffic = await asking.all("logged", logged, feedback=True)
        await run_sft(
            "retrain",
            "--yes",
            f"--config={file}",
            f"--work={work / 'retrain'}",
            f"--evaluation={work / 'held_out.jsonl'}",
            f"--address={address}",
            f"--model={load_config(preset('mini')).engines['executor'].path}",
            f"--concurrency={options.in_flight}",
        )
        versions = await client.versions()
        (better,) = [version.version for version in versions if version.manifest_json]
        await client.set_version_traffic(better, "shadow")
        state, swap = await asking.until_decided("swap", better, tried)
        after = await asking.all("after", held_out, feedback=False)

        degraded = publish_degraded(work / "versions", better)
        await client.register_version(degraded)
        await client.set_version_traffic(degraded, "canary", _CANARY_SHARE)
        bad_state, bad = await asking.until_decided("degraded", degraded, tried_degraded)

        logged_decisions = list(map(MessageToDict, await client.version_decisions()))

    asked = [before, traffic, swap, after, bad]
    failed = sum(stage.failed for stage in asked)
    checks = [
        Check("no request fails", failed == 0, f"{failed} failed"),
        Check("the better version is promoted", state == ENDED[0], state),
        Check("the degraded version is rolled back", bad_state == ENDED[1], bad_state),
    ]
    decisions = {
        name: [decision for decision in logged_decisions if decision["version"] == name]
        for name in (better, degraded)
    }
    return Figures(checks, asked, decisions)


def _write_questions(work: Path, options: Options) -> list[list[MiniQuestion]]:
    """Write the world and the held-out questions. Return four lists: held-out questions, questions
    for training, questions to ask while the gate decides about the trained version, and questions
    to ask while it decides about the degraded version.
    """
    counts = options.held_out, options.questions, options.max_questions, options.max_questions
    exported = export(World(_WORLD, "test"), work / "world", sum(counts))
    unique = iter({question.text: question for question in exported}.values())
    stages = [list(islice(unique, count)) for count in counts]
    rows = [
        {"id": question.id, "question": question.text, "golden_answers": [question.answer]}
        for question in stages[0]
    ]
    write_jsonl(work / "held_out.jsonl", rows)
    return stages


def _config(work: Path) -> Config:
    config = over(load_config(preset("mini")), work / "world")
    gate = replace(config.versions.gate, canary_share=_CANARY_SHARE)
    held_out = str((work / "held_out.jsonl").resolve())
    versions = replace(config.versions, held_out=held_out, gate=gate)
    return replace(config, versions=versions)


def publish_degraded(versions: Path, version: str) -> str:
    """Publish a copy of `version` with noise added to its weights, and return the copy's name.
    `versions`: folder of published versions.
    """
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
