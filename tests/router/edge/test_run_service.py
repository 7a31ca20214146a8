"""Feedback over a real channel."""

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from rolegate.v1 import run_service_pb2 as pb
from rolegate.v1.answer_service_pb2 import AnswerRequest
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub

from router.feedback import Feedback
from tests.router.deployment import Deployment, Kept
from tests.router.edge.wire import info_of, served

if TYPE_CHECKING:
    from rolegate.v1.run_service_pb2_grpc import RunServiceAsyncStub


def stub_of(channel: grpc.aio.Channel) -> "RunServiceAsyncStub":
    return RunServiceStub(channel)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"verdict": pb.VERDICT_ACCEPTED}, {"accepted": True}),
        ({"verdict": pb.VERDICT_REJECTED, "gold_answer": "Mann"}, {"accepted": False, "gold_answer": "Mann"}),
        ({"score": 0.0}, {"score": 0.0}),
        ({"score": 1.0, "comment": "good"}, {"score": 1.0, "comment": "good"}),
    ],
)
async def test_feedback(given: dict[str, Any], kept: dict[str, Any]) -> None:
    """What is stated is kept; what is not stays unstated, and a score of 0 is one."""
    store = Kept()
    async with served(Deployment().gateway(store)) as channel:
        answer = await AnswerServiceStub(channel).Answer(AnswerRequest(question="Who directed Heat?"))
        response = await stub_of(channel).SubmitFeedback(pb.SubmitFeedbackRequest(run_id=answer.run_id, **given))
    assert response.feedback_id
    assert store.feedback == [Feedback(answer.run_id, **kept)]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "empty"),
        ({"score": 1.1}, "score"),
        ({"score": -0.1}, "score"),
        ({"score": float("nan")}, "score"),
        ({"verdict": 7}, "verdict"),
    ],
)
async def test_bad_feedback(given: dict[str, Any], named: str) -> None:
    """What cannot be used is named, and nothing is kept."""
    store = Kept()
    async with served(Deployment().gateway(store)) as channel:
        answer = await AnswerServiceStub(channel).Answer(AnswerRequest(question="Who directed Heat?"))
        with pytest.raises(grpc.aio.AioRpcError, match=named) as caught:
            await stub_of(channel).SubmitFeedback(pb.SubmitFeedbackRequest(run_id=answer.run_id, **given))
    assert (caught.value.code(), info_of(caught.value).reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")
    assert store.feedback == []


async def test_feedback_on_no_run() -> None:
    """A run that is not stored is not found."""
    async with served(Deployment().gateway()) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="'run-1'") as caught:
            await stub_of(channel).SubmitFeedback(pb.SubmitFeedbackRequest(run_id="run-1", comment="good"))
    assert (caught.value.code(), info_of(caught.value).reason) == (grpc.StatusCode.NOT_FOUND, "RUN_NOT_FOUND")
