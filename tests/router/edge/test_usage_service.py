"""What was spent, over a real channel."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rolegate.v1 import usage_pb2
from rolegate.v1 import usage_service_pb2 as pb
from rolegate.v1.answer_service_pb2 import AnswerRequest
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from router.access import CALLER
from router.edge.grpc.server import Server
from router.edge.grpc.services import UsageServicer
from router.ledger import UsageQuery, UsageReport
from router.ledger.reconciliation import ReconciledTokens, Reconciliation
from router.ledger.usage import UsageRow
from router.models import ScriptedModel
from router.trace.identity import Identity
from tests.router.deployment import STOP, Deployment
from tests.router.edge.wire import reconciling, refusal, served, whole_server

if TYPE_CHECKING:
    from rolegate.v1.usage_service_pb2_grpc import UsageServiceAsyncStub

ROW = UsageRow(
    bucket_start=1763683200.0,
    tenant="acme",
    role="execution",
    model="small",
    executor_version="executor-7",
    attempts=5,
    attempts_without_usage=2,
    attempts_without_cost=3,
    prompt_tokens=70,
    completion_tokens=20,
    cached_tokens=30,
    wasted_tokens=9,
    nano_usd=123_456_789_012,
)
TENANT = Identity("acme", frozenset({"ask"}), "k1")


class Told:
    """Sums that are always the same, and what they were asked for."""

    def __init__(self, *rows: UsageRow) -> None:
        self.rows = rows
        self.asked = list[UsageQuery]()

    async def usage(self, query: UsageQuery) -> UsageReport:
        self.asked.append(query)
        return UsageReport(1, self.rows)


def stub_of(channel: grpc.aio.Channel) -> "UsageServiceAsyncStub":
    return UsageServiceStub(channel)


@asynccontextmanager
async def sums_of(usages: Told) -> AsyncIterator["UsageServiceAsyncStub"]:
    """A stub of a service over `usages`."""
    async with served(Server(None, None, None, UsageServicer(usages, reconciling([])))) as channel:
        yield stub_of(channel)


async def test_usage_is_that_of_the_answers() -> None:
    """One run costs what its answer says; two cost twice that."""
    delegator = ScriptedModel(lambda _: STOP, "backbone")
    async with served(whole_server(Deployment(delegator))) as channel:
        answers = [
            await AnswerServiceStub(channel).Answer(AnswerRequest(question="why?"))
            for _ in range(2)
        ]
        sums = await stub_of(channel).GetUsage(pb.GetUsageRequest())
    (once,) = answers[0].usage
    twice = sums.rows[0].usage
    assert (sums.runs, len(sums.rows)) == (2, 1)
    assert (twice.role, twice.model, twice.attempts) == (once.role, "backbone", 2)
    assert (twice.prompt_tokens, twice.completion_tokens) == (
        2 * once.prompt_tokens,
        2 * once.completion_tokens,
    )
    assert twice.prompt_tokens > 0


async def test_a_row() -> None:
    """Every field arrives; what the sums were not split by is unset."""
    bare = UsageRow(
        attempts=1,
        prompt_tokens=1,
        completion_tokens=1,
        cached_tokens=0,
        reasoning_tokens=0,
        nano_usd=0,
    )
    async with sums_of(Told(ROW, bare)) as stub:
        rows = (await stub.GetUsage(pb.GetUsageRequest())).rows
    assert rows[0] == pb.UsageRow(
        bucket_start_time=datetime(2025, 11, 21, tzinfo=UTC),
        tenant="acme",
        executor_version="executor-7",
        usage=usage_pb2.RoleUsage(
            role=usage_pb2.ROLE_EXECUTION,
            model="small",
            attempts=5,
            attempts_without_usage=2,
            attempts_without_cost=3,
            prompt_tokens=70,
            completion_tokens=20,
            cached_tokens=30,
            wasted_tokens=9,
            cost_nano_usd=123_456_789_012,
        ),
    )
    assert not rows[1].HasField("bucket_start_time")
    assert (rows[1].tenant, rows[1].usage.role, rows[1].usage.HasField("cost_nano_usd")) == (
        "",
        0,
        True,
    )


async def test_what_is_asked_for() -> None:
    """Groups, bucket, span and tenant; without groups, role and model; a group that is named
    twice is one.
    """
    usages = Told()
    noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    async with sums_of(usages) as stub:
        await stub.GetUsage(pb.GetUsageRequest())
        await stub.GetUsage(
            pb.GetUsageRequest(
                start_time=noon,
                end_time=noon + timedelta(hours=1),
                tenant="acme",
                group_by=[
                    pb.USAGE_DIMENSION_TENANT,
                    pb.USAGE_DIMENSION_EXECUTOR_VERSION,
                    pb.USAGE_DIMENSION_TENANT,
                ],
                bucket=pb.USAGE_BUCKET_DAY,
            )
        )
    start = noon.timestamp()
    assert usages.asked == [
        UsageQuery(None, None, None, ("role", "model"), None),
        UsageQuery(start, start + 3600, "acme", ("tenant", "executor_version"), "day"),
    ]


async def test_a_tenants_key_sums_its_own() -> None:
    """Whether or not it says so; of another tenant there is nothing, as if it were not there."""
    usages = Told(ROW)
    token = CALLER.set(TENANT)
    try:
        async with sums_of(usages) as stub:
            own = [
                await stub.GetUsage(pb.GetUsageRequest(tenant=tenant)) for tenant in ("", "acme")
            ]
            other = await stub.GetUsage(pb.GetUsageRequest(tenant="other"))
    finally:
        CALLER.reset(token)
    assert [len(sums.rows) for sums in own] == [1, 1]
    assert [query.tenant for query in usages.asked] == ["acme", "acme"]
    assert other == pb.GetUsageResponse()


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (
            pb.GetUsageRequest(group_by=[pb.USAGE_DIMENSION_ROLE, pb.USAGE_DIMENSION_UNSPECIFIED]),
            r"group_by\[1\]",
        ),
        (pb.GetUsageRequest(group_by=[9]), r"group_by\[0\]"),  # type: ignore[list-item]
        (pb.GetUsageRequest(bucket=9), "bucket"),  # type: ignore[arg-type]
        (pb.GetUsageRequest(start_time=Timestamp(seconds=2**62)), "start_time"),
        (
            pb.GetUsageRequest(start_time=Timestamp(seconds=9), end_time=Timestamp(seconds=9)),
            "start_time",
        ),
    ],
)
async def test_what_there_is_not(request_: pb.GetUsageRequest, named: str) -> None:
    """A group, a bucket, a moment or a span that is none is the client's to mend."""
    async with sums_of(Told()) as stub:
        assert await refusal(stub.GetUsage(request_), named) == ("INVALID_ARGUMENT", "BAD_REQUEST")


