"""Life of an executor version in a real engine that answers questions meanwhile."""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import executor_version_service_pb2 as pb
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from serving.engines.versions import VersionManifest, base_sha256, write_version
from tests.end_to_end.adapter import write_adapter
from tests.end_to_end.conftest import Demo
from tests.end_to_end.test_demo import _questions
from tests.router.edge.wire import info_of

pytestmark = pytest.mark.asyncio(loop_scope="package")
_AT_ONCE = 3
NEW = "executor-000901"


def publish(demo: Demo, folder: Path, deviation: float, **changed: Any) -> str:
    """Publish a version whose weights are noise of this size; return its name, which is not that of
    the first version.
    """
    versions = Path(demo.config.versions.folder)
    (versions / "executor-000900").mkdir(parents=True, exist_ok=True)
    base = Path(demo.config.engines["executor"].path)
    write_adapter(base, folder, deviation)
    known: dict[str, Any] = {
        "base_model": "mini-executor",
        "base_sha256": base_sha256(base),
        **changed,
    }
    manifest = VersionManifest(
        version="",
        kind="adapter",
        rank=8,
        recipe={},
        data={},
        git_revision="",
        created_at="2026-01-01T00:00:00+00:00",
        files={},
        **known,
    )
    return write_version(versions, folder, manifest).name


class Clients:
    """Clients that ask one question after another."""

    def __init__(self, demo: Demo) -> None:
        self._stub = AnswerServiceStub(demo.channel)
        self._demo = demo
        self.failures: list[grpc.aio.AioRpcError] = []
        self.runs: list[str] = []
        self._answered = asyncio.Event()

    async def ask(self, number: int) -> None:
        """Ask until the test has finished."""
        for question in _questions(1000, single_search=True)[number::_AT_ONCE]:
            try:
                response = await self._stub.Answer(
                    answer_pb.AnswerRequest(question=question.text), timeout=120
                )
                self.runs.append(response.run_id)
            except grpc.aio.AioRpcError as error:
                self.failures.append(error)
            self._answered.set()

    async def next(self) -> None:
        """Wait for the next answer."""
        self._answered.clear()
        async with asyncio.timeout(120):
            await self._answered.wait()

    async def served_by(self, version: str) -> str:
        """Wait for a run that only this version served, and return it."""
        start = len(self.runs)
        while True:
            await self.next()
            for run in self.runs[start:]:
                if _executors(self._demo, run) == {version}:
                    return run


@asynccontextmanager
async def asking(demo: Demo) -> AsyncIterator[Clients]:
    """Run clients until the block ends, and let them finish their questions."""
    clients = Clients(demo)
    tasks = [asyncio.create_task(clients.ask(number)) for number in range(_AT_ONCE)]
    try:
        yield clients
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_version_enters_and_leaves_service_without_a_failure(
    demo: Demo, tmp_path: Path
) -> None:
    """It is registered, shadow, canary, active and rolled back while questions are asked.

    None fails, every run has a single version, and the rows have its name.
    """
    name = await asyncio.to_thread(publish, demo, tmp_path / "new", 1e-4)
    assert name == NEW
    stub = ExecutorVersionServiceStub(demo.channel)
    before = (await stub.ListExecutorVersions(pb.ListExecutorVersionsRequest())).versions
    (active,) = [
        version.version for version in before if version.state == pb.EXECUTOR_VERSION_STATE_ACTIVE
    ]

    async def traffic(state: pb.ExecutorVersionState, share: float = 0.0) -> None:
        request = pb.SetExecutorVersionTrafficRequest(version=name, state=state, canary_share=share)
        await stub.SetExecutorVersionTraffic(request, timeout=60)

    async def tried(clients: Clients, state: pb.ExecutorVersionState) -> None:
        while True:
            versions = (await stub.ListExecutorVersions(pb.ListExecutorVersionsRequest())).versions
            (version,) = [version for version in versions if version.version == name]
            assert version.state == state
            if version.figures.trials >= 3:
                return
            await clients.next()

    async with asking(demo) as clients:
        await clients.served_by(active)
        await stub.RegisterExecutorVersion(
            pb.RegisterExecutorVersionRequest(version=name), timeout=60
        )
        await traffic(pb.EXECUTOR_VERSION_STATE_SHADOW)
        await tried(clients, pb.EXECUTOR_VERSION_STATE_SHADOW)
        assert {version for run in clients.runs for version in _executors(demo, run)} == {active}
        await traffic(pb.EXECUTOR_VERSION_STATE_CANARY, 0.5)
        run = await clients.served_by(name)
        await RunServiceStub(demo.channel).SubmitFeedback(
            run_pb.SubmitFeedbackRequest(run_id=run, verdict=run_pb.VERDICT_ACCEPTED)
        )
        await clients.served_by(active)
        await tried(clients, pb.EXECUTOR_VERSION_STATE_CANARY)
        await stub.PromoteExecutorVersion(
            pb.PromoteExecutorVersionRequest(version=name), timeout=60
        )
        await clients.served_by(name)
        rolled_back = await stub.RollBackExecutorVersion(
            pb.RollBackExecutorVersionRequest(version=name), timeout=60
        )
        assert rolled_back.active.version == active
        await clients.served_by(active)
    assert not clients.failures
    assert all(len(_executors(demo, run)) <= 1 for run in clients.runs)
    decisions = await stub.ListExecutorVersionDecisions(
        pb.ListExecutorVersionDecisionsRequest(version=name)
    )
    decided = [decision.decision for decision in decisions.decisions if decision.decision != "wait"]
    assert decided == ["register", "shadow", "canary", "promote", "roll_back"]


