"""What was spent, over a real channel."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import grpc
import pytest
from rolegate.v1 import usage_service_pb2 as pb
from rolegate.v1.answer_service_pb2 import AnswerRequest
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub

from router.errors import UpstreamUnavailable
from router.scripted_model import ScriptedModel
from tests.router.deployment import STOP, Deployment, Kept
from tests.router.edge.wire import info_of, served

if TYPE_CHECKING:
    from rolegate.v1.usage_service_pb2_grpc import UsageServiceAsyncStub


def stub_of(channel: grpc.aio.Channel) -> "UsageServiceAsyncStub":
    return UsageServiceStub(channel)


async def test_usage_is_that_of_the_answers() -> None:
    """One run costs what its answer says; two cost twice that."""
    delegator = ScriptedModel(lambda _: STOP, "backbone")
    async with served(Deployment(delegator).gateway(Kept())) as channel:
        answers = [await AnswerServiceStub(channel).Answer(AnswerRequest(question="why?")) for _ in range(2)]
        sums = await stub_of(channel).GetUsage(pb.GetUsageRequest())
    (once,), (twice,) = answers[0].usage, sums.usage
    assert sums.runs == 2
    assert (twice.role, twice.model, twice.attempts) == (once.role, "backbone", 2)
    assert (twice.prompt_tokens, twice.completion_tokens) == (2 * once.prompt_tokens, 2 * once.completion_tokens)
    assert twice.prompt_tokens > 0


async def test_unknown_usage_stays_unknown() -> None:
    """An attempt that failed is counted among those whose tokens nobody knows."""
    delegator = ScriptedModel(lambda _: UpstreamUnavailable("down", endpoint="e"))
    async with served(Deployment(delegator).gateway(Kept())) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await AnswerServiceStub(channel).Answer(AnswerRequest(question="why?"))
        (usage,) = (await stub_of(channel).GetUsage(pb.GetUsageRequest())).usage
    assert (usage.attempts, usage.attempts_without_usage, usage.prompt_tokens) == (1, 1, 0)
    assert not usage.HasField("cached_tokens")
    assert not usage.HasField("reasoning_tokens")


async def test_a_span() -> None:
    """Bounds are moments of starting; what is absent has none."""
    async with served(Deployment().gateway(Kept())) as channel:
        before = datetime.now(UTC) - timedelta(seconds=1)
        await AnswerServiceStub(channel).Answer(AnswerRequest(question="Who directed Heat?"))
        after = datetime.now(UTC) + timedelta(seconds=1)
        spans = [
            pb.GetUsageRequest(start_time=before, end_time=after),
            pb.GetUsageRequest(start_time=before),
            pb.GetUsageRequest(end_time=after),
            pb.GetUsageRequest(start_time=after),
            pb.GetUsageRequest(end_time=before),
        ]
        runs = [(await stub_of(channel).GetUsage(span)).runs for span in spans]
    assert runs == [1, 1, 1, 0, 0]


async def test_a_span_that_ends_before_it_begins() -> None:
    """Is the client's to mend."""
    now = datetime.now(UTC)
    async with served(Deployment().gateway(Kept())) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="start_time") as caught:
            await stub_of(channel).GetUsage(pb.GetUsageRequest(start_time=now, end_time=now))
    assert (caught.value.code(), info_of(caught.value).reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")


async def test_a_moment_that_there_is_not() -> None:
    """Is the client's to mend, too."""
    request = pb.GetUsageRequest()
    request.start_time.seconds = 2**62
    async with served(Deployment().gateway(Kept())) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="start_time") as caught:
            await stub_of(channel).GetUsage(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
