"""What an answer is like: by request, by config and through each door."""

from typing import Any

import grpc
import pytest
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from router.protocol import Report
from router.protocol.style import AnswerStyle
from router.runs import RequestOptions
from router.runs.gateway import AnswerRequest
from router.runs.support import is_supported
from router.trace import Trajectory
from tests.router.deployment import Deployment, Kept
from tests.router.edge.test_openai_server import USER, events, posted
from tests.router.edge.test_openai_server import served as served_over_http
from tests.router.edge.wire import served
from tests.router.store.stored import EXECUTIONS
from tests.scripted_model import ScriptedModel

QUESTION = "Who directed Heat?"


def system_of(model: Any) -> str:
    """Return the system prompt of a model's only call."""
    assert isinstance(model, ScriptedModel)
    (prompt,) = model.prompts
    return prompt.messages[0].content


async def test_only_the_answerer_sees_the_style() -> None:
    """It is in the trace."""
    deployment = Deployment()
    style = AnswerStyle("German", "sentence", "Be polite.", 20)
    run = await deployment.gateway().answer(AnswerRequest(QUESTION, style=style), RequestOptions())
    text = system_of(deployment.answerer)
    assert text.startswith("answer\n\nInstead of the shortest form, write one full sentence")
    assert text.endswith("Write the answer in German.\n\nBe polite.")
    assert isinstance(deployment.answerer, ScriptedModel)
    assert deployment.answerer.prompts[0].sampling.max_tokens == 20
    for model in (deployment.delegator, deployment.executor):
        assert isinstance(model, ScriptedModel)
        assert "polite" not in str(model.prompts)
        assert "German" not in str(model.prompts)
    assert isinstance(run.result, Trajectory)
    assert run.result.style == style


async def test_a_request_overrides_the_config() -> None:
    """Instructions are joined, the operator's first."""
    deployment = Deployment()
    configured = AnswerStyle("German", "paragraph", "Cite nothing.")
    gateway = deployment.gateway(style=configured)
    asked = AnswerRequest(QUESTION, style=AnswerStyle("French", instructions="Be polite."))
    await gateway.answer(asked, RequestOptions())
    text = system_of(deployment.answerer)
    assert "paragraph" in text
    assert text.endswith("Write the answer in French.\n\nCite nothing.\n\nBe polite.")


async def test_the_style_on_the_wire() -> None:
    deployment = Deployment()
    async with served(deployment.gateway()) as channel:
        request = pb.AnswerRequest(
            question=QUESTION,
            language="German",
            length=pb.ANSWER_LENGTH_PARAGRAPH,
            instructions="Be polite.",
            max_answer_tokens=7,
        )
        await AnswerServiceStub(channel).Answer(request)
    text = system_of(deployment.answerer)
    assert "one paragraph" in text
    assert text.endswith("Write the answer in German.\n\nBe polite.")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"language": "x" * 51}, "language has 51 characters; the limit is 50; shorten it."),
        ({"language": "a\nb"}, "language has control characters"),
        ({"instructions": "x" * 4001}, "instructions has 4001 characters; the limit is 4000"),
        ({"max_answer_tokens": -1}, "max_answer_tokens is -1; it must be at least 1"),
        ({"length": 9}, "length is 9; it must be a value of the enum AnswerLength."),
    ],
)
async def test_a_style_that_is_refused(fields: dict[str, Any], message: str) -> None:
    async with served(Deployment().gateway()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await AnswerServiceStub(channel).Answer(pb.AnswerRequest(question=QUESTION, **fields))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in (caught.value.details() or "")


async def test_an_answer_is_streamed_on_the_wire() -> None:
    """The parts make up the answer."""
    async with served(Deployment().gateway()) as channel:
        stream = AnswerServiceStub(channel).StreamAnswer(pb.StreamAnswerRequest(question=QUESTION))
        received = [event async for event in stream]
    answer = ""
    for event in received:
        if event.WhichOneof("event") == "answer_delta":
            delta = event.answer_delta
            answer = answer[: delta.kept_chars] + delta.text
    assert answer == received[-1].done.answer == "Michael Mann"
    assert [event.event_number for event in received] == list(range(1, len(received) + 1))


async def test_a_system_message_of_openai_s_api_reaches_the_answerer() -> None:
    deployment = Deployment()
    messages = [{"role": "system", "content": "Be polite."}, USER]
    async with served_over_http(deployment.gateway()) as session:
        status, _ = await posted(session, messages=messages, max_tokens=9)
    assert status == 200
    assert system_of(deployment.answerer) == "answer\n\nBe polite."
    assert isinstance(deployment.answerer, ScriptedModel)
    assert deployment.answerer.prompts[0].sampling.max_tokens == 9


async def test_an_answer_is_streamed_over_openai_s_api() -> None:
    """It arrives in several pieces, in front of its sources."""
    answer = "<answer>Michael Mann directed [Heat](http://evil.example) in 1995.</answer>"
    deployment = Deployment(answerer=ScriptedModel([answer]))
    body = {"model": "rolegate", "messages": [USER], "stream": True}
    async with (
        served_over_http(deployment.gateway(Kept())) as session,
        session.post("/v1/chat/completions", json=body) as response,
    ):
        chunks = (await events(response))[:-1]
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    pieces = [delta for delta in deltas if delta]
    assert len(pieces) > 1
    whole = "".join(pieces)
    assert whole.startswith("Michael Mann directed [Heat]\\(http://evil.example) in 1995.")


def test_each_sentence_of_a_paragraph_needs_support() -> None:
    """A name in one sentence that no evidence has makes the answer unsupported."""
    grounded = "Heat is a film by Michael Mann."
    for answer, supported in (
        (grounded, True),
        (f"{grounded} It was made by Michael Mann.", True),
        (f"{grounded} It was filmed in Paris.", False),
    ):
        trajectory = Trajectory(
            answer, "answered", EXECUTIONS, style=AnswerStyle(length="paragraph")
        )
        assert isinstance(EXECUTIONS[0].report, Report)
        assert is_supported(QUESTION, trajectory) is supported
