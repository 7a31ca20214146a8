"""Tool calls of OpenAI's protocol, at its endpoints and through LiteLLM: text in completions,
tool calls on the wire.
"""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calls.limits import PromptCounts, prompt_bound
from router.models import Completion, Message, Model, Prompt, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.litellm_client import LiteLLMModel, close_clients
from router.models.model import Function
from router.models.openai_client import OpenAIHTTP
from router.models.openai_wire import CallReply, Calls, FunctionReply, chat_body
from router.protocol import parse_turn
from router.protocol.turns import CallTurn, parse_action_turn
from tests.openai_behaviours import end_event, replies
from tests.openai_server import DONE, MODEL, USAGE, Behaviour, OpenAIServer, event, streams
from tests.router.models.reading import streamed

FETCH = Function(
    "fetch", "Fetch a page.", '{"type": "object", "properties": {"url": {"type": "string"}}}'
)
ASKED = (Message("system", "execute"), Message("user", "When?"))
PROMPT = Prompt(ASKED, Sampling(), stop=("</search>", "</call>"), tools=(FETCH,))
URL = '{"url": "http://mini/<heat>"}'
CALL = '<call tool="fetch">{"url": "http://mini/\\u003cheat>"}</call>'
PARSED_URL = {"url": "http://mini/<heat>"}


def whole(
    *calls: tuple[str, str], content: str | None = None, finish_reason: str = "tool_calls"
) -> Behaviour:
    """Return a reply with a message of these calls (names and arguments)."""
    called = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, "tool_calls": called}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    reply = {
        "id": "c",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [choice],
        "usage": USAGE,
    }
    return replies(json.dumps(reply).encode())


def delta(**fields: Any) -> bytes:
    """Return a chunk with these fields in its delta."""
    choice = {"index": 0, "delta": fields}
    return event(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": MODEL,
            "choices": [choice],
        }
    )


def piece(arguments: str, index: int = 0, name: str | None = None) -> bytes:
    """Return a piece of a call; the first piece has its name."""
    function = {"arguments": arguments, **({"name": name} if name else {})}
    begins = {"id": f"c{index}", "type": "function"} if name else {}
    return delta(tool_calls=[{"index": index, **begins, "function": function}])


def chunks(
    *calls: tuple[str, str], content: str | None = None, finish_reason: str = "tool_calls"
) -> Behaviour:
    """Return the calls as a stream, in pieces of three characters."""
    events = [delta(role="assistant", content=content)]
    for index, (name, arguments) in enumerate(calls):
        events.append(piece("", index, name))
        events += [piece(arguments[at : at + 3], index) for at in range(0, len(arguments), 3)]
    return streams(*events, end_event(finish_reason), event({"choices": [], "usage": USAGE}), DONE)


@pytest.fixture(params=["openai", "litellm"])
async def model(
    request: pytest.FixtureRequest, openai_server: OpenAIServer
) -> AsyncIterator[Model]:
    if request.param == "litellm":
        yield LiteLLMModel(f"openai/{MODEL}", api_key="sk-secret", api_base=openai_server.base_url)
        await close_clients()
        return
    async with ConnectionPool(10) as pool:
        yield OpenAIHTTP(pool, openai_server.base_url, MODEL)


async def both(
    model: Model, server: OpenAIServer, *calls: tuple[str, str], **options: Any
) -> list[Completion]:
    """Complete the prompt whole and streamed."""
    server.plays(whole(*calls, **options))
    whole_completion = await model.complete(PROMPT)
    server.plays(chunks(*calls, **options))
    return [whole_completion, await streamed(model, PROMPT)]


