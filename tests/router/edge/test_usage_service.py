"""The usage service over a real channel."""

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
from router.trace.identity import Identity
from tests.router.deployment import STOP, Deployment
from tests.router.edge.wire import reconciling, refusal, served, whole_server
from tests.scripted_model import ScriptedModel

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


class FixedSums:
    """Fixed sums that record their queries."""

    def __init__(self, *rows: UsageRow) -> None:
        self.rows = rows
        self.queries = list[UsageQuery]()

    async def usage(self, query: UsageQuery) -> UsageReport:
        self.queries.append(query)
        return UsageReport(1, self.rows)


def stub_of(channel: grpc.aio.Channel) -> "UsageServiceAsyncStub":
    return UsageServiceStub(channel)


@asynccontextmanager
async def sums_of(usages: FixedSums) -> AsyncIterator["UsageServiceAsyncStub"]:
    """Open a stub of a service over `usages`."""
    async with served(Server(None, None, None, UsageServicer(usages, reconciling([])))) as channel:
        yield stub_of(channel)


async def test_usage_is_the_sum_of_the_answers_usages() -> None:
    delegator = ScriptedModel(lambda _: STOP, "backbone")
    async with served(whole_server(Deployment(delegator))) as channel:
        answers = [
            await AnswerServiceStub(channel).Answer(AnswerRequest(question="why?"))
            for _ in range(2)
        ]
        sums = await stub_of(channel).GetUsage(pb.GetUsageRequest())
    (usage_of_answer,) = answers[0].usage
    summed = sums.rows[0].usage
    assert (sums.runs, len(sums.rows)) == (2, 1)
    assert (summed.role, summed.model, summed.attempts) == (usage_of_answer.role, "backbone", 2)
    assert (summed.prompt_tokens, summed.completion_tokens) == (
        2 * usage_of_answer.prompt_tokens,
        2 * usage_of_answer.completion_tokens,
    )
    assert summed.prompt_tokens > 0


async def test_every_field_of_a_row_arrives() -> None:
    """Fields of dimensions that were not grouped by are unset."""
    bare = UsageRow(
        attempts=1,
        prompt_tokens=1,
        completion_tokens=1,
        cached_tokens=0,
        reasoning_tokens=0,
        nano_usd=0,
    )
    async with sums_of(FixedSums(ROW, bare)) as stub:
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


async def test_a_query_has_groups_bucket_span_and_tenant() -> None:
    """The default groups are role and model. A repeated group counts once."""
    usages = FixedSums()
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
    assert usages.queries == [
        UsageQuery(None, None, None, ("role", "model"), None),
        UsageQuery(start, start + 3600, "acme", ("tenant", "executor_version"), "day"),
    ]


async def test_a_tenant_s_key_sums_only_its_own_usage() -> None:
    """Holds with and without the tenant's name. Another tenant has no rows, as if it did not
    exist.
    """
    usages = FixedSums(ROW)
    token = CALLER.set(TENANT)
    try:
        async with sums_of(usages) as stub:
            own = [
                await stub.GetUsage(pb.GetUsageRequest(tenant=tenant)) for tenant in ("", "acme")
            ]
            other_tenants_sums = await stub.GetUsage(pb.GetUsageRequest(tenant="other"))
    finally:
        CALLER.reset(token)
    assert [len(sums.rows) for sums in own] == [1, 1]
    assert [query.tenant for query in usages.queries] == ["acme", "acme"]
    assert other_tenants_sums == pb.GetUsageResponse()


@pytest.mark.parametrize(
    ("request_", "field"),
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
async def test_an_invalid_query_is_refused_with_its_field(
    request_: pb.GetUsageRequest, field: str
) -> None:
    async with sums_of(FixedSums()) as stub:
        assert await refusal(stub.GetUsage(request_), field) == ("INVALID_ARGUMENT", "BAD_REQUEST")


async def test_reconciliations_have_their_verdict_and_both_sides() -> None:
    """A deployment without counters has a reason instead."""
    reconciliations = [
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
    server = Server(None, None, None, UsageServicer(FixedSums(), reconciling(reconciliations)))
    async with served(server) as channel:
        messages = (
            await stub_of(channel).ReconcileUsage(pb.ReconcileUsageRequest())
        ).reconciliations
    assert messages[0] == pb.Reconciliation(
        deployment="small",
        verdict=pb.RECONCILIATION_VERDICT_WITHIN_BOUNDS,
        start_time=datetime(2025, 11, 21, tzinfo=UTC),
        completed_calls=4,
        uncertain_calls=["run-1-3"],
        prompt_tokens=pb.ReconciledTokens(engine=110, ledger=100, ledger_max=120),
        completion_tokens=pb.ReconciledTokens(engine=55, ledger=55, ledger_max=60),
    )
    unknown = pb.RECONCILIATION_VERDICT_UNKNOWN
    assert messages[1] == pb.Reconciliation(
        deployment="hosted", verdict=unknown, reason="it has no counters"
    )
    assert [message.verdict for message in messages[2:]] == [
        pb.RECONCILIATION_VERDICT_DIFFERENT,
        pb.RECONCILIATION_VERDICT_EQUAL,
    ]
