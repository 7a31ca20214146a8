"""OpenAI's official Python client, unmodified, with the OpenAI-compatible server."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from tests import scripted_gateway
from tests.router.accounts import open_access
from tests.router.clock import ended
from tests.router.deployment import Deployment, HeldModel, Kept
from tests.scripted_gateway import BORN, DEAD_QUESTION, DIRECTOR, QUESTION
from tests.scripted_model import ScriptedModel

TEXT = """\
in 1943

Sources:
[1] Heat: “Heat is a film by Michael Mann.”
[2] Michael Mann: “Michael Mann was born in 1943.”"""


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """A client of a gateway of scripted models."""
    with (
        scripted_gateway.addresses() as (_, http),
        openai.OpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def asking(question: str) -> list[ChatCompletionMessageParam]:
    """Return a conversation that ends with `question`."""
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who was it?"},
        {"role": "assistant", "content": "Nobody."},
        {"role": "user", "content": [{"type": "text", "text": question}]},
    ]


def details(reply: Any) -> Any:
    """Return the fields of the response beyond OpenAI's."""
    return reply.model_extra["rolegate"]


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == ["rolegate", "rolegate-executor", "rolegate-table"]
    assert client.models.retrieve("rolegate-executor").owned_by == "rolegate"


def test_an_answer_ends_with_its_sources(client: openai.OpenAI) -> None:
    """The fields beyond OpenAI's have them as values."""
    reply = client.chat.completions.create(model="rolegate", messages=asking(QUESTION))

    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        TEXT,
        "stop",
    )
    extra_fields = details(reply)
    assert (extra_fields["answer"], extra_fields["outcome"]) == ("in 1943", "answered")
    assert extra_fields["run_id"].startswith("run-")
    assert [result["sub_query"] for result in extra_fields["results"]] == [DIRECTOR, BORN]
    assert [citation["passage_id"] for citation in extra_fields["citations"]] == ["p1", "p2"]


def test_a_stream_has_reasoning_then_answer_then_usage(client: openai.OpenAI) -> None:
    """Progress is in the reasoning."""
    chunks = list(
        client.chat.completions.create(
            model="rolegate",
            messages=asking(QUESTION),
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    *pieces, last = chunks
    deltas = [chunk.choices[0].delta for chunk in pieces]
    thought = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
    assert thought.splitlines()[:4] == [
        "round 1",
        f"  → 1. {DIRECTOR}",
        f"    searched “{DIRECTOR}”: Heat",
        "  ← 1. Michael Mann",
    ]
    assert "".join(delta.content or "" for delta in deltas) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in pieces[-2:]] == [None, "stop"]
    assert details(pieces[-1])["answer"] == "in 1943"
    assert (last.choices, last.usage and last.usage.total_tokens > 0) == ([], True)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_a_sub_query_model_returns_a_report(client: openai.OpenAI) -> None:
    """The report has its sources."""
    reply = client.chat.completions.create(model="rolegate-executor", messages=asking(DIRECTOR))

    assert (
        reply.choices[0].message.content
        == "Michael Mann\n\nSources:\n[1] Heat: “Heat is a film by Michael Mann.”"
    )
    assert [role["role"] for role in details(reply)["usage"]] == ["execution"]


def test_an_unknown_model_is_refused_with_openai_s_error(client: openai.OpenAI) -> None:
    """The message has the known models."""
    with pytest.raises(
        openai.NotFoundError, match="use one of rolegate, rolegate-executor"
    ) as refused:
        client.chat.completions.create(model="gpt-4o", messages=asking(QUESTION))
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_a_dead_model_is_an_error_that_can_be_retried(client: openai.OpenAI) -> None:
    with pytest.raises(
        openai.APIStatusError, match=r"delegation at .*: connection refused"
    ) as failed:
        client.chat.completions.create(model="rolegate", messages=asking(DEAD_QUESTION))
    assert (failed.value.status_code, failed.value.code) == (503, "UPSTREAM_UNAVAILABLE")


def test_a_model_that_dies_in_mid_stream_ends_it_with_an_error(client: openai.OpenAI) -> None:
    """Earlier progress is received."""
    stream = client.chat.completions.create(
        model="rolegate", messages=asking(DEAD_QUESTION), stream=True
    )
    pieces: list[object] = []
    with pytest.raises(openai.APIError, match=r"delegation at .*: connection refused") as failed:
        pieces.extend(chunk.choices[0].delta.model_extra for chunk in stream)
    assert {"reasoning_content": "round 1\n"} in pieces
    assert failed.value.code == "UPSTREAM_UNAVAILABLE"


async def test_closing_a_stream_stops_the_run() -> None:
    """Its model calls are cancelled, and the run is stored as cancelled."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    server = HTTPServer(openai_app(Deployment(model).gateway(store), open_access()), 0.0)
    url = f"http://{await server.start('127.0.0.1:0', 'http')}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        stream = await client.chat.completions.create(
            model="rolegate", messages=asking(QUESTION)[-1:], stream=True
        )
        await ended(model.called.wait())
        await stream.close()
        await ended(model.cancelled.wait())
        run = await store.next()
    await server.drain()
    assert (run.status, [call.outcome for call in run.calls]) == ("cancelled", ["cancelled"])
