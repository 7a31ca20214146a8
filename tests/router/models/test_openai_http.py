"""The client of OpenAI-compatible endpoints, against a real server."""

import asyncio
import json
import socket

import msgspec
import pytest
from aiohttp import web

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
from router.testing.openai_server import (
    DONE,
    MODEL,
    Behaviour,
    OpenAIServer,
    end_event,
    event,
    fails,
    hang,
    replies,
    reset,
    says,
    streams,
    text_event,
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
async def test_both_ways(
    model: OpenAIHTTP, openai_server: OpenAIServer, behaviour: Behaviour, expected: Completion
) -> None:
    """A stream amounts to what the whole reply would be, usage included."""
    openai_server.plays(behaviour)
    assert await model.complete(PROMPT) == expected
    assert await streamed(model, PROMPT) == expected


async def test_request(pool: ConnectionPool, openai_server: OpenAIServer) -> None:
    """The request has what was set, and nothing that was not; a stream asks for usage with
    every chunk.
    """
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


async def test_request_id(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    """A call that has a name carries it."""
    await model.complete(msgspec.structs.replace(PROMPT, request_id="run-1-0"))
    await streamed(model, msgspec.structs.replace(PROMPT, request_id="run-1-1"))
    await model.complete(PROMPT)
    assert openai_server.request_ids == ["run-1-0", "run-1-1", None]


async def test_tokens_that_are_asked_for(pool: ConnectionPool, openai_server: OpenAIServer) -> None:
    """They come with whole replies, where the endpoint has them; one that refuses the option is
    not asked again.
    """
    body = (
        b'{"choices":[{"message":{"content":"a"},"token_ids":[7,8],"finish_reason":"stop"}],'
        b'"prompt_token_ids":[1,2]}'
    )
    openai_server.plays(
        replies(body), replies(body), says("a"), fails(400, "Unknown: return_token_ids"), says("a")
    )
    asking = OpenAIHTTP(pool, openai_server.base_url, MODEL, extra_body={"return_token_ids": True})
    plain = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    found = [
        (await model.complete(PROMPT)).tokens for model in (asking, plain, asking, asking, asking)
    ]
    assert found == [TokenIds((1, 2), (7, 8)), *[msgspec.UNSET] * 4]
    assert ["return_token_ids" in one for one in openai_server.bodies] == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]


async def test_logprobs_that_are_asked_for(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """They come with the tokens, one for each; an endpoint that refuses them is asked for the
    tokens alone.
    """

    def told(logprobs: str) -> Behaviour:
        choice = (
            f'"message":{{"content":"a"}},"token_ids":[7,8],"finish_reason":"stop",'
            f'"logprobs":{logprobs}'
        )
        return replies(f'{{"choices":[{{{choice}}}],"prompt_token_ids":[1,2]}}'.encode())

    both = (
        '{"content":[{"token":"x","logprob":-0.5,"bytes":[1],"top_logprobs":[]},'
        '{"logprob":-2}],"refusal":null}'
    )
    one = '{"content":[{"logprob":-0.5}]}'
    none = '{"content":null}'
    refused = fails(400, "logprobs are not supported")
    openai_server.plays(told(both), told(one), told(none), told("null"), refused, told("null"))
    model = OpenAIHTTP(
        pool, openai_server.base_url, MODEL, extra_body={"return_token_ids": True, "logprobs": True}
    )
    found = [(await model.complete(PROMPT)).tokens for _ in range(5)]
    assert found == [TokenIds((1, 2), (7, 8), (-0.5, -2.0)), *[TokenIds((1, 2), (7, 8))] * 4]
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


@pytest.mark.parametrize(("status", "said"), UNKNOWN)
async def test_a_refused_option(
    model: OpenAIHTTP, openai_server: OpenAIServer, status: int, said: str
) -> None:
    """An endpoint that does not know an option of a stream is asked without it, at once and
    from then on.
    """
    openai_server.plays(fails(status, said), says("a"))
    assert (await streamed(model, PROMPT)).text == "a"
    await streamed(model, PROMPT)
    assert [body["stream_options"] for body in openai_server.bodies[1:]] == [
        {"include_usage": True}
    ] * 2
    openai_server.plays(fails(status, said), says("a"))
    assert (await streamed(model, PROMPT)).text == "a"
    await streamed(model, PROMPT)
    assert ["stream_options" in body for body in openai_server.bodies[3:]] == [True, False, False]
    openai_server.plays(fails(status, said))
    with pytest.raises(UpstreamRefused):
        await streamed(model, PROMPT)
    assert all(body["stream"] for body in openai_server.bodies)


async def test_an_endpoint_that_cannot_stream(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """A whole reply where a stream was asked for is taken as it is."""
    openai_server.plays(replies(usage_reply({"prompt_tokens": 3, "completion_tokens": 1})))
    assert await streamed(model, PROMPT) == Completion("a", "stop", usage=Usage(3, 1))


async def test_counting(pool: ConnectionPool, openai_server: OpenAIServer) -> None:
    """vLLM counts prompts with their template, and texts by themselves."""
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


async def test_an_endpoint_that_does_not_count(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """It is not asked a second time."""
    assert await model.count(PROMPT, "") is None
    assert await model.count(PROMPT, "a") is None
    assert len(openai_server.counted) == 1


async def test_extra_body(pool: ConnectionPool, openai_server: OpenAIServer) -> None:
    """Further fields go along as they are and win, but for what the call itself is; tables are
    merged.
    """
    kwargs = {
        "chat_template_kwargs": {"tools": [1]},
        "top_k": 20,
        "temperature": 0.6,
        "stream_options": {"x": 1},
    }
    ours = {"model": "other", "messages": [], "stream": True}
    model = OpenAIHTTP(
        pool, openai_server.base_url, MODEL, thinking=True, extra_body={**kwargs, **ours}
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
async def test_misfiled_output(
    pool: ConnectionPool, openai_server: OpenAIServer, behaviour: Behaviour, expected: Completion
) -> None:
    """Of a model whose thinking is off, reasoning without any text is the text."""
    openai_server.plays(behaviour)
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=False)
    assert await model.complete(PROMPT) == expected
    assert await streamed(model, PROMPT) == expected


async def test_padding(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    """White space before the body, chunks without choices and a usage of null are no harm."""
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


async def test_a_usage_that_cannot_be(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    """It costs nothing of the text, and the last one that can be counts."""
    counted = {"prompt_tokens": 11, "completion_tokens": 1}
    lied = {"prompt_tokens": 1e300, "completion_tokens": 2}
    chunks = [
        event({"choices": [{"delta": {"content": "a"}}], "usage": usage})
        for usage in (counted, lied)
    ]
    openai_server.plays(streams(*chunks, end_event(), DONE))
    assert await streamed(model, PROMPT) == Completion("aa", "stop", usage=Usage(11, 1))


async def test_usage_as_it_grows(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    """A stream that is left tells the count so far, which is what can be booked of it."""
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


@pytest.mark.parametrize(("behaviour", "kind", "said"), FAILURES)
async def test_failures(
    model: OpenAIHTTP,
    openai_server: OpenAIServer,
    behaviour: Behaviour,
    kind: type[UpstreamError],
    said: str,
) -> None:
    """Failures are typed, say what the server said, name the endpoint, and keep the key to
    themselves.
    """
    openai_server.plays(behaviour)
    with pytest.raises(kind) as whole:
        await model.complete(PROMPT)
    with pytest.raises(kind) as stream:
        await streamed(model, PROMPT)
    for caught in (whole, stream):
        assert said in str(caught.value)
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
async def test_garbage(model: OpenAIHTTP, openai_server: OpenAIServer, body: bytes) -> None:
    """A reply of status 200 that is none is garbled, not an exception of a decoder."""
    openai_server.plays(replies(body))
    with pytest.raises(UpstreamProtocolError):
        await model.complete(PROMPT)


@pytest.mark.parametrize(
    ("behaviour", "most"),
    [
        (replies(b" " * (9 << 20)), "8 M"),
        (streams(*[b": " + b"x" * (1 << 19) + b"\n\n"] * 130, then=hang), "3 M"),
    ],
)
async def test_a_reply_without_an_end(
    model: OpenAIHTTP, openai_server: OpenAIServer, behaviour: Behaviour, most: str
) -> None:
    """It is left where no model would have written as much."""
    openai_server.plays(behaviour)
    with pytest.raises(UpstreamProtocolError, match=f"a reply of more than {most}iB"):
        await streamed(model, PROMPT)


ERROR = event({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}})
HEAD = text_event("a")


@pytest.mark.parametrize(
    ("behaviour", "kind", "said"),
    [
        (streams(HEAD), UpstreamUnavailable, "cut"),
        (streams(HEAD, DONE), UpstreamUnavailable, "cut"),
        (streams(HEAD, end_event()[:-9]), UpstreamUnavailable, "cut"),
        (streams(HEAD, then=reset), UpstreamUnavailable, "closed before the end"),
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
        (streams(HEAD, b'data: {"choices": 7}\n\n'), UpstreamUnavailable, "cut"),
        (
            streams(HEAD, b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'),
            UpstreamProtocolError,
            "utf-8",
        ),
        (streams(HEAD, b"x" * (2**20 + 1)), UpstreamProtocolError, "1048576"),
    ],
)
async def test_broken_streams(
    model: OpenAIHTTP,
    openai_server: OpenAIServer,
    behaviour: Behaviour,
    kind: type[UpstreamError],
    said: str,
) -> None:
    """What came before a break is delivered; the break is a typed error, never a quiet end."""
    openai_server.plays(behaviour)
    texts = list[str]()
    with pytest.raises(kind, match=said):
        await model.stream(PROMPT, lambda delta: texts.append(delta.text))
    assert texts == ["a"]


@pytest.mark.parametrize(
    "tail", [streams(HEAD, end_event(), then=reset), streams(HEAD, end_event())]
)
async def test_broken_after_the_end(
    model: OpenAIHTTP, openai_server: OpenAIServer, tail: Behaviour
) -> None:
    """A stream that breaks after its finish reason has lost its usage only."""
    openai_server.plays(tail)
    assert await streamed(model, PROMPT) == Completion("a", "stop")


async def test_nobody_listens(pool: ConnectionPool) -> None:
    """A port where nobody listens is unavailable."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(UpstreamUnavailable, match=str(port)):
            await OpenAIHTTP(pool, f"http://127.0.0.1:{port}/v1", MODEL).complete(PROMPT)


@pytest.mark.parametrize("address", ["ftp://x/v1", "no address", "http://"])
async def test_wrong_address(pool: ConnectionPool, address: str) -> None:
    """What is no address is refused and not retried."""
    with pytest.raises(UpstreamRefused, match="check its address"):
        await OpenAIHTTP(pool, address, MODEL).complete(PROMPT)


async def test_ignored_stop(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    """An engine that writes on past a stop string is left at once, and its last count is a
    lower bound.
    """
    pieces = (text_event("a</", SOFAR), text_event("x>b", SOFAR))
    openai_server.plays(streams(*pieces, then=hang))
    assert await streamed(model, PROMPT) == Completion(
        "a</x>", "stop", usage=Usage(11, 2, lower_bound=True), overran=True
    )
    await openai_server.sees_disconnect()


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
async def test_ignored_limit(
    model: OpenAIHTTP, openai_server: OpenAIServer, pieces: list[bytes], expected: Completion
) -> None:
    """An engine that writes on after it has counted more than it was to write is left, and so is
    one that does not count, by what so many tokens can hold.
    """
    openai_server.plays(streams(*pieces, then=hang))
    assert await streamed(model, msgspec.structs.replace(PROMPT, sampling=Sampling(2))) == expected
    await openai_server.sees_disconnect()


async def test_a_stream_that_nobody_follows(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """It is the same, and some of its tokens may be sent at a time, if the endpoint knows how."""
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


async def test_leaving(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    """Leaving a stream stops the work upstream."""
    openai_server.plays(streams(HEAD, then=hang))
    assert await left(model, PROMPT) == [Delta("a")]
    await openai_server.sees_disconnect()


async def test_the_readers_errors(model: OpenAIHTTP) -> None:
    """An error of the stream's reader stays what it is, though it looks like one of the network."""
    error = ConnectionResetError("the reader's own")

    def on_delta(_delta: Delta) -> None:
        raise error

    with pytest.raises(ConnectionResetError) as caught:
        await model.stream(PROMPT, on_delta)
    assert caught.value is error


async def test_pooled(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    """Calls that ended well, streamed or whole, refused or not, share one connection."""
    openai_server.plays(says("a"), says("b"), fails(400, "no"), says("c"), says("d"))
    await streamed(model, PROMPT)
    await model.complete(PROMPT)
    with pytest.raises(UpstreamRefused):
        await streamed(model, PROMPT)
    await streamed(model, PROMPT)
    await model.complete(PROMPT)
    assert len(openai_server.connections) == 1


async def test_pooled_though_the_end_is_late(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """A connection whose body ends a little after the last event is used again."""
    last_delta_read = asyncio.Event()

    async def wait(_request: web.Request) -> None:
        await last_delta_read.wait()

    openai_server.plays(streams(HEAD, end_event(), DONE, then=wait), says("b"))
    await streamed(model, PROMPT)
    last_delta_read.set()
    await asyncio.sleep(0.1)
    await model.complete(PROMPT)
    assert len(openai_server.connections) == 1


async def test_one_attempt(model: OpenAIHTTP, openai_server: OpenAIServer) -> None:
    """A call is one request, also when a pooled connection breaks under it."""
    openai_server.plays(says("a"), reset)
    await model.complete(PROMPT)
    with pytest.raises(UpstreamUnavailable):
        await model.complete(PROMPT)
    assert len(openai_server.bodies) == 2


XAI = {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135}
"""It counts reasoning beside what is written."""


def usage_reply(usage: object) -> bytes:
    """A whole reply with this usage."""
    return json.dumps({"choices": [{"message": {"content": "a"}}], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("said", "expected"),
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
async def test_usage(
    model: OpenAIHTTP, openai_server: OpenAIServer, said: object, expected: Usage | None
) -> None:
    """A missing count is unknown, not zero; a count that is no whole number is impossible; others
    are kept for the ledger to judge.
    """
    openai_server.plays(replies(usage_reply(said)))
    assert (await model.complete(PROMPT)).usage == expected
