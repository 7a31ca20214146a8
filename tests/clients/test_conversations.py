"""Conversations through every door: a follow-up question is understood, or asked back."""

import asyncio
import io
from typing import Any

import grpc
import openai
import pytest
from mcp import Client as MCPClient
from rolegate.client import AsyncClient, Client
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from serving.cli.mcp import mcp_server
from tests.conftest import Rolegate
from tests.scripted_gateway import ASKED_BACK, DIRECTOR, FOLLOW_UP, QUESTION, addresses

BEFORE: list[Any] = [
    {"role": "user", "content": DIRECTOR},
    {"role": "assistant", "content": "Michael Mann"},
]


@pytest.mark.parametrize("streamed", [False, True])
async def test_history_on_the_wire(gateway: str, streamed: bool) -> None:
    """The answer has the question as it was searched."""
    async with grpc.aio.insecure_channel(gateway) as channel:
        stub = AnswerServiceStub(channel)
        for history, question, outcome in (
            (BEFORE, QUESTION, pb.ANSWER_OUTCOME_ANSWERED),
            (BEFORE[:0], "", pb.ANSWER_OUTCOME_ANSWERED),
            ([{"role": "user", "content": "Hello."}], "", pb.ANSWER_OUTCOME_CLARIFY),
        ):
            asked: dict[str, Any] = {
                "question": FOLLOW_UP if history else QUESTION,
                "history": history,
            }
            if streamed:
                stream = stub.StreamAnswer(pb.StreamAnswerRequest(**asked))
                answer = [event async for event in stream][-1].done
            else:
                answer = await stub.Answer(pb.AnswerRequest(**asked))
            assert answer.outcome == outcome
            if outcome == pb.ANSWER_OUTCOME_CLARIFY:
                assert (answer.answer, answer.question) == (ASKED_BACK, "")
                assert not answer.results
            else:
                assert (answer.answer, answer.question) == ("in 1943", question or QUESTION)


async def test_a_history_that_is_refused(gateway: str) -> None:
    async with grpc.aio.insecure_channel(gateway) as channel:
        for history, message in (
            ([{"role": "tool", "content": "x"}], "history[0].role is 'tool'"),
            ([{"role": "system", "content": "x"}], "history[0].role is 'system'"),
            (BEFORE * 21, "history has 42 messages; the limit is 40"),
            ([{"role": "user", "content": "x" * 40_000}], "history has 40000 characters"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await AnswerServiceStub(channel).Answer(
                    pb.AnswerRequest(question=FOLLOW_UP, history=history)
                )
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert message in (caught.value.details() or "")


async def test_a_chat_of_the_async_client(gateway: str) -> None:
    async with AsyncClient(gateway) as client:
        chat = client.chat()
        assert (await chat.ask(DIRECTOR)).answer == "in 1943"
        answer = await chat.ask(FOLLOW_UP)
        assert (answer.question, answer.answer) == (QUESTION, "in 1943")
        assert [message["content"] for message in chat.history] == [
            DIRECTOR, "in 1943", FOLLOW_UP, "in 1943",
        ]  # fmt: skip


def test_a_chat_of_the_blocking_client(gateway: str) -> None:
    """It keeps as many messages as a request may have."""
    with Client(gateway) as client:
        chat = client.chat()
        chat.history = tuple(BEFORE * 20)
        assert chat.ask(FOLLOW_UP).question == QUESTION
        assert len(chat.history) == 40
        assert chat.history[-2]["content"] == FOLLOW_UP


@pytest.mark.parametrize("stream", [False, True])
def test_earlier_messages_of_openai_s_client_are_the_history(stream: bool) -> None:
    """Sources below our answers are left out, and the oldest messages of a long conversation."""
    answer = f"Michael Mann\n\nSources:\n[1] {'Heat ' * 5000}"
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        *({"role": "user", "content": "Hello."} for _ in range(50)),
        {"role": "user", "content": DIRECTOR},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": FOLLOW_UP},
    ]
    with (
        addresses() as (_, http),
        openai.OpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0) as client,
    ):
        reply: Any = client.chat.completions.create(
            model="rolegate", messages=messages, stream=stream
        )
        if stream:
            chunks = list(reply)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            details = chunks[-1].model_extra["rolegate"]
        else:
            text = reply.choices[0].message.content
            details = reply.model_extra["rolegate"]
        assert text.startswith("in 1943")
        assert details["question"] == QUESTION

        back = client.chat.completions.create(
            model="rolegate", messages=[messages[1], {"role": "user", "content": FOLLOW_UP}]
        )
        assert back.choices[0].message.content == ASKED_BACK


async def test_an_agent_passes_a_history_over_mcp(gateway: str) -> None:
    async with (
        AsyncClient(gateway) as client,
        MCPClient(mcp_server(client, 20.0), read_timeout_seconds=60) as session,
    ):
        arguments = {"question": FOLLOW_UP, "history": BEFORE}
        result = await session.call_tool("ask", arguments)
        assert result.structured_content is not None
        assert result.structured_content["question"] == QUESTION


async def test_a_chat_at_the_command_line(
    gateway: str, rolegate: Rolegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/new` begins a new conversation."""
    lines = f"{DIRECTOR}\n{FOLLOW_UP}\n/new\nHello.\n{FOLLOW_UP}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    chat = await asyncio.to_thread(rolegate, "chat", "--address", gateway)
    assert chat.status == 0
    assert chat.out.count("│ in 1943") == 3
    assert chat.out.count(ASKED_BACK) == 1
