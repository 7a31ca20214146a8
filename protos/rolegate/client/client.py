"""The client for programs that wait."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Self

import grpc

from rolegate.client.gateway_error import translated
from rolegate.client.requests import ADDRESS, SHORT_S, feedback_request, usage_request
from rolegate.v1.answer_service_pb2 import AnswerRequest, AnswerResponse, StreamAnswerRequest, StreamAnswerResponse
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.usage_service_pb2 import GetUsageResponse
from rolegate.v1.usage_service_pb2_grpc import UsageServiceStub


class Client:
    """Asks the gateway at `address`, host:port. Every method raises `GatewayError`."""

    def __init__(self, address: str = ADDRESS) -> None:
        self._address, self._channel = address, grpc.insecure_channel(address)

    def ask(self, question: str, timeout_s: float = 120.0) -> AnswerResponse:
        """Answer a question, with what the answer rests on and what it cost."""
        with translated(self._address):
            return AnswerServiceStub(self._channel).Answer(AnswerRequest(question=question), timeout=timeout_s)

    def stream(self, question: str, timeout_s: float = 120.0) -> "Stream":
        """Answer a question and tell what happens on the way."""
        request = StreamAnswerRequest(question=question)
        return Stream(AnswerServiceStub(self._channel).StreamAnswer(request, timeout=timeout_s), self._address)

    def feedback(
        self,
        run_id: str,
        *,
        accepted: bool | None = None,
        score: float | None = None,
        gold_answer: str = "",
        comment: str = "",
    ) -> str:
        """Say what became of an answer; `score` is from 0 to 1. The feedback's identifier."""
        request = feedback_request(run_id, accepted, score, gold_answer, comment)
        with translated(self._address):
            return RunServiceStub(self._channel).SubmitFeedback(request, timeout=SHORT_S).feedback_id

    def usage(self, start: datetime | None = None, end: datetime | None = None) -> GetUsageResponse:
        """Tokens of all stored runs that started from `start` on and before `end`, by role and model."""
        with translated(self._address):
            return UsageServiceStub(self._channel).GetUsage(usage_request(start, end), timeout=SHORT_S)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Stream:
    """The events of one question as they happen; the last one is `done`, with the whole answer.

    Cancelled, also by leaving its context, it stops the work upstream; reading on raises `GatewayError`.
    """

    def __init__(self, call: Any, address: str) -> None:
        self._call, self._address = call, address

    def cancel(self) -> None:
        """Stop; of no effect at the end."""
        self._call.cancel()

    def __iter__(self) -> Iterator[StreamAnswerResponse]:
        with self, translated(self._address):
            yield from self._call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cancel()
