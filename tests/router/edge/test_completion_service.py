"""The completion service over a real channel."""

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from rolegate.v1 import completion_service_pb2 as pb
from rolegate.v1 import usage_pb2
from rolegate.v1.completion_service_pb2_grpc import CompletionServiceStub

from router.errors import UpstreamError, UpstreamRefused
from router.models import Completion, Delta, Message, OnDelta, Prompt, Usage
from tests.router.clock import ended
from tests.router.deployment import Deployment, Kept
from tests.router.edge.wire import info_of, next_of, served
from tests.scripted_model import ScriptedModel

if TYPE_CHECKING:
    from rolegate.v1.completion_service_pb2_grpc import CompletionServiceAsyncStub

HI = [pb.ChatMessage(role="system", content="be"), pb.ChatMessage(role="user", content="hi")]
COMPLETION = Completion("a b c", "stop", "hm", Usage(9, 3, 4, 1))


def stub_of(channel: grpc.aio.Channel) -> "CompletionServiceAsyncStub":
    return CompletionServiceStub(channel)


def asked(role: usage_pb2.Role = usage_pb2.ROLE_ANSWER) -> pb.CompleteRequest:
    return pb.CompleteRequest(role=role, messages=HI)


async def test_a_completion_has_its_text_reasoning_usage_and_run_id() -> None:
    store = Kept()
    async with served(
        Deployment(answerer=ScriptedModel([COMPLETION], "fixed")).gateway(store)
    ) as channel:
        response = await stub_of(channel).Complete(asked())
    assert (response.text, response.reasoning, response.finish_reason) == ("a b c", "hm", "stop")
    assert response.usage == usage_pb2.RoleUsage(
        role=usage_pb2.ROLE_ANSWER,
        model="fixed",
        attempts=1,
        prompt_tokens=9,
        cached_tokens=4,
        completion_tokens=3,
        reasoning_tokens=1,
        attempts_without_cost=1,
    )
    assert response.run_id == store.runs[0].id


@pytest.mark.parametrize(
    ("role", "model"),
    [
        (usage_pb2.ROLE_DELEGATION, "backbone"),
        (usage_pb2.ROLE_EXECUTION, "small"),
        (usage_pb2.ROLE_ANSWER, "fixed"),
    ],
)
async def test_the_role_chooses_the_model(role: usage_pb2.Role, model: str) -> None:
    """The messages are sent unchanged."""
    models = {
        name: ScriptedModel([f"I am {name}"], name) for name in ("backbone", "small", "fixed")
    }
    async with served(
        Deployment(models["backbone"], models["small"], models["fixed"]).gateway()
    ) as channel:
        request = pb.CompleteRequest(role=role, messages=HI, stop=["</x>"], max_tokens=7)
        response = await stub_of(channel).Complete(request)
    assert (response.text, response.usage.model) == (f"I am {model}", model)
    (prompt,) = models[model].prompts
    assert prompt.messages == (Message("system", "be"), Message("user", "hi"))
    assert (prompt.stop, prompt.sampling.max_tokens) == (("</x>",), 7)


async def test_a_stream_ends_with_finish_reason_usage_and_run_id() -> None:
    """The deltas add up to the whole output."""
    store = Kept()
    async with served(Deployment(answerer=ScriptedModel([COMPLETION])).gateway(store)) as channel:
        request = pb.StreamCompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI)
        pieces = [piece async for piece in stub_of(channel).StreamComplete(request)]
    assert "".join(piece.text for piece in pieces) == "a b c"
    assert "".join(piece.reasoning for piece in pieces) == "hm"
    assert not any(
        piece.finish_reason or piece.run_id or piece.HasField("usage") for piece in pieces[:-1]
    )
    assert (pieces[-1].finish_reason, pieces[-1].run_id) == ("stop", store.runs[0].id)
    assert pieces[-1].usage.completion_tokens == 3


async def test_a_repeated_stream_gets_the_first_output() -> None:
    """It comes in a single piece, and no second call is made."""
    model = ScriptedModel([COMPLETION])
    request = pb.StreamCompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI, request_id="r1")
    async with served(Deployment(answerer=model).gateway()) as channel:
        pieces = [piece async for piece in stub_of(channel).StreamComplete(request)]
        repeated_pieces = [piece async for piece in stub_of(channel).StreamComplete(request)]
    assert [(piece.text, piece.reasoning) for piece in repeated_pieces] == [
        ("a b c", "hm"),
        ("", ""),
    ]
    assert repeated_pieces[-1] == pieces[-1]
    assert len(model.prompts) == 1