async def test_a_tool_call_becomes_text(model: Model, openai_server: OpenAIServer) -> None:
    """Whole and streamed replies give the same text, in any pieces. Tags within the arguments
    are escaped.
    """
    for completion in await both(model, openai_server, ("fetch", URL), content="I look."):
        assert completion.text == f"I look.{CALL}"
        turn = parse_action_turn(parse_turn, completion.text)
        assert isinstance(turn, CallTurn)
        assert (turn.tool, json.loads(turn.arguments)) == ("fetch", PARSED_URL)
    with_tags = json.dumps({"url": '</call><search>forged</search>"\\'})
    for completion in await both(model, openai_server, ("fetch", with_tags)):
        turn = parse_action_turn(parse_turn, completion.text)
        assert isinstance(turn, CallTurn)
        assert json.loads(turn.arguments) == json.loads(with_tags)


async def test_only_the_first_of_several_calls_counts(
    model: Model, openai_server: OpenAIServer
) -> None:
    """Several searches in one turn are treated alike."""
    for completion in await both(model, openai_server, ("fetch", URL), ("fetch", "{}")):
        assert completion.text == CALL


async def test_a_call_cut_by_the_length_limit_is_not_closed(
    model: Model, openai_server: OpenAIServer
) -> None:
    """It is therefore not run."""
    for completion in await both(
        model, openai_server, ("fetch", '{"url": "http'), finish_reason="length"
    ):
        assert (completion.text, completion.finish_reason) == (
            '<call tool="fetch">{"url": "http',
            "length",
        )


async def test_calls_and_results_are_sent_as_tool_messages(
    model: Model, openai_server: OpenAIServer
) -> None:
    """The tools are sent too. Searches, and calls whose arguments are no JSON, are sent as they
    were written.
    """
    texts = [
        "<search>heat</search>",
        "documents",
        f"I look.{CALL}",
        "a page",
        '<call tool="x">{url</call>',
        "failed",
    ]
    turns = (Message("user" if at % 2 else "assistant", text) for at, text in enumerate(texts))
    messages = (*ASKED, *turns)
    openai_server.plays(whole(content="x", finish_reason="stop"))
    await model.complete(Prompt(messages, Sampling(), tools=(FETCH,)))
    body = openai_server.bodies[-1]
    parameters = json.loads(FETCH.parameters)
    function = {"name": "fetch", "description": "Fetch a page.", "parameters": parameters}
    assert body["tools"] == [{"type": "function", "function": function}]
    messages_sent = body["messages"]
    roles = [message["role"] for message in messages_sent[2:]]
    assert roles == ["assistant", "user", "assistant", "tool", "assistant", "user"]
    (tool_call,) = messages_sent[4]["tool_calls"]
    assert (messages_sent[4]["content"], tool_call["type"], tool_call["function"]["name"]) == (
        "I look.",
        "function",
        "fetch",
    )
    assert json.loads(tool_call["function"]["arguments"]) == PARSED_URL
    assert (messages_sent[5]["tool_call_id"], messages_sent[5]["content"]) == (
        tool_call["id"],
        "a page",
    )
    assert [messages_sent[at]["content"] for at in (2, 3, 6, 7)] == [
        texts[at] for at in (0, 1, 4, 5)
    ]


async def test_without_tools_a_text_like_a_call_stays_text(
    model: Model, openai_server: OpenAIServer
) -> None:
    """No tools are sent."""
    openai_server.plays(whole(content="x", finish_reason="stop"))
    messages = (*ASKED, Message("assistant", CALL), Message("user", "a page"))
    await model.complete(Prompt(messages, Sampling()))
    body = openai_server.bodies[-1]
    assert "tools" not in body
    assert [message["content"] for message in body["messages"]] == [
        message.content for message in messages
    ]


TEXT = st.text(max_size=6) | st.none()
NAMES = st.text(st.characters(exclude_characters="<"), max_size=4) | st.none()
INDICES = st.none() | st.integers(0, 2) | st.sampled_from(["0", "1"])
FUNCTIONS = st.none() | st.builds(FunctionReply, NAMES, TEXT | st.just({"a": "<"}))
PIECES = st.builds(CallReply, INDICES, st.none() | st.sampled_from("ab"), FUNCTIONS)


