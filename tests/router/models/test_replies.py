"""Any reply from which text can be read is read, and everything else in it is ignored."""

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from router.errors import (
    ContentRefused,
    ContextTooLong,
    UpstreamError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models import Completion, Message, Prompt, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.litellm_client import LiteLLMModel, close_clients
from router.models.openai_client import OpenAIHTTP
from router.models.openai_wire import read_replies
from router.models.streaming import StreamedReply
from tests.openai_behaviours import end_event, replies, text_event
from tests.openai_server import (
    DONE,
    MODEL,
    Behaviour,
    OpenAIServer,
    event,
    fails,
    says,
    serving,
    streams,
)
from tests.router.models.reading import streamed

PROMPT = Prompt((Message("user", "hi"),), Sampling(), stop=("</x>",))


@pytest.fixture
def model(pool: ConnectionPool, openai_server: OpenAIServer) -> OpenAIHTTP:
    return OpenAIHTTP(pool, openai_server.base_url, MODEL, api_key="sk-secret")


def choice(message: object, **fields: Any) -> dict[str, Any]:
    """Return a complete choice."""
    return {"index": 0, "message": message, "finish_reason": "stop", **fields}


PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
    {"type": "summary_text", "text": "!"},
    None,
    {"type": "text", "text": "a"},
    "b",
    7,
]
MESSAGE = {"role": "assistant", "content": "ab"}
EMPTY_CALLS: list[dict[str, Any]] = [
    {"tool_calls": [{}]},
    {"tool_calls": [{}, {}]},
    {"tool_calls": [{"function": {}}]},
    {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": None}]},
    {"tool_calls": [{"function": {"name": None, "arguments": None}}]},
    {"tool_calls": [{"id": "", "function": {"name": "", "arguments": ""}}]},
    {"tool_calls": [{"id": "a", "function": {"name": " ", "arguments": "{}"}}]},
    {"tool_calls": [{"name": "", "arguments": {}}]},
    {"tool_calls": [{"function": {"name": 5, "arguments": '{"a": 1}'}}]},
    {"tool_calls": {}},
    {"function_call": {}},
    {"function_call": {"name": "", "arguments": ""}},
    {"function_call": {"name": None, "arguments": "{}"}},
    {"function_call": {}, "tool_calls": [{"function": {}}]},
]
"""Calls without a name, which are ignored."""
WHOLE: dict[str, dict[str, Any]] = {
    "content in parts": {"choices": [choice({"content": PARTS})]},
    "results of tools, and citations, next to the text": {
        "choices": [
            choice(
                {
                    "content": [
                        {"type": "tool_result", "content": "raw"},
                        {"type": "text", "text": "ab"},
                        {"type": "citation", "content": "[1]"},
                    ]
                }
            )
        ]
    },
    "content in one part": {"choices": [choice({"content": {"type": "text", "text": "ab"}})]},
    "text in a table": {
        "choices": [choice({"content": [{"type": "text", "text": {"value": "ab"}}]})]
    },
    **{
        f"content as {content}": {"choices": [choice({"content": content})]}
        for content in (
            {"value": "ab"},
            {"content": "ab"},
            {"parts": ["a", {"text": "b"}]},
            {"text": None, "content": [{"type": "text", "text": {"content": "ab"}}]},
            [{"type": "text", "content": "ab"}],
            [{"type": "text", "value": "a"}, {"parts": [{"text": "b"}]}],
            [["a"], ["b"]],
            [{"type": "image", "url": "x"}, "ab"],
        )
    },
    "message as text": {"choices": [choice("ab")]},
    "message as a list": {"choices": [choice([MESSAGE])]},
    "delta as text": {"choices": [{"delta": "ab", "finish_reason": "stop"}]},
    "choices no list": {"choices": choice(MESSAGE)},
    "tool calls null": {"choices": [choice({**MESSAGE, "tool_calls": [None]})]},
    "tool calls no list": {"choices": [choice({**MESSAGE, "tool_calls": {}})]},
    "a function null": {
        "choices": [choice({**MESSAGE, "tool_calls": [7, "x"], "function_call": None})]
    },
    **{f"an empty call {call}": {"choices": [choice({**MESSAGE, **call})]} for call in EMPTY_CALLS},
    "the only index": {"choices": [choice(MESSAGE, index=3)]},
    "index as text": {"choices": [choice(MESSAGE, index="0")]},
    "index null": {"choices": [choice(MESSAGE, index=None)]},
    "null next to it": {"choices": [None, 7, choice(MESSAGE)]},
    "finish reason 1": {"choices": [choice(MESSAGE, finish_reason=1)]},
    "finish reason in a table": {"choices": [choice(MESSAGE, finish_reason={"type": "stop"})]},
    "no finish reason": {"choices": [{"message": MESSAGE}]},
    "stop reason 1.5": {"choices": [choice(MESSAGE, stop_reason=1.5)]},
    "an empty delta": {"choices": [choice(MESSAGE, delta={})]},
    "an empty message": {"choices": [choice({}, delta=MESSAGE)]},
    "text": {"choices": [{"text": "ab", "finish_reason": "stop", "logprobs": None}]},
    "any id": {
        "id": 7,
        "created": "now",
        "model": None,
        "object": [],
        "choices": [choice(MESSAGE)],
    },
    "log probabilities": {
        "choices": [choice(MESSAGE, logprobs={"content": [{"logprob": float("-inf")}]})]
    },
    "reasoning in a list": {
        "choices": [choice({**MESSAGE, "reasoning": [1], "reasoning_content": {}})]
    },
    "usage null": {"choices": [choice(MESSAGE)], "usage": None},
    "usage of nothing": {"choices": [choice(MESSAGE)], "usage": {}},
    "no block": {"choices": [choice(MESSAGE)], "promptFeedback": {"safetyRatings": []}},
    "no error": {"choices": [choice(MESSAGE)], "error": {}},
    "an error without words": {"choices": [choice(MESSAGE)], "error": {"details": []}},
    "error null": {"choices": [choice(MESSAGE)], "error": None},
    "error false": {"choices": [choice(MESSAGE)], "error": False},
}


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "application/octet-stream", "text/event-stream"]
)
async def test_a_reply_is_read_regardless_of_its_content_type(
    model: OpenAIHTTP, openai_server: OpenAIServer, kind: str
) -> None:
    """Whole replies and streams are recognised, regardless of the request too."""
    for body in (
        json.dumps(WHOLE["text"]).encode(),
        text_event("a") + text_event("b") + end_event() + DONE,
    ):
        openai_server.plays(replies(body, kind))
        assert (await model.complete(PROMPT)).text == "ab"
        assert (await streamed(model, PROMPT)).text == "ab"


