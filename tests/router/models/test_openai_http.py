"""The client of OpenAI-compatible endpoints, against a real server."""

import asyncio
import json
import socket

import msgspec
import pytest
from aiohttp import web
from multidict import CIMultiDict

from router.errors import (
    ContextTooLong,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models import Completion, Delta, Message, Prompt, Sampling, Usage
from router.models.connection_pool import ConnectionPool
from router.models.model import TokenIds
from router.models.openai_client import OpenAIHTTP
from router.models.openai_wire import REQUEST_ID
from tests.openai_behaviours import disconnects, end_event, replies, text_event
from tests.openai_server import (
    DONE,
    MODEL,
    Behaviour,
    OpenAIServer,
    event,
    fails,
    hang,
    reset,
    says,
    streams,
)
from tests.router.models.reading import left, streamed

PROMPT = Prompt((Message("user", "hi"),), Sampling(), stop=("</x>", "</y>"))
COUNTED = Usage(11, 7, cached_tokens=4, reasoning_tokens=3)
SOFAR = {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13}


@pytest.fixture
def model(pool: ConnectionPool, openai_server: OpenAIServer) -> OpenAIHTTP:
    return OpenAIHTTP(pool, openai_server.base_url, MODEL, api_key="sk-secret")


BOTH_WAYS: list[tuple[Behaviour, Completion]] = [
    (says("a ", "b"), Completion("a b", "stop", usage=COUNTED)),
    (says("a", finish_reason="length"), Completion("a", "length", usage=COUNTED)),
    (says("a", usage=None), Completion("a", "stop")),
    (says(None), Completion("", "stop", usage=COUNTED, unclosed=True)),
    (says("a", reasoning={"reasoning": "hm"}), Completion("a", "stop", "hm", COUNTED)),
    (says("a", reasoning={"reasoning_content": "hm"}), Completion("a", "stop", "hm", COUNTED)),
    (says("<think>hm</think>", "a"), Completion("a", "stop", "hm", COUNTED)),
    (says("a", stop_reason="</y>"), Completion("a</y>", "stop", usage=COUNTED)),
    (says("a</y>", stop_reason="</y>"), Completion("a</y>", "stop", usage=COUNTED)),
    (says("a", stop_reason=151645), Completion("a", "stop", usage=COUNTED)),
    (says("a</", "y>", finish_reason="length"), Completion("a</y>", "stop", usage=COUNTED)),
    (says("a</y> b", usage=None), Completion("a</y>", "stop", overran=True)),
    (says("a", finish_reason="model_length"), Completion("a", "length", usage=COUNTED)),
    (says("a", finish_reason="eos_token"), Completion("a", "eos_token", usage=COUNTED)),
    (
        says(None, reasoning={"reasoning": "a</y> b"}),
        Completion("", "stop", "a</y> b", COUNTED, unclosed=True),
    ),
    (says("<think>a", "</y>b"), Completion("", "stop", "a</y>b", COUNTED, unclosed=True)),
    (
        says("<think>a</y>", "b", finish_reason="length"),
        Completion("", "length", "a</y>b", COUNTED),
    ),
]


@pytest.mark.parametrize(("behaviour", "expected"), BOTH_WAYS)
async def test_a_stream_gives_the_same_completion_as_a_whole_reply(
    model: OpenAIHTTP, openai_server: OpenAIServer, behaviour: Behaviour, expected: Completion
) -> None:
    """Usage is equal too."""
    openai_server.plays(behaviour)
    assert await model.complete(PROMPT) == expected
    assert await streamed(model, PROMPT) == expected


async def test_a_request_has_what_was_set_and_nothing_else(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """A stream asks for usage with every chunk."""
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, api_key="sk-secret")
    await model.complete(
        Prompt((Message("system", "be"), Message("user", "é")), Sampling(9, 0.5, 0.9))
    )
    plain = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "é"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
    }
    assert openai_server.bodies[-1] == plain
    model = OpenAIHTTP(pool, f"{openai_server.base_url}/", MODEL, thinking=False)
    messages = (Message("system", "be"), Message("user", "é"))
    await streamed(model, Prompt(messages, Sampling(9, 0.5, 0.9, seed=0), ("</x>",)))
    assert openai_server.bodies[-1] == {
        **plain,
        "seed": 0,
        "stop": ["</x>"],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert ["Authorization" in headers for headers in openai_server.headers] == [True, False]


async def test_a_call_s_request_id_is_sent(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    await model.complete(msgspec.structs.replace(PROMPT, request_id="run-1-0"))
    await streamed(model, msgspec.structs.replace(PROMPT, request_id="run-1-1"))
    await model.complete(PROMPT)
    request_ids = [CIMultiDict(headers).get(REQUEST_ID) for headers in openai_server.headers]
    assert request_ids == ["run-1-0", "run-1-1", None]


async def test_token_ids_come_with_whole_replies(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """An endpoint that refuses the option is not asked for it again."""
    reply = (
        b'{"choices":[{"message":{"content":"a"},"token_ids":[7,8],"finish_reason":"stop"}],'
        b'"prompt_token_ids":[1,2]}'
    )
    openai_server.plays(
        replies(reply),
        replies(reply),
        says("a"),
        fails(400, "Unknown: return_token_ids"),
        says("a"),
    )
    with_tokens = OpenAIHTTP(
        pool, openai_server.base_url, MODEL, extra_body={"return_token_ids": True}
    )
    plain = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    tokens = [
        (await model.complete(PROMPT)).tokens
        for model in (with_tokens, plain, with_tokens, with_tokens, with_tokens)
    ]
    assert tokens == [TokenIds((1, 2), (7, 8)), *[msgspec.UNSET] * 4]
    assert ["return_token_ids" in request_body for request_body in openai_server.bodies] == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]


async def test_logprobs_come_with_the_tokens(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """A reply has one logprob per token, or none are kept. An endpoint that refuses them is asked
    for the tokens alone.
    """

    def reply_with(logprobs: str) -> Behaviour:
        choice = (
            f'"message":{{"content":"a"}},"token_ids":[7,8],"finish_reason":"stop",'
            f'"logprobs":{logprobs}'
        )
        return replies(f'{{"choices":[{{{choice}}}],"prompt_token_ids":[1,2]}}'.encode())

    complete = (
        '{"content":[{"token":"x","logprob":-0.5,"bytes":[1],"top_logprobs":[]},'
        '{"logprob":-2}],"refusal":null}'
    )
    too_few = '{"content":[{"logprob":-0.5}]}'
    empty = '{"content":null}'
    refused = fails(400, "logprobs are not supported")
    openai_server.plays(
        reply_with(complete),
        reply_with(too_few),
        reply_with(empty),
        reply_with("null"),
        refused,
        reply_with("null"),
    )
    model = OpenAIHTTP(
        pool, openai_server.base_url, MODEL, extra_body={"return_token_ids": True, "logprobs": True}
    )
    tokens = [(await model.complete(PROMPT)).tokens for _ in range(5)]
    assert tokens == [TokenIds((1, 2), (7, 8), (-0.5, -2.0)), *[TokenIds((1, 2), (7, 8))] * 4]
    assert ["logprobs" in body for body in openai_server.bodies] == [True] * 5 + [False]
    assert all(body["return_token_ids"] for body in openai_server.bodies)


UNKNOWN = [
    (400, "Unknown parameter: 'stream_options.continuous_usage_stats'."),
    (
        422,
        (
            '[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs '
            'are not permitted"}]'
        ),
    ),
]


@pytest.mark.parametrize(("status", "message"), UNKNOWN)
async def test_a_refused_stream_option_is_left_out_from_then_on(
    model: OpenAIHTTP, openai_server: OpenAIServer, status: int, message: str
) -> None:
    """The request is repeated immediately without the option."""
    openai_server.plays(fails(status, message), says("a"))
    assert (await streamed(model, PROMPT)).text == "a"
    await streamed(model, PROMPT)
    assert [body["stream_options"] for body in openai_server.bodies[1:]] == [
        {"include_usage": True}
    ] * 2
    openai_server.plays(fails(status, message), says("a"))
    assert (await streamed(model, PROMPT)).text == "a"
    await streamed(model, PROMPT)
    assert ["stream_options" in body for body in openai_server.bodies[3:]] == [True, False, False]
    openai_server.plays(fails(status, message))
    with pytest.raises(UpstreamRefused):
        await streamed(model, PROMPT)
    assert all(body["stream"] for body in openai_server.bodies)


async def test_a_whole_reply_to_a_stream_request_is_accepted(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    openai_server.plays(replies(usage_reply({"prompt_tokens": 3, "completion_tokens": 1})))
    assert await streamed(model, PROMPT) == Completion("a", "stop", usage=Usage(3, 1))


async def test_prompts_are_counted_with_their_template_and_texts_without(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """vLLM counts both."""
    openai_server.tokenizes = True
    extra = {"chat_template_kwargs": {"tools": [1]}, "top_k": 20}
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=False, extra_body=extra)
    prompt = Prompt((Message("system", "be brief"), Message("user", "hi")), Sampling())
    assert await model.count(prompt, "one two") == Usage(3, 2)
    assert await model.count(prompt, "") == Usage(3, 0)
    chat, text, _ = openai_server.counted
    assert chat == {
        "model": MODEL,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": False, "tools": [1]},
        "add_generation_prompt": True,
    }
    assert text == {"model": MODEL, "prompt": "one two", "add_special_tokens": False}


async def test_an_endpoint_that_does_not_count_is_asked_only_once(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    assert await model.count(PROMPT, "") is None
    assert await model.count(PROMPT, "a") is None
    assert len(openai_server.counted) == 1


async def test_extra_fields_win_except_over_the_call_s_own(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """Tables are merged."""
    kwargs = {
        "chat_template_kwargs": {"tools": [1]},
        "top_k": 20,
        "temperature": 0.6,
        "stream_options": {"x": 1},
    }
    reserved = {"model": "other", "messages": [], "stream": True}
    model = OpenAIHTTP(
        pool, openai_server.base_url, MODEL, thinking=True, extra_body={**kwargs, **reserved}
    )
    assert (await model.complete(PROMPT)).text == "hello"
    body = openai_server.bodies[-1]
    assert (body["model"], body["messages"]) == (MODEL, [{"role": "user", "content": "hi"}])
    assert (body["top_k"], body["temperature"]) == (20, 0.6)
    assert body["chat_template_kwargs"] == {"enable_thinking": True, "tools": [1]}
    await streamed(model, PROMPT)
    assert openai_server.bodies[-1]["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
        "x": 1,
    }


MISFILED: list[tuple[Behaviour, Completion]] = [
    (
        says(None, reasoning={"reasoning": "a</y> b"}),
        Completion("a</y>", "stop", "a</y> b", COUNTED, overran=True),
    ),
    (
        says(None, reasoning={"reasoning": "a"}, stop_reason="</y>"),
        Completion("a</y>", "stop", "a", COUNTED),
    ),
    (says("b", reasoning={"reasoning": "a"}), Completion("b", "stop", "a", COUNTED)),
    (says(None), Completion("", "stop", usage=COUNTED)),
]


@pytest.mark.parametrize(("behaviour", "expected"), MISFILED)
async def test_reasoning_is_the_text_of_a_model_that_does_not_think(
    pool: ConnectionPool, openai_server: OpenAIServer, behaviour: Behaviour, expected: Completion
) -> None:
    """A model whose thinking is off may file all of its text as reasoning."""
    openai_server.plays(behaviour)
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=False)
    assert await model.complete(PROMPT) == expected
    assert await streamed(model, PROMPT) == expected


async def test_padding_around_a_reply_is_ignored(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """White space before the body, chunks without choices, comments, and a null usage."""
    body = json.dumps(
        {"choices": [{"message": {"content": "a"}, "finish_reason": None}], "usage": None}
    )
    openai_server.plays(replies(b"\n\n   " + body.encode()))
    assert await model.complete(PROMPT) == Completion("a", "stop")
    chunks = (
        event({"choices": []}),
        event({"choices": [{"delta": {"content": "a"}}], "usage": None}),
        b": wait\n\n",
    )
    openai_server.plays(streams(*chunks, end_event(), DONE))
    assert await streamed(model, PROMPT) == Completion("a", "stop")


async def test_an_impossible_usage_costs_no_text_and_the_last_possible_counts(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    counted = {"prompt_tokens": 11, "completion_tokens": 1}
    impossible = {"prompt_tokens": 1e300, "completion_tokens": 2}
    chunks = [
        event({"choices": [{"delta": {"content": "a"}}], "usage": usage})
        for usage in (counted, impossible)
    ]
    openai_server.plays(streams(*chunks, end_event(), DONE))
    assert await streamed(model, PROMPT) == Completion("aa", "stop", usage=Usage(11, 1))


async def test_a_stream_that_is_left_has_reported_its_usage_so_far(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """The ledger books this count."""
    openai_server.plays(streams(text_event("a", SOFAR), then=hang))
    assert await left(model, PROMPT) == [Delta("a"), Delta(usage=Usage(11, 2))]


FAILURES: list[tuple[Behaviour, type[UpstreamError], str]] = [
    (fails(429, "slow down"), UpstreamUnavailable, "slow down"),
    (fails(503, "loading"), UpstreamUnavailable, "loading"),
    (
        fails(400, "at most 512 tokens"),
        UpstreamRefused,
        "at most 512 tokens; perhaps the prompt is too long",
    ),
    (
        fails(400, "This model's maximum context length is 512 tokens."),
        ContextTooLong,
        "fewer or shorter passages",
    ),
    (fails(401, "no sk-secret"), UpstreamRefused, "check the API key"),
    (fails(418, "teapot"), UpstreamProtocolError, "teapot"),
    (reset, UpstreamUnavailable, ""),
    (replies(b"<html>", "text/html"), UpstreamProtocolError, ""),
    (replies(b'{"error": "out of memory"}'), UpstreamError, ""),
]


@pytest.mark.parametrize(("behaviour", "kind", "message"), FAILURES)
async def test_failures_are_typed_and_name_the_endpoint_but_no_key(
    model: OpenAIHTTP,
    openai_server: OpenAIServer,
    behaviour: Behaviour,
    kind: type[UpstreamError],
    message: str,
) -> None:
    """The server's message is part of the error."""
    openai_server.plays(behaviour)
    with pytest.raises(kind) as whole:
        await model.complete(PROMPT)
    with pytest.raises(kind) as stream:
        await streamed(model, PROMPT)
    for caught in (whole, stream):
        assert message in str(caught.value)
        assert caught.value.endpoint == openai_server.base_url
        assert "sk-secret" not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 7}}]}',
        b'{"choices": [{"message": {"content": "\xff"}}]}',
    ],
)
async def test_a_malformed_reply_of_status_200_is_a_protocol_error(
    model: OpenAIHTTP, openai_server: OpenAIServer, body: bytes
) -> None:
    openai_server.plays(replies(body))
    with pytest.raises(UpstreamProtocolError):
        await model.complete(PROMPT)


@pytest.mark.parametrize(
    ("behaviour", "limit"),
    [
        (replies(b" " * (9 << 20)), "8 M"),
        (streams(*[b": " + b"x" * (1 << 19) + b"\n\n"] * 130, then=hang), "3 M"),
    ],
)
async def test_a_reply_without_an_end_is_left_at_a_maximum_size(
    model: OpenAIHTTP, openai_server: OpenAIServer, behaviour: Behaviour, limit: str
) -> None:
    """The maximum is above any model's output."""
    openai_server.plays(behaviour)
    with pytest.raises(UpstreamProtocolError, match=f"the reply has more than {limit}iB"):
        await streamed(model, PROMPT)


ERROR = event({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}})
HEAD = text_event("a")


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        (streams(HEAD), UpstreamUnavailable, "ended before"),
        (streams(HEAD, DONE), UpstreamUnavailable, "ended before"),
        (streams(HEAD, end_event()[:-9]), UpstreamUnavailable, "ended before"),
        (streams(HEAD, then=reset), UpstreamUnavailable, "closed before the reply ended"),
        (streams(HEAD, ERROR, DONE), UpstreamUnavailable, "engine died"),
        (
            streams(HEAD, event({"error": {"message": "too long", "code": 400}})),
            UpstreamRefused,
            "too long",
        ),
        (streams(HEAD, event({"error": "out of memory"})), UpstreamUnavailable, "out of memory"),
        (
            streams(HEAD, event({"error": {"code": "context_length_exceeded"}})),
            ContextTooLong,
            "passages",
        ),
        (streams(HEAD, b"data: {nope\n\n"), UpstreamProtocolError, "nope"),
        (streams(HEAD, b'data: {"choices": 7}\n\n'), UpstreamUnavailable, "ended before"),
        (
            streams(HEAD, b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'),
            UpstreamProtocolError,
            "utf-8",
        ),
        (streams(HEAD, b"x" * (2**20 + 1)), UpstreamProtocolError, "1048576"),
    ],
)
async def test_a_broken_stream_is_a_typed_error_after_its_deltas(
    model: OpenAIHTTP,
    openai_server: OpenAIServer,
    behaviour: Behaviour,
    kind: type[UpstreamError],
    message: str,
) -> None:
    """The text before the break is delivered."""
    openai_server.plays(behaviour)
    texts = list[str]()
    with pytest.raises(kind, match=message):
        await model.stream(PROMPT, lambda delta: texts.append(delta.text))
    assert texts == ["a"]