async def test_costs_of_trials_are_recorded_separately(demo: Demo) -> None:
    """They have the tenant `shadow` and the purpose `shadow`.

    The ledger still equals the engines' counters.
    """
    rows = _read(demo, "SELECT DISTINCT tenant, purpose = 'shadow' FROM calls ORDER BY tenant")
    assert rows == [("default", 0), ("shadow", 1)]
    dimensions = [usage_pb.USAGE_DIMENSION_TENANT, usage_pb.USAGE_DIMENSION_EXECUTOR_VERSION]
    usage = UsageServiceStub(demo.channel)
    report = await usage.GetUsage(usage_pb.GetUsageRequest(group_by=dimensions))
    spent = {(row.tenant, row.executor_version): row.usage.completion_tokens for row in report.rows}
    assert spent["shadow", NEW] > 0
    assert spent["default", NEW] > 0
    reconciliations = (await usage.ReconcileUsage(usage_pb.ReconcileUsageRequest())).reconciliations
    good = (usage_pb.RECONCILIATION_VERDICT_EQUAL, usage_pb.RECONCILIATION_VERDICT_WITHIN_BOUNDS)
    assert [
        reconciliation for reconciliation in reconciliations if reconciliation.verdict not in good
    ] == []


async def test_the_gate_rolls_a_broken_version_back(demo: Demo, tmp_path: Path) -> None:
    """Its failures are enough for that, and no client gets any of them."""
    name = await asyncio.to_thread(publish, demo, tmp_path / "spoiled", 30.0)
    stub = ExecutorVersionServiceStub(demo.channel)
    await stub.RegisterExecutorVersion(pb.RegisterExecutorVersionRequest(version=name), timeout=60)
    shadow = pb.SetExecutorVersionTrafficRequest(
        version=name, state=pb.EXECUTOR_VERSION_STATE_SHADOW
    )
    await stub.SetExecutorVersionTraffic(shadow, timeout=60)
    request = pb.ListExecutorVersionDecisionsRequest(version=name)
    async with asking(demo) as clients:
        while True:
            *_, last = (await stub.ListExecutorVersionDecisions(request)).decisions
            if last.decision == "roll_back":
                break
            await clients.next()
    assert (last.decided_by, last.to_state) == ("gate", pb.EXECUTOR_VERSION_STATE_ROLLED_BACK)
    assert last.figures.failed > last.figures.active_failed
    assert not clients.failures
    assert all(name not in _executors(demo, run) for run in clients.runs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"base_model": "mini-backbone"}, "was trained on mini-backbone"),
        ({"base_sha256": "0" * 64}, "was trained on mini-executor (SHA-256 0000"),
    ],
)
async def test_a_version_of_another_base_is_refused(
    demo: Demo, tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    """It is not recorded."""
    name = await asyncio.to_thread(publish, demo, tmp_path / "other", 1e-4, **changed)
    stub = ExecutorVersionServiceStub(demo.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.RegisterExecutorVersion(
            pb.RegisterExecutorVersionRequest(version=name), timeout=60
        )
    assert info_of(caught.value).reason == "BAD_VERSION"
    assert message in (caught.value.details() or "")
    versions = (await stub.ListExecutorVersions(pb.ListExecutorVersionsRequest())).versions
    assert name not in [version.version for version in versions]


async def test_weights_that_the_engine_refuses_are_reported(demo: Demo, tmp_path: Path) -> None:
    """The manifest is wrong in this case; the error says what to do."""
    backbone = Path(demo.config.engines["backbone"].path)
    await asyncio.to_thread(write_adapter, backbone, tmp_path / "wide", 0.1)
    right = Path(demo.config.versions.folder) / await asyncio.to_thread(
        publish, demo, tmp_path / "right", 0.0
    )
    shutil.copyfile(
        tmp_path / "wide" / "adapter_model.safetensors",
        tmp_path / "right" / "adapter_model.safetensors",
    )
    manifest = VersionManifest(
        version="",
        kind="adapter",
        base_model="mini-executor",
        base_sha256="",
        recipe={},
        data={},
        git_revision="",
        created_at="2026-01-01T00:00:00+00:00",
        files={},
    )
    name = write_version(right.parent, tmp_path / "right", manifest).name
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ExecutorVersionServiceStub(demo.channel).RegisterExecutorVersion(
            pb.RegisterExecutorVersionRequest(version=name), timeout=60
        )
    assert "does not fit the engine's base model" in (caught.value.details() or "")


def _executors(demo: Demo, run_id: str) -> set[str]:
    """Return the executors of a run."""
    statement = (
        "SELECT DISTINCT executor_version FROM calls WHERE role = 'execution' AND run_id = ?"
    )
    return {version for (version,) in _read(demo, statement, run_id)}


def _read(demo: Demo, statement: str, *values: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(demo.database) as database:
        return database.execute(statement, values).fetchall()