async def test_reconciliation() -> None:
    """Each deployment with its verdict and both sides; one without counters says why there is
    no comparison.
    """
    found = [
        Reconciliation(
            deployment="small",
            verdict="within_bounds",
            start=1763683200.0,
            completed_calls=4,
            uncertain_calls=("run-1-3",),
            prompt_tokens=ReconciledTokens(engine=110, ledger=100, ledger_max=120),
            completion_tokens=ReconciledTokens(engine=55, ledger=55, ledger_max=60),
        ),
        Reconciliation("hosted", "unknown", "it has no counters"),
        Reconciliation("large", "different"),
        Reconciliation("other", "equal"),
    ]
    server = Server(None, None, None, UsageServicer(Told(), reconciling(found)))
    async with served(server) as channel:
        told = (await stub_of(channel).ReconcileUsage(pb.ReconcileUsageRequest())).reconciliations
    assert told[0] == pb.Reconciliation(
        deployment="small",
        verdict=pb.RECONCILIATION_VERDICT_WITHIN_BOUNDS,
        start_time=datetime(2025, 11, 21, tzinfo=UTC),
        completed_calls=4,
        uncertain_calls=["run-1-3"],
        prompt_tokens=pb.ReconciledTokens(engine=110, ledger=100, ledger_max=120),
        completion_tokens=pb.ReconciledTokens(engine=55, ledger=55, ledger_max=60),
    )
    unknown = pb.RECONCILIATION_VERDICT_UNKNOWN
    assert told[1] == pb.Reconciliation(
        deployment="hosted", verdict=unknown, reason="it has no counters"
    )
    assert [one.verdict for one in told[2:]] == [
        pb.RECONCILIATION_VERDICT_DIFFERENT,
        pb.RECONCILIATION_VERDICT_EQUAL,
    ]