@pytest.mark.parametrize(
    "tail", [streams(HEAD, end_event(), then=reset), streams(HEAD, end_event())]
)
async def test_a_stream_that_breaks_after_its_finish_reason_loses_only_its_usage(
    model: OpenAIHTTP, openai_server: OpenAIServer, tail: Behaviour
) -> None:
    openai_server.plays(tail)
    assert await streamed(model, PROMPT) == Completion("a", "stop")


async def test_a_port_without_a_listener_is_unavailable(pool: ConnectionPool) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(UpstreamUnavailable, match=str(port)):
            await OpenAIHTTP(pool, f"http://127.0.0.1:{port}/v1", MODEL).complete(PROMPT)


@pytest.mark.parametrize("address", ["ftp://x/v1", "no address", "http://"])
async def test_a_malformed_address_is_refused_and_not_retried(
    pool: ConnectionPool, address: str
) -> None:
    with pytest.raises(UpstreamRefused, match="check the endpoint's address"):
        await OpenAIHTTP(pool, address, MODEL).complete(PROMPT)


async def test_a_stream_that_overruns_a_stop_string_is_left(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """The engine is left immediately, so its last usage is a lower bound."""
    pieces = (text_event("a</", SOFAR), text_event("x>b", SOFAR))
    openai_server.plays(streams(*pieces, then=hang))
    assert await streamed(model, PROMPT) == Completion(
        "a</x>", "stop", usage=Usage(11, 2, lower_bound=True), overran=True
    )
    await disconnects(openai_server)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (
            [
                text_event("word ", {"prompt_tokens": 11, "completion_tokens": n})
                for n in range(1, 6)
            ],
            Completion("word " * 3, "length", usage=Usage(11, 2, lower_bound=True)),
        ),
        ([text_event("x" * 200)] * 3, Completion("x" * 320, "length")),
    ],
)
async def test_a_stream_that_overruns_its_token_limit_is_left(
    model: OpenAIHTTP, openai_server: OpenAIServer, pieces: list[bytes], expected: Completion
) -> None:
    """Without a count, the limit is the most text that so many tokens can hold."""
    openai_server.plays(streams(*pieces, then=hang))
    assert await streamed(model, msgspec.structs.replace(PROMPT, sampling=Sampling(2))) == expected
    await disconnects(openai_server)