BAD: list[tuple[pb.CompleteRequest, str]] = [
    (pb.CompleteRequest(messages=HI), "role must be"),
    (pb.CompleteRequest(role=usage_pb2.ROLE_JUDGE, messages=HI), "role must be"),
    (pb.CompleteRequest(role=99, messages=HI), "role is 99"),  # type: ignore[arg-type]
    (pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER), "messages must end"),
    (
        pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=[pb.ChatMessage(role="tool")]),
        r"messages\[0\]\.role",
    ),
    (
        pb.CompleteRequest(
            role=usage_pb2.ROLE_ANSWER, messages=[*HI, pb.ChatMessage(role="assistant")]
        ),
        "messages must end",
    ),
    (
        pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI, max_tokens=-1),
        "max_tokens is -1; it must be at least 1",
    ),
    (
        pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI, stop=["a", ""]),
        r"stop\[1\] has 0 characters",
    ),
    (
        pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI, stop=["a"] * 17),
        "stop has 17 strings; at most 16",
    ),
    (
        pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI, stop=["a" * 257]),
        r"stop\[0\] has 257 characters",
    ),
    (
        pb.CompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI * 513),
        "messages has 1026 entries; at most 1024",
    ),
    (
        pb.CompleteRequest(
            role=usage_pb2.ROLE_ANSWER, messages=[pb.ChatMessage(role="user", content="x" * 2**20)]
        ),
        "The request has 10485.. bytes; the limit is 1048576",
    ),
]


@pytest.mark.parametrize(("request_", "why"), BAD)
async def test_an_invalid_request_is_refused(request_: pb.CompleteRequest, why: str) -> None:
    """The message says what is wrong and where."""
    stream_request = pb.StreamCompleteRequest.FromString(request_.SerializeToString())
    async with served(Deployment(answerer=ScriptedModel(lambda _: "a")).gateway()) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match=why) as completion_error:
            await stub_of(channel).Complete(request_)
        with pytest.raises(grpc.aio.AioRpcError, match=why) as stream_error:
            await stub_of(channel).StreamComplete(stream_request).read()
    for caught in (completion_error.value, stream_error.value):
        assert (caught.code(), info_of(caught).reason) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_REQUEST",
        )


class Flood:
    """A model that writes large pieces without end, or up to a failure."""

    name = "flood"
    endpoint = "flood://"

    def __init__(self, failure: UpstreamError | None = None) -> None:
        self._failure = failure
        self.written = 0
        self.ample = asyncio.Event()
        self.left = asyncio.Event()

    async def complete(self, prompt: Prompt) -> Completion:
        raise NotImplementedError

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        return None

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        try:
            while True:
                self.written += 1
                if self.written == 500:  # far more than any window holds
                    self.ample.set()
                    if self._failure:
                        raise self._failure
                await asyncio.sleep(0)
                on_delta(Delta("x" * 100_000, usage=Usage(1, self.written)))
        finally:
            self.left.set()


async def test_a_client_that_leaves_without_reading_ends_its_stream() -> None:
    """The cost so far is booked."""
    store = Kept()
    model = Flood()
    async with served(Deployment(answerer=model, max_tokens=10**7).gateway(store)) as channel:
        call = stub_of(channel).StreamComplete(
            pb.StreamCompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI)
        )
        assert (await next_of(call)).text
        await ended(model.ample.wait())
        call.cancel()
        await ended(model.left.wait())
        run = await store.next()
    assert [(call.outcome, call.usage and call.usage.lower_bound) for call in run.calls] == [
        ("cancelled", True)
    ]


async def test_a_failure_waits_until_the_client_has_read() -> None:
    """The client gets all output before the failure, and then the typed error."""
    store = Kept()
    model = Flood(UpstreamRefused("wrong key", endpoint="e"))
    async with served(Deployment(answerer=model, max_tokens=10**7).gateway(store)) as channel:
        call = stub_of(channel).StreamComplete(
            pb.StreamCompleteRequest(role=usage_pb2.ROLE_ANSWER, messages=HI)
        )
        assert (await store.next()).status == "failed"
        chars = 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while piece := await next_of(call):
                chars += len(piece.text)
    assert (chars, caught.value.code()) == (499 * 100_000, grpc.StatusCode.FAILED_PRECONDITION)