@pytest.mark.parametrize("reply", WHOLE.values(), ids=WHOLE.keys())
async def test_a_whole_reply_is_read_with_or_without_streaming(
    model: OpenAIHTTP, openai_server: OpenAIServer, reply: dict[str, Any]
) -> None:
    """Usage that is not reported is unknown."""
    openai_server.plays(replies(json.dumps(reply).encode()))
    for output in (await model.complete(PROMPT), await streamed(model, PROMPT)):
        assert (output.text, output.finish_reason, output.usage) == ("ab", "stop", None)
        assert output.reasoning == ("hm!" if reply is WHOLE["content in parts"] else "")


def piece(delta: object, **fields: Any) -> bytes:
    """Return an event of a stream."""
    return event({"choices": [{"index": 0, "delta": delta, **fields}]})


A = text_event("a")
B = text_event("b")
END = end_event()
STREAMS: dict[str, bytes] = {
    "null": b"data: null\n\n" + A + b"data: null\n\n" + B + END,
    "no tables": b'data: 7\n\ndata: []\n\ndata: "x"\n\ndata: {}\n\n' + A + B + END,
    "choices null": event({"choices": [None]}) + A + event({"choices": None}) + B + END,
    "delta as text": piece("a") + piece("b") + END,
    "one choice, no list": event({"choices": {"delta": {"content": "a"}}})
    + event({"choices": {"delta": "b"}})
    + END,
    "choices no list": event({"choices": 7}) + A + B + END,
    "the only index": A.replace(b'"index":0', b'"index":3')
    + B.replace(b'"index":0', b'"index":3')
    + END,
    "a message next to the delta": piece({"content": "a"}, message={})
    + piece({"content": "b"}, message=None)
    + END,
    "a message instead": event({"choices": [{"message": {"content": "a"}, "delta": {}}]}) + B + END,
    "text": event({"choices": [{"text": "a"}]})
    + event({"choices": [{"text": "b", "finish_reason": "stop"}]}),
    "finish reason 1": A + piece({"content": "b"}, finish_reason=1),
    "false finish reasons": piece({"content": "a"}, finish_reason="")
    + piece({"content": "b"}, finish_reason=0)
    + END,
    "parts": piece({"content": [{"type": "text", "text": "a"}]}) + B + END,
    "a finish reason with each": piece({"content": "a"}, finish_reason="stop")
    + piece({"content": "b"}, finish_reason="stop")
    + END,
    "a finish reason too early": A + END + B + END,
    "finish reason null as text": piece({"content": "a"}, finish_reason="null")
    + piece({"content": "b"}, finish_reason="None")
    + END,
    "another choice": A
    + event({"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "stop"}]})
    + B
    + event({"choices": [{"index": 1, "delta": {"content": "x"}}]})
    + END,
    "delta null": piece(None) + A + piece(None) + B + END,
    "usage null": piece({"content": "a"}, usage=None)
    + B
    + event({"choices": [], "usage": None})
    + END,
    "comments and fields": b": hello\n\nevent: message\nid: 1\n"
    + A
    + b"retry: 1\n\nevent: x\n\n"
    + B
    + END,
    "CR LF": (A + B + END + DONE).replace(b"\n", b"\r\n"),
    "a byte order mark": b"\xef\xbb\xbf" + A + B + END,
    "no space": (A + B + END).replace(b"data: ", b"data:"),
    "no end": A + B + END,
    "no last line": A + B + END.removesuffix(b"\n\n"),
    "single lines": (A + B + END + DONE).replace(b"\n\n", b"\n"),
    "several in one": b"data: " + b"".join(chunk[6:-2] for chunk in (A, B, END)) + b"\n\n",
    **{f"an empty call {call}": A + piece(call) + B + END for call in EMPTY_CALLS},
    **{f"an empty call at last {call}": A + B + piece(call) + END for call in EMPTY_CALLS[:2]},
    "not a number": A.replace(b'"index":0', b'"index":0,"logprobs":{"x":NaN,"y":-Infinity}')
    + B
    + END,
}


@pytest.mark.parametrize("body", STREAMS.values(), ids=STREAMS.keys())
async def test_a_stream_is_read_with_or_without_streaming(
    model: OpenAIHTTP, openai_server: OpenAIServer, body: bytes
) -> None:
    """Its events may arrive in any pieces."""
    openai_server.plays(
        streams(body), streams(*[body[at : at + 7] for at in range(0, len(body), 7)]), streams(body)
    )
    outputs = [
        await streamed(model, PROMPT),
        await streamed(model, PROMPT),
        await model.complete(PROMPT),
    ]
    assert outputs == [Completion("ab", "stop")] * 3


CHUNKS = [A, piece({"content": "b"}), END]
LINES = b"\n".join(chunk.removeprefix(b"data: ").strip() for chunk in CHUNKS)


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_chunks_in_lines_are_a_stream(
    model: OpenAIHTTP, openai_server: OpenAIServer, kind: str
) -> None:
    """Without its last chunk, the output is cut and not whole."""
    openai_server.plays(replies(LINES, kind))
    assert (await model.complete(PROMPT)).text == "ab"
    for lines in (1, 2):
        openai_server.plays(replies(b"\n".join(LINES.split(b"\n")[:lines]), kind))
        with pytest.raises(UpstreamUnavailable, match="ended before the output was complete"):
            await model.complete(PROMPT)


async def test_a_reply_of_status_201_is_read(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    """Some servers answer every POST with this status."""
    openai_server.plays(replies(json.dumps(WHOLE["any id"]).encode(), status=201))
    assert (await model.complete(PROMPT)).text == "ab"


@pytest.mark.parametrize("count", [4_000, 5_000])
async def test_an_event_of_too_many_values_is_refused(
    model: OpenAIHTTP, openai_server: OpenAIServer, count: int
) -> None:
    """A few thousand values are read; each costs a step."""
    openai_server.plays(streams(b"data: " + b"{} " * count + b"\n\n", A, B, END, DONE))
    if count > 4_096:
        with pytest.raises(UpstreamError):
            await streamed(model, PROMPT)
    else:
        assert (await streamed(model, PROMPT)).text == "ab"


def _cpu_s(work: Callable[[], object]) -> float:
    """Return the shortest CPU time of three runs, in seconds."""
    times = []
    for _ in range(3):
        begun = time.thread_time()
        work()
        times.append(time.thread_time() - begun)
    return min(times)


NULLS = b"null," * 200_000
MALFORMED_CALLS = (
    b'{"index":"x","delta":{"tool_calls":['
    + b'{"index":[],"function":{"name":1}},' * 500
    + b"7]}},"
)
LISTS: dict[str, bytes] = {
    "choices": b'{"index":"x"},' * 60_000 + b"7",
    "choices null": NULLS + b"7",
    "calls null": b'{"delta":{"tool_calls":[' + NULLS + b"7]}}",
    "calls and a malformed one": b'{"delta":{"tool_calls":['
    + b"{}," * 200_000
    + b'{"index":1.5}]}}',
    "calls": b'{"delta":{"tool_calls":[' + b"{}," * 300_000 + b"{}]}}",
    "parts": b'{"delta":{"content":[' + b"1," * 400_000 + b"1]}}",
    "parts of a part": b'{"delta":{"content":[{"thinking":[' + b"{}," * 300_000 + b"{}]}]}}",
    "calls of choices": MALFORMED_CALLS * 20 + b"7",
}


@pytest.mark.parametrize("choices", LISTS.values(), ids=LISTS.keys())
def test_items_late_in_a_long_list_are_skipped(choices: bytes) -> None:
    """Items after the first hundreds, or the first of a list with malformed ones, cost no time.
    The text before them is read.
    """
    calls = b'{"delta":{"content":"ab","tool_calls":[null]},"finish_reason":"x"},'
    body = b'{"choices":[' + calls + choices + b"]}"
    prefix = b'{"choices":[' + choices + b"]}"

    def read() -> None:
        streamed_reply = StreamedReply(Prompt((), Sampling()))
        for reply in (*read_replies(body), *read_replies(prefix)):
            streamed_reply.take(reply)
        streamed_reply.end()

    assert _cpu_s(read) < 20 * _cpu_s(lambda: json.loads(body))
    (reply,) = read_replies(body)
    assert reply.choice
    assert reply.choice.content.content == "ab"


@pytest.mark.timing
def test_a_small_malformed_event_is_read_quickly() -> None:
    """An event takes far less than a millisecond, as many arrive in one step."""
    event = b'{"choices":[{"index":"q","delta":{"content":5},"message":[]}],"usage":5}'
    begun = time.thread_time()
    for _ in range(1000):
        read_replies(event)
    assert time.thread_time() - begun < 0.1


@pytest.fixture
async def hosted(openai_server: OpenAIServer) -> AsyncIterator[LiteLLMModel]:
    yield LiteLLMModel(f"openai/{MODEL}", api_key="sk-secret", api_base=openai_server.base_url)
    await close_clients()


@pytest.mark.parametrize(
    "content", ["<think>x</x></think>ab", "[THINK]x</x>[/THINK]ab", "x</x></think>ab"]
)
async def test_thoughts_are_separated_through_litellm_before_the_text_is_cut(
    hosted: LiteLLMModel, openai_server: OpenAIServer, content: str
) -> None:
    openai_server.plays(says(content))
    output = await hosted.complete(PROMPT)
    assert (output.text, output.reasoning) == ("ab", "x</x>")


REFUSALS: dict[str, dict[str, Any]] = {
    "refusal": {"choices": [choice({"content": None, "refusal": "I will not."})]},
    "a part": {"choices": [choice({"content": [{"type": "refusal", "refusal": "I will not."}]})]},
    "a filter": {"choices": [choice({"content": "I will not."}, finish_reason="content_filter")]},
    "a filter, silent": {
        "choices": [choice({"content": None, "refusal": "I will not."}, finish_reason="SAFETY")]
    },
    **{
        f"a filter, {reason}": {
            "choices": [choice({"content": "I will not."}, finish_reason=reason)]
        }
        for reason in (
            "content_filter: PROHIBITED_CONTENT",
            "PROHIBITED_CONTENT",
            "IMAGE_SAFETY",
            "SPII",
            "BLOCKLIST",
            "refusal",
            "guardrail_intervened",
        )
    },
}


@pytest.mark.parametrize("reply", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_refusal_keeps_its_words(
    model: OpenAIHTTP, openai_server: OpenAIServer, reply: dict[str, Any]
) -> None:
    """An output that a content filter has ended is a refusal too."""
    openai_server.plays(replies(json.dumps(reply).encode()))
    for output in (model.complete(PROMPT), streamed(model, PROMPT)):
        with pytest.raises(
            ContentRefused, match=r"declined the prompt; rephrase the request: I will not\."
        ) as caught:
            await output
        assert caught.value.words == "I will not."
    openai_server.plays(
        streams(piece({"refusal": "I will "}), piece({"refusal": "not."}), END, DONE)
    )
    with pytest.raises(
        ContentRefused, match=r"declined the prompt; rephrase the request: I will not\."
    ):
        await streamed(model, PROMPT)


@pytest.mark.parametrize(
    "message",
    [
        (
            "The response was filtered due to the prompt triggering content management "
            "policy. (content_filter)"
        ),
        "Content Exists Risk",
        (
            "<400> InternalError.Algo.DataInspectionFailed: Input data may contain "
            "inappropriate content."
        ),
        "Your request was rejected by our safety system. (content_policy_violation)",
    ],
)
async def test_a_content_filter_before_the_model_is_a_refusal(
    model: OpenAIHTTP, openai_server: OpenAIServer, message: str
) -> None:
    """Providers' filters reply with status 400."""
    openai_server.plays(fails(400, message))
    with pytest.raises(ContentRefused, match="declined the prompt"):
        await model.complete(PROMPT)


REPORTS: list[tuple[dict[str, Any], type[UpstreamError]]] = [
    ({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, UpstreamUnavailable),
    (
        {"error": {"message": "slow down", "type": "rate_limit_error", "code": None}},
        UpstreamUnavailable,
    ),
    (
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        UpstreamUnavailable,
    ),
    ({"error": {"message": None, "code": 503, "param": {}}}, UpstreamUnavailable),
    ({"error": "too many requests"}, UpstreamUnavailable),
    ({"error": {"message": "no", "type": "authentication_error"}}, UpstreamRefused),
    ({"error": {"message": "no", "type": "invalid_request_error"}}, UpstreamRefused),
    (
        {"error": {"message": "no", "code": "model_not_found", "type": "invalid_request_error"}},
        UpstreamRefused,
    ),
    ({"error": {"message": "no", "code": "context_length_exceeded"}}, ContextTooLong),
    (
        {
            "error": {
                "message": "no",
                "code": "context_length_exceeded",
                "details": ["x" * 10_000],
            }
        },
        ContextTooLong,
    ),
    ({"error": {"message": "no", "code": "content_filter"}}, ContentRefused),
    ({"object": "error", "message": "no", "type": "BadRequestError", "code": 400}, UpstreamRefused),
    ({"error": 429}, UpstreamUnavailable),
    ({"error": 401}, UpstreamRefused),
    ({"error": [{"message": "no", "code": 404}]}, UpstreamRefused),
    ({"error": {"error": {"message": "no", "type": "permission_error"}}}, UpstreamRefused),
    ({"errors": [{"message": "no", "code": "invalid_api_key"}]}, UpstreamRefused),
    ({"choices": [], "promptFeedback": {"blockReason": "SAFETY"}}, ContentRefused),
    ({"promptFeedback": {"blockReason": "OTHER", "safetyRatings": [{}]}}, ContentRefused),
    ({"candidates": [], "promptFeedback": {"blockReason": "BLOCKLIST"}}, ContentRefused),
    ({"detail": "Not Found"}, UpstreamRefused),
    ({"detail": [{"msg": "overloaded", "type": "overloaded_error"}]}, UpstreamUnavailable),
]


@pytest.mark.parametrize(
    ("report", "kind"), REPORTS, ids=[json.dumps(report) for report, _ in REPORTS]
)
async def test_an_error_with_status_200_is_typed_by_its_name(
    model: OpenAIHTTP,
    openai_server: OpenAIServer,
    report: dict[str, Any],
    kind: type[UpstreamError],
) -> None:
    """An error after the first delta may have spent tokens."""
    openai_server.plays(
        streams(event(report)), streams(A, event(report)), replies(json.dumps(report).encode())
    )
    caught = []
    for output in (streamed(model, PROMPT), streamed(model, PROMPT), model.complete(PROMPT)):
        with pytest.raises(kind) as error:
            await output
        caught.append(error.value)
    assert {type(error) for error in caught} == {kind}
    if isinstance(caught[0], UpstreamUnavailable):
        throttled = any(word in str(report) for word in ("rate", "many", "429"))
        assert caught[0].throttled == throttled
    assert not getattr(caught[1], "unspent", False)
    reason = report.get("promptFeedback", {}).get("blockReason", "")
    assert all(reason in str(error) for error in caught)


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}
THROTTLED = {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}
PAUSES: list[Any] = [
    {"error": {**THROTTLED, "details": [RETRY_INFO]}},
    {"error": {**THROTTLED, "details": [{"@type": "QuotaFailure"}, RETRY_INFO]}},
    [{"error": {**THROTTLED, "details": [RETRY_INFO]}}],
    {"error": {**THROTTLED, "message": "Please retry in 7s."}},
]


@pytest.mark.parametrize("report", PAUSES, ids=map(str, range(len(PAUSES))))
async def test_a_pause_in_a_report_is_read(
    model: OpenAIHTTP, openai_server: OpenAIServer, report: Any
) -> None:
    """Holds for an error status, and for an error in a stream."""
    openai_server.plays(replies(json.dumps(report).encode(), status=429))
    with pytest.raises(UpstreamUnavailable, match=r"slow down|retry in") as caught:
        await model.complete(PROMPT)
    assert caught.value.retry_after_s == 7.0
    if isinstance(report, dict):
        openai_server.plays(streams(event(report)))
        with pytest.raises(UpstreamUnavailable) as caught:
            await streamed(model, PROMPT)
        assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize(
    ("message", "parameter"),
    [
        ("Unsupported parameter: 'stop' is not supported with this model.", "stop"),
        ("Unrecognized request argument supplied: seed", "seed"),
        (
            (
                "[{'type': 'extra_forbidden', 'loc': ('body', 'top_p'), 'msg': 'Extra inputs "
                "are not permitted'}]"
            ),
            "top_p",
        ),
        ("temperature is deprecated for this model", "temperature"),
        ('json: unknown field "stream_options"', "stream_options"),
    ],
)
async def test_a_refused_parameter_is_named_and_can_be_omitted(
    pool: ConnectionPool,
    model: OpenAIHTTP,
    openai_server: OpenAIServer,
    message: str,
    parameter: str,
) -> None:
    """The error names the key that omits it. Without `stop`, stop strings end the output here."""
    openai_server.plays(fails(400, message))
    with pytest.raises(
        UpstreamRefused, match=rf'parameter {parameter}; leave it out with omit = \["{parameter}"\]'
    ):
        await model.complete(PROMPT)
    prompt = Prompt(PROMPT.messages, Sampling(seed=1), PROMPT.stop)
    openai_server.plays(says("a</x>", "b"))
    without = OpenAIHTTP(pool, openai_server.base_url, MODEL, omit=[parameter])
    assert {(await without.complete(prompt)).text, (await streamed(without, prompt)).text} == {
        "a</x>"
    }
    assert not any(parameter in body for body in openai_server.bodies[-2:])


def redirects(status: int, location: str) -> Behaviour:
    """Redirect the caller."""
    return replies(b"moved", "text/plain", status, {"Location": location})


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(
    "target",
    [
        "/v1/messages",
        "/v1/chat/completions?a=b",
        "completions",
        "http://{host}/v1/messages",
        "//{host}/v1/messages",
    ],
)
async def test_a_redirect_on_the_same_host_is_followed_once(
    model: OpenAIHTTP, openai_server: OpenAIServer, status: int, target: str
) -> None:
    """The request stays the same. A second redirect is an error that names its target."""
    host = openai_server.base_url.removeprefix("http://").removesuffix("/v1")
    redirect = redirects(status, target.format(host=host))
    openai_server.plays(redirect, says("ab"), redirect, streams(A, B, END, DONE))
    for output in (model.complete(PROMPT), streamed(model, PROMPT)):
        assert (await output).text == "ab"
        first, second = openai_server.bodies[-2:]
        assert first == second
        assert openai_server.headers[-1]["Authorization"] == "Bearer sk-secret"
    assert len(openai_server.bodies) == 4
    openai_server.plays(redirect, redirects(status, "/v3"))
    with pytest.raises(UpstreamRefused, match=f"redirects to http://{host}/v3; set base_url"):
        await model.complete(PROMPT)


@pytest.mark.parametrize(
    ("status", "target"),
    [
        (307, "{other}/v1/chat/completions"),
        (308, "//{other_host}/x"),
        (307, "https://{host}/v1"),
        (307, "//e.invalid"),
        (308, "http://{host}.invalid/v2"),
        (307, "http://{host}/v2"),
        (301, "http://{host}/v2"),
        (302, "//{host}/v2"),
        (303, "/v2"),
    ],
)
async def test_another_redirect_is_not_followed(
    model: OpenAIHTTP, openai_server: OpenAIServer, status: int, target: str
) -> None:
    """Another status, or a target with another scheme, host, port or user: the error names the
    target, and the prompt and the key are sent to no other address.
    """
    async with serving() as other_server:
        host = openai_server.base_url.removeprefix("http://").removesuffix("/v1")
        other_host = other_server.base_url.removeprefix("http://").removesuffix("/v1")
        location = target.format(other=f"http://{other_host}", other_host=other_host, host=host)
        openai_server.plays(redirects(status, location.replace("//", "//user:pass@")))
        with pytest.raises(UpstreamRefused, match=location.rpartition("//")[2]) as caught:
            await model.complete(PROMPT)
        assert "pass" not in str(caught.value)
        assert not other_server.bodies
        assert len(openai_server.bodies) == 1


SURROGATES = {
    "a pair in two pieces": (["a \ud83d", "\ude00 b"], "a \U0001f600 b"),
    "a lone surrogate at the end": (["ab\ud83d"], "ab\ufffd"),
    "a lone surrogate in the middle": (["a\ude00b"], "a\ufffdb"),
    "a lone surrogate in its own piece": (["a", "\ud83d", "b"], "a\ufffdb"),
}


def _escaped(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n".encode()


@pytest.mark.parametrize("name", SURROGATES)
async def test_a_surrogate_without_its_pair_is_replaced(
    model: OpenAIHTTP, openai_server: OpenAIServer, name: str
) -> None:
    """JSON escapes a character beyond 16 bits as a pair of surrogates. A lone surrogate cannot
    be stored.
    """
    pieces, text = SURROGATES[name]
    openai_server.plays(streams(*map(_escaped, pieces), end_event("stop"), DONE))
    assert (await model.stream(PROMPT, lambda _delta: None)).text == text
    openai_server.plays(
        replies(
            json.dumps(
                {"choices": [choice({"content": "".join(pieces), "reasoning": "\ud83d"})]}
            ).encode()
        )
    )
    whole = await model.complete(PROMPT)
    assert (whole.text, whole.reasoning) == (text, "\ufffd")


@pytest.mark.parametrize("reason", ["error", "abort", "ABORT", "engine_error"])
async def test_an_output_that_the_engine_gave_up_is_a_retryable_failure(
    model: OpenAIHTTP, openai_server: OpenAIServer, reason: str
) -> None:
    openai_server.plays(streams(text_event("a"), end_event(reason), DONE))
    with pytest.raises(UpstreamUnavailable, match="aborted the output"):
        await model.stream(PROMPT, lambda _delta: None)
    openai_server.plays(
        replies(json.dumps({"choices": [choice(MESSAGE, finish_reason=reason)]}).encode())
    )
    with pytest.raises(UpstreamUnavailable, match="aborted the output"):
        await model.complete(PROMPT)


async def test_a_whole_message_after_its_pieces_adds_nothing(
    model: OpenAIHTTP, openai_server: OpenAIServer
) -> None:
    last = event({"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]})
    openai_server.plays(streams(text_event("a"), text_event("b"), last, DONE))
    assert (await model.stream(PROMPT, lambda _delta: None)).text == "ab"