async def test_a_stream_without_a_reader_may_send_several_tokens_at_a_time(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """The completion is equal. Only an endpoint with an `interval` is asked for it."""
    openai_server.plays(says(*"abcdef"))
    deltas = list[Delta]()
    for interval in (8, None):
        model = OpenAIHTTP(pool, openai_server.base_url, MODEL, interval=interval)
        assert await model.stream(PROMPT, deltas.append, live=False) == await streamed(
            model, PROMPT
        )
        await model.complete(PROMPT)
    assert "".join(delta.text for delta in deltas) == "abcdef" * 2
    assert [body.get("stream_interval") for body in openai_server.bodies] == [
        8,
        None,
        None,
        None,
        None,
        None,
    ]


async def test_leaving_a_stream_stops_the_work_upstream(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    openai_server.plays(streams(HEAD, then=hang))
    assert await left(model, PROMPT) == [Delta("a")]
    await disconnects(openai_server)


async def test_an_error_of_the_reader_is_passed_on_unchanged(model: OpenAIHTTP) -> None:
    """It is not taken for a network error, even if it looks like one."""
    error = ConnectionResetError("the reader's own")

    def on_delta(_delta: Delta) -> None:
        raise error

    with pytest.raises(ConnectionResetError) as caught:
        await model.stream(PROMPT, on_delta)
    assert caught.value is error


async def test_calls_that_end_share_one_connection(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """Streamed or whole, refused or not."""
    openai_server.plays(says("a"), says("b"), fails(400, "no"), says("c"), says("d"))
    await streamed(model, PROMPT)
    await model.complete(PROMPT)
    with pytest.raises(UpstreamRefused):
        await streamed(model, PROMPT)
    await streamed(model, PROMPT)
    await model.complete(PROMPT)
    assert len(openai_server.connections) == 1


async def test_a_connection_is_reused_though_its_body_ends_late(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """The body ends a little after the last event."""
    last_delta_read = asyncio.Event()

    async def wait(_request: web.Request) -> None:
        await last_delta_read.wait()

    openai_server.plays(streams(HEAD, end_event(), DONE, then=wait), says("b"))
    await streamed(model, PROMPT)
    last_delta_read.set()
    await asyncio.sleep(0.1)
    await model.complete(PROMPT)
    assert len(openai_server.connections) == 1


async def test_a_call_is_one_request_though_its_pooled_connection_breaks(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    openai_server.plays(says("a"), reset)
    await model.complete(PROMPT)
    with pytest.raises(UpstreamUnavailable):
        await model.complete(PROMPT)
    assert len(openai_server.bodies) == 2


XAI = {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}
"""A usage that counts reasoning separately from the output."""


def usage_reply(usage: object) -> bytes:
    """Return the body of a whole reply with this usage."""
    return json.dumps({"choices": [{"message": {"content": "a"}}], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 0}, Usage(3, 0)),
        ({"prompt_tokens": 3, "completion_tokens": None}, None),
        ({"prompt_tokens": 3}, None),
        ({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}, Usage(3, 1)),
        (
            {
                "prompt_tokens": 3,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
            Usage(3, 1, 0),
        ),
        (
            {"prompt_tokens": 3, "completion_tokens": 1, "completion_tokens_details": {}},
            Usage(3, 1),
        ),
        (
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_cache_hit_tokens": 2},
            Usage(3, 1, 2),
        ),
        ({"prompt_tokens": -1, "completion_tokens": 1}, Usage(-1, 1)),
        ({"prompt_tokens": 3, "completion_tokens": 2**63 - 1}, Usage(3, 2**63 - 1)),
        ({"prompt_tokens": "3", "completion_tokens": 1}, Usage(-1, -1)),
        ({"prompt_tokens": 3, "completion_tokens": True}, Usage(-1, -1)),
        ({"prompt_tokens": 3.5, "completion_tokens": 1}, Usage(-1, -1)),
        ([3, 1], Usage(-1, -1)),
        ({**XAI, "completion_tokens_details": {"reasoning_tokens": 94}}, Usage(32, 103, None, 94)),
    ],
)
async def test_missing_counts_are_unknown_and_malformed_ones_impossible(
    model: OpenAIHTTP, openai_server: OpenAIServer, usage: object, expected: Usage | None
) -> None:
    """Other counts are kept for the ledger to judge."""
    openai_server.plays(replies(usage_reply(usage)))
    assert (await model.complete(PROMPT)).usage == expected
