"""OpenAI's official Python client, unmodified, with the responses API."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from tests import scripted_gateway
from tests.clients.test_openai_client import TEXT
from tests.scripted_gateway import ASKED_BACK, BORN, DEAD_QUESTION, DIRECTOR, FOLLOW_UP, QUESTION


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """A client of a gateway of scripted models."""
    with (
        scripted_gateway.addresses() as (_, http),
        openai.OpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def asked(client: openai.OpenAI, given: Any, **fields: Any) -> Response:
    """Return the response to a question."""
    response: Response = client.responses.create(model="rolegate", input=given, **fields)
    return response


def details(response: Response) -> Any:
    """Return the fields of the response beyond OpenAI's."""
    return (response.model_extra or {})["rolegate"]


@pytest.mark.parametrize(
    "given",
    [
        QUESTION,
        [{"role": "user", "content": QUESTION}],
        [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}],
        [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": QUESTION},
        ],
    ],
)
def test_a_response_has_the_answer_with_its_citations(client: openai.OpenAI, given: Any) -> None:
    """The text is that of a chat completion. The citations stand at the end of its answer."""
    response = asked(client, given, instructions="Be brief.", max_output_tokens=50)
    assert response.output_text == TEXT
    assert (response.status, response.error, response.object) == ("completed", None, "response")
    (message,) = response.output
    assert message.type == "message" and message.status == "completed"
    (part,) = message.content
    assert part.type == "output_text"
    cited = [at for at in part.annotations if at.type == "file_citation"]
    assert [(at.file_id, at.filename) for at in cited] == [("p1", "Heat"), ("p2", "Michael Mann")]
    assert {TEXT[: at.index] for at in cited} == {"in 1943"}
    assert response.usage and response.usage.total_tokens > response.usage.output_tokens > 0
    assert [result["sub_query"] for result in details(response)["results"]] == [DIRECTOR, BORN]


def test_earlier_items_are_the_history(client: openai.OpenAI) -> None:
    """The output of a response can be sent back as it is. What is not resolved is asked back."""
    stream = client.responses.create(model="rolegate", input=DIRECTOR, stream=True)
    first = next(event.response for event in stream if event.type == "response.completed")
    assert [item.type for item in first.output] == ["reasoning", "message"]
    items = [item.model_dump(exclude_none=True) for item in first.output]
    question = {"role": "user", "content": FOLLOW_UP}
    second = asked(client, [{"role": "user", "content": DIRECTOR}, *items, question])
    assert (second.output_text, details(second)["question"]) == (TEXT, QUESTION)
    hello = asked(client, [{"role": "user", "content": "Hello."}, question])
    assert hello.output_text == ASKED_BACK


def test_a_stream_has_the_events_of_each_item(client: openai.OpenAI) -> None:
    """Progress is a summary of reasoning. The events are numbered, and the last has everything."""
    events = list(client.responses.create(model="rolegate", input=QUESTION, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "created",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "output_text.annotation.added",
        "content_part.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == TEXT
    thoughts = "".join(
        event.delta for event in events if event.type == "response.reasoning_summary_text.delta"
    )
    assert thoughts.startswith(f"round 1\n  → 1. {DIRECTOR}\n")
    first = events[0]
    last = events[-1]
    assert first.type == "response.created" and last.type == "response.completed"
    assert first.response.id == last.response.id
    assert last.response.output_text == TEXT
    ids = [event.item.id for event in events if event.type == "response.output_item.done"]
    assert ids == [item.id for item in last.response.output]
    assert len({*ids}) == 2


def test_the_client_s_helper_joins_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="rolegate", input=QUESTION) as stream:
        response = stream.get_final_response()
    assert response.output_text == TEXT


def test_a_run_that_fails_ends_its_stream_with_the_error(client: openai.OpenAI) -> None:
    """The response has failed, and has no text."""
    *_, last = client.responses.create(model="rolegate", input=DEAD_QUESTION, stream=True)
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error and last.response.error.code == "server_error"
    assert "connection refused" in last.response.error.message
    with pytest.raises(openai.InternalServerError, match="connection refused"):
        asked(client, DEAD_QUESTION)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
        ({"conversation": "conv_1"}, "conversation is not supported"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt is not supported"),
        ({"background": True}, "background is not supported"),
        ({"tools": [{"type": "web_search"}]}, "tools is not supported"),
        ({"tool_choice": "required"}, "tool_choice requires a tool call"),
        (
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            r"input\[0\] refers to a stored item",
        ),
        ({"input": []}, "input has no message with the role `user`"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input has no message with the role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            r"input\[0\].content\[0\] is of type 'input_image'",
        ),
        ({"text": {"format": "json"}}, "must be an object, got text"),
        ({"text": "json"}, "must be an object, got text"),
        ({"text": {"format": {"type": "json_object"}}}, "The type 'json_object'"),
        ({"extra_body": {"topology": "host"}}, "topology is not an option of this API"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_supported_is_refused(
    client: openai.OpenAI, fields: dict[str, Any], message: str, stream: bool
) -> None:
    """The error comes with its status, before a stream begins."""
    with pytest.raises(openai.APIStatusError, match=message) as refused:
        client.responses.create(
            **{"model": "rolegate", "input": QUESTION, "stream": stream, **fields}
        )
    assert refused.value.status_code == 400


def test_what_other_servers_understand_is_ignored(client: openai.OpenAI) -> None:
    response = asked(
        client,
        QUESTION,
        tools=[],
        tool_choice="auto",
        temperature=0,
        store=True,
        metadata={"a": "b"},
        reasoning={"effort": "low"},
        include=["reasoning.encrypted_content"],
        truncation="auto",
        background=False,
        text={"format": {"type": "text"}, "verbosity": "low"},
    )
    assert response.output_text == TEXT


def test_an_executor_s_report_is_a_response_too(client: openai.OpenAI) -> None:
    response = client.responses.create(model="rolegate-executor", input=DIRECTOR)
    assert response.output_text.startswith("Michael Mann\n\nSources:")
    with pytest.raises(openai.NotFoundError, match="There is no model 'gpt-5'"):
        client.responses.create(model="gpt-5", input=DIRECTOR)
