"""The official Python client of OpenAI, unmodified, against the OpenAI-compatible server."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.models import ScriptedModel
from tests import scripted_gateway
from tests.router.clock import ended
from tests.router.deployment import Deployment, HeldModel, Kept
from tests.scripted_gateway import BORN, DEAD_QUESTION, DIRECTOR, QUESTION

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
    """A conversation that ends with `question`."""
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who was it?"},
        {"role": "assistant", "content": "Nobody."},
        {"role": "user", "content": [{"type": "text", "text": question}]},
    ]


def details(reply: Any) -> Any:
    """What the OpenAI-compatible server tells beyond OpenAI's fields."""
    return reply.model_extra["rolegate"]


def test_models(client: openai.OpenAI) -> None:
    """All are listed, and each can be looked up."""
    names = [model.id for model in client.models.list()]
    assert names == ["rolegate", "rolegate-executor", "rolegate-table"]
    assert client.models.retrieve("rolegate-executor").owned_by == "rolegate"


def test_an_answer(client: openai.OpenAI) -> None:
    """The text ends with its sources; the fields beyond OpenAI's have them as values."""
    reply = client.chat.completions.create(model="rolegate", messages=asking(QUESTION))

    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        TEXT,
        "stop",
    )
    told = details(reply)
    assert (told["answer"], told["outcome"]) == ("in 1943", "answered")
    assert told["run_id"].startswith("run-")
    assert [result["sub_query"] for result in told["results"]] == [DIRECTOR, BORN]
    assert [citation["passage_id"] for citation in told["citations"]] == ["p1", "p2"]


def test_a_stream(client: openai.OpenAI) -> None:
    """What happens is told as reasoning, then comes the answer, then the tokens."""
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


def test_a_report(client: openai.OpenAI) -> None:
    """The model of one sub-query: its report, with where that stands."""
    reply = client.chat.completions.create(model="rolegate-executor", messages=asking(DIRECTOR))

    assert (
        reply.choices[0].message.content
        == "Michael Mann\n\nSources:\n[1] Heat: “Heat is a film by Michael Mann.”"
    )
    assert [role["role"] for role in details(reply)["usage"]] == ["execution"]


def test_an_unknown_model(client: openai.OpenAI) -> None:
    """Told as OpenAI tells it, with the models that there are."""
    with pytest.raises(
        openai.NotFoundError, match="use one of rolegate, rolegate-executor"
    ) as refused:
        client.chat.completions.create(model="gpt-4o", messages=asking(QUESTION))
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_a_dead_model(client: openai.OpenAI) -> None:
    """The client learns that it may try again."""
    with pytest.raises(
        openai.APIStatusError, match=r"delegation at .*: connection refused"
    ) as failed:
        client.chat.completions.create(model="rolegate", messages=asking(DEAD_QUESTION))
    assert (failed.value.status_code, failed.value.code) == (503, "UPSTREAM_UNAVAILABLE")


def test_a_model_that_dies_in_mid_stream(client: openai.OpenAI) -> None:
    """What happened before is told, and then the error."""
    stream = client.chat.completions.create(
        model="rolegate", messages=asking(DEAD_QUESTION), stream=True
    )
    told: list[object] = []
    with pytest.raises(openai.APIError, match=r"delegation at .*: connection refused") as failed:
        told.extend(chunk.choices[0].delta.model_extra for chunk in stream)
    assert {"reasoning_content": "round 1\n"} in told
    assert failed.value.code == "UPSTREAM_UNAVAILABLE"


async def test_closing_a_stream_stops_the_run() -> None:
    """Its work upstream is cancelled, and the run is stored so."""
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    server = HTTPServer(openai_app(Deployment(model).gateway(store)), 0.0)
    url = f"http://{await server.start('127.0.0.1:0', 'http')}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        stream = await client.chat.completions.create(
            model="rolegate", messages=asking(QUESTION), stream=True
        )
        await ended(model.called.wait())
        await stream.close()
        await ended(model.cancelled.wait())
        run = await store.next()
    await server.drain()
    assert (run.status, [call.outcome for call in run.calls]) == ("cancelled", ["cancelled"])
