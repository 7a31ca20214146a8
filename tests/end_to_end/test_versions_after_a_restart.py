"""An engine is killed while it answers, and is restarted."""

import asyncio
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from rolegate.v1 import executor_version_service_pb2 as pb
from rolegate.v1 import usage_service_pb2 as usage_pb
from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from tests.end_to_end.conftest import Demo
from tests.end_to_end.test_versions import NEW, asking, publish
from tests.router.edge.wire import info_of

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_killed_engine_is_restarted_with_its_adapters(demo: Demo, tmp_path: Path) -> None:
    """Health is down meanwhile.

    Every question asked meanwhile ends with an answer or a typed error. Then the active version
    works again, and the ledger agrees with counters that began at 0.
    """
    versions = ExecutorVersionServiceStub(demo.channel)
    listed = (await versions.ListExecutorVersions(pb.ListExecutorVersionsRequest())).versions
    if NEW not in [version.version for version in listed]:
        await asyncio.to_thread(publish, demo, tmp_path / "new", 1e-4)
        await versions.RegisterExecutorVersion(
            pb.RegisterExecutorVersionRequest(version=NEW), timeout=60
        )
    await versions.PromoteExecutorVersion(pb.PromoteExecutorVersionRequest(version=NEW), timeout=60)
    stub: Any = HealthStub(demo.channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="rolegate.v1.ExecutionService"))

    async def heard(status: Any, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while (await watch.read()).status != status:
                pass

    await heard(health_pb2.HealthCheckResponse.SERVING, 30)
    async with asking(demo) as clients:
        await clients.served_by(NEW)
        os.killpg(_pid(demo.engines["engines.executor"]), signal.SIGKILL)
        await heard(health_pb2.HealthCheckResponse.NOT_SERVING, 30)
        await clients.next()
    assert {info_of(failure).reason for failure in clients.failures} <= {"UPSTREAM_UNAVAILABLE"}
    await heard(health_pb2.HealthCheckResponse.SERVING, 300)
    async with asking(demo) as clients:
        await clients.served_by(NEW)
    watch.cancel()
    await versions.RollBackExecutorVersion(
        pb.RollBackExecutorVersionRequest(version=NEW), timeout=60
    )
    async with asyncio.timeout(30):
        while _running(demo):  # noqa: ASYNC110 - the last ones were left by their clients
            await asyncio.sleep(0.1)
    reconciliations = (
        await UsageServiceStub(demo.channel).ReconcileUsage(usage_pb.ReconcileUsageRequest())
    ).reconciliations
    good = (usage_pb.RECONCILIATION_VERDICT_EQUAL, usage_pb.RECONCILIATION_VERDICT_WITHIN_BOUNDS)
    assert [
        reconciliation for reconciliation in reconciliations if reconciliation.verdict not in good
    ] == []


def _pid(base_url: str) -> int:
    """Return the process id of the engine's server."""
    port = base_url.removesuffix("/v1").rpartition(":")[2].encode()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        arguments = file.read_bytes().split(b"\0") if file.exists() else []
        if b"--port" in arguments and arguments[arguments.index(b"--port") + 1] == port:
            return int(file.parent.name)
    raise AssertionError(f"nothing serves at {base_url}")


def _running(demo: Demo) -> int:
    with sqlite3.connect(demo.database) as database:
        (count,) = database.execute("SELECT count(*) FROM runs WHERE status = 'running'").fetchone()
    return int(count)