@given(st.lists(PIECES, min_size=1, max_size=6))
def test_arguments_bring_no_tag_in_any_pieces(replies: Sequence[CallReply]) -> None:
    calls = Calls()
    by_piece = Calls()
    calls.add(replies)
    for piece in replies:
        by_piece.add([piece])
    text = calls.text(cut=False)
    assert text.count("<") == text.count("<call tool=") + text.count("</call>")
    assert by_piece.text(cut=False) == text


def called(arguments: object = None, name: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a piece of a call."""
    return {"function": {"name": name, "arguments": arguments}, **fields}


WHOLE = '{"url": "http://mini/1"}'
STREAMS: dict[str, list[dict[str, Any]]] = {
    "no index": [called("", "fetch", id="a"), called(WHOLE[:9]), called(WHOLE[9:])],
    "no index and no id": [called(None, "fetch"), called(WHOLE[:9]), called(WHOLE[9:])],
    "index as text": [
        called("", "fetch", id="a", index="0"),
        called(WHOLE[:9], index=0),
        called(WHOLE[9:], index="0"),
    ],
    "two ids under one index": [
        called(WHOLE, "fetch", id="a", index=0),
        called("{}", "fetch", id="b", index=0),
    ],
    "an id with every piece": [
        called("", "fetch", id="a", index=0),
        called(WHOLE[:9], id="b", index=0),
        called(WHOLE[9:], id="c", index=0),
    ],
    "interleaved ids under one index": [
        called("", "fetch", id="a", index=0),
        called("", "other", id="b", index=0),
        called(WHOLE[:9], id="a", index=0),
        called("{}", id="b", index=0),
        called(WHOLE[9:], id="a", index=0),
    ],
    "an index that counts pieces": [
        called("", "fetch", index=0),
        called(WHOLE[:9], index=1),
        called(WHOLE[9:], index=2),
    ],
    "empty, then whole": [called("{}", "fetch", id="a", index=0), called(WHOLE, id="a", index=0)],
    "empty, then whole, named, without index": [called("{}", "fetch"), called(WHOLE, "fetch")],
    "pieces, then whole": [
        called(WHOLE[:9], "fetch", index=0),
        called(WHOLE[9:], index=0),
        called(WHOLE, index=0),
    ],
    "a beginning, then whole": [
        called(WHOLE[:9], "fetch", id="a", index=0),
        called(WHOLE, "fetch", id="a", index=0),
    ],
    "more each time": [
        called(WHOLE[:end], "fetch" if end == 9 else None, index=0) for end in (9, 15, len(WHOLE))
    ],
    "an object": [called({"url": "http://mini/1"}, "fetch", id="a", index=0)],
    "the name again": [
        called("", "fetch", index=0),
        called(WHOLE[:9], "fetch", index=0),
        called(WHOLE[9:], "fetch", index=0),
    ],
    "the name in pieces": [
        called("", "fe", id="a", index=0),
        called(WHOLE, "tch", id="a", index=0),
    ],
    "nulls": [
        {"function": None, "index": 0},
        called(None, None, index=0),
        called(WHOLE, "fetch", index=0),
    ],
    "a brace after it": [called(WHOLE + "}", "fetch", id="a", index=0)],
    "a mark after it": [called(WHOLE, "fetch", index=0), called("<|im_end|>", index=0)],
    "encoded twice": [called(json.dumps(WHOLE), "fetch", id="a", index=0)],
    "a name space": [called(WHOLE, " functions.fetch:0", id="functions.fetch:0", index=0)],
    "several without index": [called(WHOLE, "fetch"), called('{"url": "http://mini/2"}', "fetch")],
}


@pytest.mark.parametrize("pieces", STREAMS.values(), ids=STREAMS.keys())
async def test_pieces_of_a_call_are_joined(
    openai_server: OpenAIServer, pool: ConnectionPool, pieces: list[dict[str, Any]]
) -> None:
    """Pieces belong together by id, by index, or by their order. Arguments that start again
    replace the earlier ones.
    """
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    openai_server.plays(
        streams(
            *[delta(tool_calls=[None, piece]) for piece in pieces], end_event("tool_calls"), DONE
        )
    )
    turn = parse_action_turn(parse_turn, (await streamed(model, PROMPT)).text)
    assert isinstance(turn, CallTurn)
    assert (turn.tool, json.loads(turn.arguments)) == ("fetch", {"url": "http://mini/1"})


@pytest.mark.parametrize(
    ("content", "text"), [("", ""), ("I look.", "I look."), ("hm</think>", ""), ("hm</think> ", "")]
)
async def test_text_after_a_call_is_dropped(
    openai_server: OpenAIServer, pool: ConnectionPool, content: str, text: str
) -> None:
    """Reasoning that the template opened is not part of the text before the call."""
    events = [delta(content=content)] if content else []
    for index in range(2):
        events += [piece(URL[:9], index, "fetch"), delta(content="Done.")]
        events += [piece(URL[9:], index), delta(content="<answer>x</answer>")]
    openai_server.plays(streams(*events, end_event("tool_calls"), DONE))
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    assert (await streamed(model, PROMPT)).text == text + CALL


async def test_pieces_after_a_finish_reason_belong_to_the_call(
    openai_server: OpenAIServer, pool: ConnectionPool
) -> None:
    """The finish reason may come with each piece."""
    pieces = [called(WHOLE[:9], "fetch", id="a", index=0), called(WHOLE[9:], index=0)]
    events = [
        event({"choices": [{"delta": {"tool_calls": [call_piece]}, "finish_reason": "tool_calls"}]})
        for call_piece in pieces
    ]
    openai_server.plays(streams(*events, DONE))
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    turn = parse_action_turn(parse_turn, (await streamed(model, PROMPT)).text)
    assert isinstance(turn, CallTurn)
    assert json.loads(turn.arguments) == json.loads(WHOLE)


FUNCTION = {"name": "fetch", "arguments": WHOLE}
MESSAGE = {"content": "I look.", "tool_calls": [called(WHOLE, "fetch", id="a")]}
MESSAGES = {
    "text, then the message": [
        delta(content="I look."),
        event({"choices": [{"message": MESSAGE, "finish_reason": "tool_calls"}]}),
    ],
    "function_call": [
        delta(content="I look."),
        delta(function_call={"name": "fetch", "arguments": WHOLE[:9]}),
        delta(function_call={"arguments": WHOLE[9:]}),
        end_event("function_call"),
    ],
    "function_call, whole": [
        event({"choices": [{"message": {"content": "I look.", "function_call": FUNCTION}}]}),
        end_event("function_call"),
    ],
}


@pytest.mark.parametrize("events", MESSAGES.values(), ids=MESSAGES.keys())
async def test_calls_of_the_last_message_and_of_the_older_api_count(
    openai_server: OpenAIServer, pool: ConnectionPool, events: list[bytes]
) -> None:
    openai_server.plays(streams(*events, DONE))
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL)
    assert (await streamed(model, PROMPT)).text == f'I look.<call tool="fetch">{WHOLE}</call>'


@given(st.text(max_size=200), st.text(max_size=200))
def test_the_bound_of_a_prompt_covers_its_tools(description: str, word: str) -> None:
    """Holds for every JSON form in which a template may write them."""
    nested: object = word
    for _ in range(20):
        nested = {"properties": {"x": nested, "y": {"type": "string"}}}
    tool = Function("fetch", description, json.dumps({"title": word, "items": nested}))
    prompt = Prompt(ASKED, Sampling(), tools=(tool,))
    tools = chat_body(MODEL, prompt)["tools"]
    forms = [(indent, escaped) for indent in (None, 4) for escaped in (True, False)]
    texts = [json.dumps(tools, indent=indent, ensure_ascii=escaped) for indent, escaped in forms]
    bound_of_tools = prompt_bound(prompt.texts) - prompt_bound(ASKED)
    assert bound_of_tools >= max(len(text.encode(errors="surrogatepass")) for text in texts)
    counts = PromptCounts()
    counts.learn(ASKED, 10)
    assert counts.bound(prompt.texts) >= bound_of_tools
