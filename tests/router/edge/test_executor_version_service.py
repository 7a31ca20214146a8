"""The service of executor versions over a real channel."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolegate.v1 import executor_version_service_pb2 as pb
from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceStub
from structlog.testing import capture_logs

from router.administration import Auditor
from router.edge.grpc.server import Server
from router.edge.grpc.services import ExecutorVersionServicer
from router.errors import BadVersion
from router.store import Database, SQLAccounts, SQLVersionBook
from router.versions import GateRule, Versions
from router.versions.book import Judgement, Side, Trial
from tests.router.edge.wire import refusal, served
from tests.router.store.stored import put, run

if TYPE_CHECKING:
    from rolegate.v1.executor_version_service_pb2_grpc import ExecutorVersionServiceAsyncStub

BASE = "mini-executor"
FIRST = "executor-000001"


async def load(name: str) -> str:
    if name != FIRST:
        raise BadVersion(f"{name}: is missing; publish the version again.")
    return '{"rank":8}'


@asynccontextmanager
async def stub_over(
    folder: Path,
) -> AsyncIterator[tuple["ExecutorVersionServiceAsyncStub", Database]]:
    """Open a stub of a service over a store with an active base, and the store."""
    database = await Database.open(f"sqlite:///{folder / 'versions.db'}")
    versions = Versions(SQLVersionBook(database), load, GateRule(0.05, 0.05, 2.0, 10_000))
    await versions.ensure_base(BASE)
    server = Server(
        None, None, ExecutorVersionServicer(versions, Auditor(SQLAccounts(database), "grpc"))
    )
    async with served(server) as channel:
        yield ExecutorVersionServiceStub(channel), database
    await database.close()


async def test_a_version_is_registered_tried_promoted_and_rolled_back(tmp_path: Path) -> None:
    """Each response has the new state."""
    async with stub_over(tmp_path) as (stub, _):
        registered = (
            await stub.RegisterExecutorVersion(pb.RegisterExecutorVersionRequest(version=FIRST))
        ).version
        assert (registered.version, registered.state, registered.manifest_json) == (
            FIRST,
            pb.EXECUTOR_VERSION_STATE_REGISTERED,
            '{"rank":8}',
        )
        assert registered.state_time == registered.register_time
        assert not registered.HasField("figures")
        canary = pb.SetExecutorVersionTrafficRequest(
            version=FIRST, state=pb.EXECUTOR_VERSION_STATE_CANARY, canary_share=0.25
        )
        tried = (await stub.SetExecutorVersionTraffic(canary)).version
        assert (tried.state, tried.canary_share) == (pb.EXECUTOR_VERSION_STATE_CANARY, 0.25)
        assert tried.figures.trials == 0 and tried.HasField("figures")
        active = (
            await stub.PromoteExecutorVersion(pb.PromoteExecutorVersionRequest(version=FIRST))
        ).version
        assert (active.state, active.canary_share) == (pb.EXECUTOR_VERSION_STATE_ACTIVE, 0.0)
        restored = (
            await stub.RollBackExecutorVersion(pb.RollBackExecutorVersionRequest(version=FIRST))
        ).active
        assert (restored.version, restored.state) == (BASE, pb.EXECUTOR_VERSION_STATE_ACTIVE)
        versions = (await stub.ListExecutorVersions(pb.ListExecutorVersionsRequest())).versions
        assert [
            (version.version, pb.ExecutorVersionState.Name(version.state)) for version in versions
        ] == [
            (FIRST, "EXECUTOR_VERSION_STATE_ROLLED_BACK"),
            (BASE, "EXECUTOR_VERSION_STATE_ACTIVE"),
        ]


async def test_a_candidate_has_all_its_figures(tmp_path: Path) -> None:
    """Evidence is given by measure."""
    async with stub_over(tmp_path) as (stub, database):
        await stub.RegisterExecutorVersion(pb.RegisterExecutorVersionRequest(version=FIRST))
        shadow = pb.SetExecutorVersionTrafficRequest(
            version=FIRST, state=pb.EXECUTOR_VERSION_STATE_SHADOW
        )
        since = (
            await stub.SetExecutorVersionTraffic(shadow)
        ).version.state_time.ToNanoseconds() / 1e9
        await put(database, run("run-1"), run("run-2"))
        book = SQLVersionBook(database)
        for run_id, failed in (("run-1", False), ("run-2", True)):
            sides = Side("a", failed, 120), Side("b", False, 100)
            await book.add_trial(Trial(run_id, FIRST, BASE, "shadow", False, *sides, since + 1))
        await book.judge("run-1", Judgement(True, False, "judge"))
        (version, base) = (
            await stub.ListExecutorVersions(pb.ListExecutorVersionsRequest())
        ).versions
        assert not base.HasField("figures")
        figures = version.figures
        assert (figures.trials, figures.judged, figures.right, figures.active_right) == (2, 1, 1, 0)
        assert (figures.failed, figures.active_failed, figures.tokens, figures.active_tokens) == (
            1,
            0,
            240,
            200,
        )
        assert [evidence.measure for evidence in figures.evidence] == [
            "correctness",
            "failures",
            "tokens",
        ]
        assert list(figures.sources) == [pb.EvidenceSource(source="judge", decisive=1, counted=1)]
        assert figures.evidence[0].in_favour > 1 > figures.evidence[0].against
        assert figures.evidence[1].in_favour < 1 < figures.evidence[1].against


async def test_decisions_can_be_filtered_by_version_and_number(tmp_path: Path) -> None:
    async with stub_over(tmp_path) as (stub, _):
        await stub.RegisterExecutorVersion(pb.RegisterExecutorVersionRequest(version=FIRST))
        await stub.PromoteExecutorVersion(pb.PromoteExecutorVersionRequest(version=FIRST))

        async def list_decisions(**filters: Any) -> list[tuple[int, str, str]]:
            request = pb.ListExecutorVersionDecisionsRequest(**filters)
            decisions = (await stub.ListExecutorVersionDecisions(request)).decisions
            assert all(
                decision.decided_by == "operator" and decision.time.seconds > 1e9
                for decision in decisions
            )
            return [
                (decision.number, decision.version, decision.decision) for decision in decisions
            ]

        retired = (4, BASE, "retire")
        promoted = (5, FIRST, "promote")
        assert await list_decisions(after_number=2) == [(3, FIRST, "register"), retired, promoted]
        assert await list_decisions(version=FIRST) == [(3, FIRST, "register"), promoted]
        assert await list_decisions(version="nobody") == []
        request = pb.ListExecutorVersionDecisionsRequest(after_number=2)
        registered, retires, _ = (await stub.ListExecutorVersionDecisions(request)).decisions
        assert (registered.from_state, registered.to_state) == (
            pb.EXECUTOR_VERSION_STATE_UNSPECIFIED, pb.EXECUTOR_VERSION_STATE_REGISTERED
        )  # fmt: skip
        assert (retires.from_state, retires.to_state) == (
            pb.EXECUTOR_VERSION_STATE_ACTIVE, pb.EXECUTOR_VERSION_STATE_RETIRED
        )  # fmt: skip
        assert retires.reason == f"{FIRST} is active now."


async def test_refusals_distinguish_bad_requests_from_bad_versions(tmp_path: Path) -> None:
    """The codes are INVALID_ARGUMENT and FAILED_PRECONDITION."""
    bad = "INVALID_ARGUMENT", "BAD_REQUEST"
    async with stub_over(tmp_path) as (stub, _):
        assert (
            await refusal(
                stub.RegisterExecutorVersion(pb.RegisterExecutorVersionRequest(version="../x"))
            )
            == bad
        )
        assert await refusal(
            stub.RegisterExecutorVersion(
                pb.RegisterExecutorVersionRequest(version="executor-000002")
            )
        ) == ("FAILED_PRECONDITION", "BAD_VERSION")
        assert (
            await refusal(
                stub.PromoteExecutorVersion(pb.PromoteExecutorVersionRequest(version=FIRST))
            )
            == bad
        )
        assert (
            await refusal(
                stub.RollBackExecutorVersion(pb.RollBackExecutorVersionRequest(version=BASE))
            )
            == bad
        )
        for state in (0, pb.EXECUTOR_VERSION_STATE_ACTIVE, 99):
            request = pb.SetExecutorVersionTrafficRequest(version=BASE, state=state)  # type: ignore[arg-type]
            assert await refusal(stub.SetExecutorVersionTraffic(request)) == bad


async def test_every_change_of_a_version_is_in_the_log(tmp_path: Path) -> None:
    """And in the audit log, with refused changes. The gateway's log has no refused change."""
    async with stub_over(tmp_path) as (stub, database):
        with capture_logs() as logged:
            await stub.RegisterExecutorVersion(pb.RegisterExecutorVersionRequest(version=FIRST))
            await stub.SetExecutorVersionTraffic(
                pb.SetExecutorVersionTrafficRequest(
                    version=FIRST, state=pb.EXECUTOR_VERSION_STATE_SHADOW
                )
            )
            await stub.PromoteExecutorVersion(pb.PromoteExecutorVersionRequest(version=FIRST))
            await stub.RollBackExecutorVersion(pb.RollBackExecutorVersionRequest(version=FIRST))
            await refusal(
                stub.RegisterExecutorVersion(pb.RegisterExecutorVersionRequest(version="x\0" * 120))
            )
        events = await SQLAccounts(database).audit(10)
    acts = [entry for entry in logged if entry["event"].startswith("admin.")]
    assert [act["event"].removeprefix("admin.") for act in acts] == [
        "register_version",
        "set_version_traffic",
        "promote_version",
        "roll_back_version",
    ]
    assert {(act["target"], act["door"], act["by"]) for act in acts} == {(FIRST, "grpc", "")}
    refused, *done = events
    assert [event.act for event in reversed(done)] == [act["event"][6:] for act in acts]
    assert {(event.target, event.result, event.tenant) for event in done} == {(FIRST, "done", None)}
    assert (refused.act, refused.target, refused.result) == (
        "register_version",
        "x\ufffd" * 100,
        "BadRequest",
    )
