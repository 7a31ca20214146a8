"""The OpenAI-compatible server over real HTTP."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from markdown_it import MarkdownIt

from router.edge.http.openai_server import MAX_BODY_BYTES, openai_app
from router.edge.http.server import HTTPServer
from router.edge.status import HTTP_STATUS, STATUS
from router.errors import BadConfig, UpstreamUnavailable
from router.models import Completion, Usage
from router.protocol import Passage
from router.runs import Gateway, RequestOptions
from router.runs.gateway import AnswerRequest
from router.trace import Run
from router.trace.values import OnEvent
from tests.router.accounts import open_access
from tests.router.clock import ended
from tests.router.deployment import STOP, Deployment, HeldModel, Kept, block, report
from tests.scripted_model import ScriptedModel

QUESTION = "Who directed Heat?"
USER = {"role": "user", "content": QUESTION}
PATH = "/v1/chat/completions"


@asynccontextmanager
async def served(gateway: Gateway, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with an OpenAI-compatible server of `gateway`."""
    server = HTTPServer(openai_app(gateway, open_access(), **options), 0.0)
    async with aiohttp.ClientSession(
        f"http://{await server.start('127.0.0.1:0', 'http')}"
    ) as session:
        yield session
    await server.drain()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with an OpenAI-compatible server whose gateway answers one question."""
    async with served(Deployment().gateway()) as session:
        yield session


async def posted(session: aiohttp.ClientSession, **body: Any) -> tuple[int, Any]:
    """Post a request, and return the status and the reply."""
    async with session.post(
        PATH, json={"model": "rolegate", "messages": [USER], **body}
    ) as response:
        return response.status, await response.json()


async def events(response: aiohttp.ClientResponse) -> list[Any]:
    """Read a stream to its end and return its events."""
    lines = (await response.text()).split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line[6:] == "[DONE]" else json.loads(line[6:]) for line in lines]


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:1", "app://desk", ""]
)
async def test_only_programs_and_pages_of_this_machine_may_ask(
    client: aiohttp.ClientSession, origin: str
) -> None:
    """A web page of another host may not, even if its name resolves to this machine, which browsers
    take for the same origin.
    """
    for origin_sent, status in (
        (origin, 200),
        ("http://evil.example:50580", 403),
        ("https://127.0.0.1.evil.example", 403),
    ):
        async with client.get("/health", headers={"Origin": origin_sent}) as response:
            assert response.status == status


NAMED = (
    "localhost LocalHost:1 localhost. 127.0.0.1 10.0.0.7:50580 [::1] [fe80::1]:80 "
    "GATEWAY.example.:443 other.example:1"
)
FOREIGN = (
    "evil.example evil.example:50580 127.0.0.1.evil.example localhost.evil.example "
    "gateway.example.evil :50580 . .. "
    "gateway.example,localhost localhost@evil.example ::1 [localhost]x 2130706433"
)


@pytest.mark.parametrize(
    ("hosts", "version", "status"),
    [
        *(([host], "1.1", 200) for host in NAMED.split()),
        *(([host], "1.1", 421) for host in ["", *FOREIGN.split()]),
        (["localhost"], "1.0", 200),
        (["evil.example"], "1.0", 421),
        ([], "1.0", 200),  # a balancer's check, as no browser asks
        ([], "1.1", 400),
        (["localhost", "evil.example"], "1.1", 400),
    ],
)
async def test_a_host_that_is_not_the_server_s_is_refused(
    hosts: list[str], version: str, status: int
) -> None:
    """A foreign page whose name resolves to this server is of the same origin for browsers."""
    server = HTTPServer(
        openai_app(Deployment().gateway(), open_access()),
        0.0,
        hosts=["gateway.example", "Other.Example"],
    )
    _, _, port = (await server.start("127.0.0.1:0", "server.http")).partition(":")
    reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
    head = [
        f"GET /v1/models HTTP/{version}",
        *(f"Host: {host}" for host in hosts),
        "Connection: close",
        "",
        "",
    ]
    writer.write("\r\n".join(head).encode())
    response = (await reader.read()).decode()
    writer.close()
    await server.drain()
    assert response.split()[1] == str(status)
    assert ("server.http_hosts" in response and '"code":"misdirected_request"' in response) == (
        status == 421
    )


@pytest.mark.parametrize("body", [{}, {"no_cache": None}, {"no_cache": False}, {"no_cache": True}])
async def test_no_cache_is_set_only_if_the_request_asks_for_it(
    body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holds for both models."""
    gateway = Deployment().gateway()
    options_received = list[RequestOptions]()
    answer = gateway.answer
    execute = gateway.execute

    async def answering(
        _gateway: Gateway,
        asked: AnswerRequest,
        terms: RequestOptions,
        on_event: OnEvent,
        *,
        streamed: bool,
    ) -> Run:
        options_received.append(terms)
        return await answer(asked, terms, on_event, streamed=streamed)

    async def executing(_gateway: Gateway, sub_query: str, terms: RequestOptions) -> Run:
        options_received.append(terms)
        return await execute(sub_query, terms)

    monkeypatch.setattr(Gateway, "answer", answering)
    monkeypatch.setattr(Gateway, "execute", executing)
    async with served(gateway) as session:
        for model in ("rolegate", "rolegate-executor"):
            assert (await posted(session, model=model, **body))[0] == 200
    assert [terms.no_cache for terms in options_received] == [body == {"no_cache": True}] * 2


@pytest.mark.parametrize(
    "name",
    [
        "nocache",
        "no-cache",
        "noCache",
        "no_cach",
        "max_total_tokens",
        "max_cost_usd",
        "index",
        "filter",
        "rolegate_options",
        "extra_body",
    ],
)
async def test_an_unknown_option_of_ours_is_refused(name: str) -> None:
    """Otherwise a limit or a request for new work would be ignored. No model is called."""
    delegator = ScriptedModel([])
    async with served(Deployment(delegator).gateway()) as session:
        status, reply = await posted(session, **{name: 10})
    assert (status, f"{name} is not an option of this API" in reply["error"]["message"]) == (
        400,
        True,
    )
    assert "did you mean" not in reply["error"]["message"]
    assert not delegator.prompts


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_negative_limit_is_refused_by_the_name_that_was_sent(name: str) -> None:
    async with served(Deployment().gateway()) as session:
        status, reply = await posted(session, **{name: -4})
    assert (status, f": {name}: " in reply["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    "name",
    [
        "max_output_tokens",
        "cache",
        "request_id",
        "chat_id",
        "top_k",
        "metadata",
    ],
)
async def test_fields_for_other_servers_are_ignored(
    client: aiohttp.ClientSession, name: str
) -> None:
    """Front ends send many of them."""
    assert (await posted(client, **{name: "x"}))[0] == 200


HISTORY = """
### Chat History:
<chat_history>
USER: List the films in a table with the columns: Film, Director
ASSISTANT: Heat
</chat_history>"""
TASKS = [
    f"### Task:\nGenerate a concise title of the talk with an emoji.{HISTORY}",
    f"### Task:\nGenerate broad tags categorizing the main themes.{HISTORY}",
    f"### Task:\nSuggest relevant follow-up questions or prompts.{HISTORY}",
    f"### Task:\nDetermine the necessity of generating search queries.{HISTORY}",
    (
        f"### Task:\nYou are an autocompletion system.{HISTORY}\n<text>Who directed</text>\n"
        "#### Output:"
    ),
    f"\n  ### Task:\r\nGenerate a detailed prompt for an image.{HISTORY}",
    "Your task is to reflect the speaker's likely facial expression by an emoji. Message: ```hi```",
    "Provide a concise, short-word title for the conversation.\n\nConversation:\nUser: hi\nAI: ho",
    "Please generate a concise title (max 40 characters) for a conversation that starts with: hi",
    "Please generate a four word title summarizing our conversation.",
    "Analyze this conversation and provide:\n1. The language\n2. A concise title in it",
    "使用四到五个字直接返回这句话的简要主题，不要解释",
]
SYSTEMS = [
    "You are skilled in conversation. Summarize what the user says into a title of ten words.",
    "You summarize each conversation. Generate a concise title that tells what it is about.",
    "You title a conversation: you make expressive yet few-words chat titles.",
    "你是一名擅长会话的助理，你需要将用户的会话总结为 10 个字以内的标题",
]


def talk(system: str, question: str) -> list[dict[str, str]]:
    """Return messages with a question, after a system message if there is one."""
    first_messages = [{"role": "system", "content": system}] if system else []
    return [*first_messages, {"role": "user", "content": question}]


@pytest.mark.parametrize(
    ("system", "task_text"),
    [("", task) for task in TASKS] + [(system, "user: hi") for system in SYSTEMS],
)
async def test_a_chat_tool_s_task_is_answered_by_one_call_without_a_search(
    system: str, task_text: str
) -> None:
    """The answerer's call is a separate run, streamed or not; no table is filled again."""
    answerer = ScriptedModel(['<think>hm</think>{"title": "Heat"}'] * 2)
    uncalled = ScriptedModel([])
    store = Kept()
    async with served(Deployment(uncalled, uncalled, answerer).gateway(store)) as session:
        status, reply = await posted(session, messages=talk(system, task_text))
        body = {"model": "rolegate", "messages": talk(system, task_text), "stream": True}
        async with session.post(PATH, json=body) as response:
            streamed = await events(response)
    assert (status, reply["choices"][0]["message"]["content"]) == (200, '{"title": "Heat"}')
    assert (
        "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed[:-1])
        == '{"title": "Heat"}'
    )
    assert uncalled.prompts == []
    assert [(run.kind, len(run.calls)) for run in store.runs] == [("complete", 1)] * 2
    (text_shown,) = {prompt.messages[-1].content for prompt in answerer.prompts}
    assert task_text in text_shown and system in text_shown


@pytest.mark.parametrize(
    ("system", "question"),
    [
        ("", "What does '### Task:' mean in a template with <chat_history>…</chat_history>?"),
        ("", "### Task:\nWho directed Heat?"),
        (
            "",
            (
                "### Task:\nRespond to the user query by these files: "
                "<chat_history></chat_history> Who directed Heat?"
            ),
        ),
        ("", "Analyze this conversation of Pacino and De Niro: what is it about?"),
        ("", "Provide the title of the film in which they have a conversation"),
        (
            "You are a chat assistant of a land registry; answer questions on titles.",
            "Who directed Heat?",
        ),
        ("You are the chat assistant of Title Films.", "Who directed Heat?"),
    ],
)
async def test_a_question_that_only_sounds_like_a_task_is_searched_for(
    system: str, question: str
) -> None:
    store = Kept()
    async with served(Deployment().gateway(store)) as session:
        assert (await posted(session, messages=talk(system, question)))[0] == 200
    assert [run.kind for run in store.runs] == ["answer"]


async def test_tasks_may_be_refused_or_searched_for() -> None:
    """A refused task costs nothing."""
    store = Kept()
    messages = [{"role": "user", "content": TASKS[1].replace("table", "list")}]
    async with served(Deployment().gateway(store), chat_tasks="refuse") as session:
        status, reply = await posted(session, messages=messages)
    assert (status, "set a task model" in reply["error"]["message"], store.runs) == (400, True, [])
    async with served(Deployment().gateway(store), chat_tasks="search") as session:
        assert (await posted(session, messages=messages))[0] == 200
    assert [run.kind for run in store.runs] == ["answer"]


async def test_a_long_task_keeps_its_beginning_and_its_end() -> None:
    """The beginning says what to do, the end what it is about."""
    answerer = ScriptedModel(["Heat"])
    async with served(Deployment(answerer=answerer).gateway()) as session:
        assert (
            await posted(session, messages=talk("", TASKS[0].replace("Heat", "Heat " * 50_000)))
        )[0] == 200
    (prompt,) = answerer.prompts
    shown = prompt.messages[-1].content
    assert len(shown) < 8100
    assert (shown[:30], shown[-15:]) == (TASKS[0][:30], TASKS[0][-15:])


async def test_health_and_models_answer_a_get(client: aiohttp.ClientSession) -> None:
    async with client.get("/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    async with client.get("/v1/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == [
            "rolegate",
            "rolegate-executor",
            "rolegate-table",
        ]


async def test_only_the_last_user_message_is_asked(client: aiohttp.ClientSession) -> None:
    """Its text parts are joined. Other messages and unknown fields are ignored."""
    parts = [{"type": "text", "text": "Who directed"}, {"type": "text", "text": "Heat?"}]
    messages = [
        {"role": "system", "content": "Answer in Klingon."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": parts},
        {"role": "tool", "content": "Nobody."},
    ]
    delegator = ScriptedModel([block(QUESTION), STOP])
    async with served(Deployment(delegator).gateway()) as session:
        status, reply = await posted(
            session, messages=messages, temperature=1, seed=None, tool_choice="auto", x={}
        )
    assert (status, reply["rolegate"]["answer"]) == (200, "Michael Mann")
    assert "Klingon" not in str(delegator.prompts)
    assert "Who directed\nHeat?" in str(delegator.prompts[0].messages[-1].content)


async def test_unknown_tokens_are_null() -> None:
    """A detail that the engine does not report is null, not 0. Without any report there is no
    usage.
    """
    reporting = ScriptedModel([Completion(STOP, "stop", usage=Usage(7, 5, 3))])
    silent = ScriptedModel([Completion(STOP, "stop", usage=None)])
    async with served(Deployment(reporting).gateway()) as session:
        _, known = await posted(session)
    async with served(Deployment(silent).gateway()) as session:
        _, unknown = await posted(session)
    assert known["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": None},
    }
    assert "usage" not in unknown
    assert unknown["rolegate"]["usage"][0]["attempts_without_usage"] == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "no message with the role `user`"),
        ({"messages": [{"role": "system", "content": "x"}]}, "no message with the role `user`"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content[0] is of type",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "question is empty"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "messages[0].content: must be text or a list",
        ),
        ({"messages": "Who?"}, "messages: must be a list, got text"),
        ({"model": None}, "model: must be text, got null"),
        ({"n": 2}, "n must be 1, got 2"),
        ({"tool_choice": "required"}, "tool_choice requires a tool call"),
        (
            {"response_format": {"type": "json_object"}},
            "The type 'json_object' of the response format is not",
        ),
        ({"rolegate": {"index": "x"}}, "rolegate.index: must be a list, got text"),
        ({"rolegate": {"indexes": []}}, "unknown field `indexes`"),
        ({"rolegate": {"filter": {"titel": "x"}}}, "unknown field `titel`"),
        ({"rolegate": {"filter": {"to_date": "soon"}}}, "filter.to_date must be a date such as"),
        (
            {"rolegate": {"filter": {"tags": ["x"] * 9000}}},
            "; the limit is 4096; shorten its texts",
        ),
        (
            {"rolegate": {"index": ["x"] * 1025}},
            "rolegate.index: must have a length of at most 1024",
        ),
        ({"messages": [USER] * 10_001}, "messages: must have a length of at most 10000"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}] * 1025}]},
            "messages[0].content: must have a length of at most 1024",
        ),
        ({f"x{number}": number for number in range(2000)}, "fields; at most 1024 are allowed"),
        (
            {"response_format": {"type": "x" * 9000}},
            f"The type '{'x' * 100}' of the response format is not",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "x" * 9000}]}]},
            f"is of type '{'x' * 100}'; only",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice requires a tool call",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_cannot_be_served_is_refused_in_openai_s_shape(
    client: aiohttp.ClientSession, fields: dict[str, Any], message: str, stream: bool
) -> None:
    """The status is 400, and the message says what is wrong and where."""
    status, reply = await posted(client, stream=stream, **fields)

    assert status == 400
    assert message in reply["error"].pop("message")
    assert reply == {
        "error": {"type": "invalid_request_error", "param": None, "code": "BAD_REQUEST"}
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": [USER] * 10_001}, "input: must have a length of at most 10000"),
        (
            {"rolegate": {"index": ["x"] * 1025}},
            "rolegate.index: must have a length of at most 1024",
        ),
    ],
)
async def test_lists_of_the_responses_api_are_limited(
    client: aiohttp.ClientSession, fields: dict[str, Any], message: str
) -> None:
    body = {"model": "rolegate", "input": QUESTION, **fields}
    async with client.post("/v1/responses", json=body) as response:
        assert message in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"model": "caf\xe9"}', b'{"model": ' + b"[" * 200_000]
)
async def test_a_malformed_body_is_a_bad_request(
    client: aiohttp.ClientSession, body: bytes
) -> None:
    async with client.post(
        PATH, data=body, headers={"Content-Type": "application/json"}
    ) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "BAD_REQUEST")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
async def test_a_web_page_cannot_post(client: aiohttp.ClientSession, kind: str) -> None:
    """A content type that browsers send without a preflight is refused, and a preflight gets no
    permission.
    """
    body = json.dumps({"model": "rolegate", "messages": [USER]}).encode()
    async with client.post(PATH, data=body, headers={"Content-Type": kind}) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (
            415,
            "unsupported_media_type",
        )
    preflight = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    async with client.options(PATH, headers=preflight) as response:
        assert response.status == 403
        assert not any(name.lower().startswith("access-control") for name in response.headers)


async def test_a_body_that_is_too_large_is_refused(client: aiohttp.ClientSession) -> None:
    """The status is 413, and the server keeps working."""
    body = io.BytesIO(b" " * (MAX_BODY_BYTES + 1))
    async with client.post(
        PATH, data=body, headers={"Content-Type": "application/json"}
    ) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (
            413,
            "request_entity_too_large",
        )
    assert (await posted(client))[0] == 200


async def test_a_stream_reports_each_event_when_it_happens() -> None:
    """The first round is reported while the delegator still works. The stream ends with its details
    and `[DONE]`.
    """
    model = HeldModel(ScriptedModel([block(QUESTION), STOP]))
    async with (
        served(Deployment(model).gateway()) as session,
        session.post(
            PATH, json={"model": "rolegate", "messages": [USER], "stream": True}
        ) as response,
    ):
        first_chunks = [
            json.loads((await ended(response.content.readuntil(b"\n\n")))[6:]) for _ in range(2)
        ]
        assert not model.let.is_set()
        model.let.set()
        last_chunks = await events(response)
    assert [chunk["choices"][0]["delta"] for chunk in first_chunks] == [
        {"role": "assistant"},
        {"reasoning_content": "round 1\n"},
    ]
    assert response.content_type == "text/event-stream"
    *parts, end, done = last_chunks
    contents = [part["choices"][0]["delta"].get("content", "") for part in parts]
    assert "".join(contents).startswith("Michael Mann\n\n")
    assert end["choices"] == [{"index": 0, "finish_reason": "stop", "delta": {}}]
    assert end["rolegate"]["outcome"] == "answered"
    assert done == "[DONE]"
    assert all("usage" not in chunk for chunk in last_chunks[:-1])


async def test_an_error_ends_a_stream_as_its_last_event() -> None:
    """The event has OpenAI's shape."""
    model = ScriptedModel([UpstreamUnavailable("down", endpoint="e")])
    async with (
        served(Deployment(model).gateway()) as session,
        session.post(
            PATH, json={"model": "rolegate", "messages": [USER], "stream": True}
        ) as response,
    ):
        *_, last = await events(response)
    assert response.status == 200
    assert (last["error"]["type"], last["error"]["code"]) == (
        "server_error",
        "UPSTREAM_UNAVAILABLE",
    )


async def test_an_internal_error_is_500_without_details() -> None:
    """Holds for whole replies and for streams."""
    async with served(Deployment(ScriptedModel([])).gateway()) as session:
        status, reply = await posted(session)
        async with session.post(
            PATH, json={"model": "rolegate", "messages": [USER], "stream": True}
        ) as response:
            *_, last = await events(response)
    assert (status, reply) == (500, last)
    assert (last["error"]["type"], last["error"]["code"]) == ("server_error", "INTERNAL")
    assert "StopIteration" not in str(last)


def test_every_code_has_its_http_status() -> None:
    assert {code for code, _ in STATUS.values()} <= set(HTTP_STATUS)


async def test_a_drain_lets_a_running_request_finish() -> None:
    """The running request ends normally, and new connections are refused."""
    model = HeldModel(ScriptedModel([STOP]))
    server = HTTPServer(openai_app(Deployment(model).gateway(), open_access()), 30.0)
    url = f"http://{await server.start('127.0.0.1:0', 'http')}"
    async with aiohttp.ClientSession(url) as session:
        request = asyncio.create_task(posted(session))
        await ended(model.called.wait())
        drain = asyncio.create_task(server.drain())
        with pytest.raises(aiohttp.ClientConnectorError):
            await ended(posted(session))
        model.let.set()
        assert (await ended(request))[0] == 200
        await ended(drain)


async def test_a_drain_cancels_a_request_that_does_not_end_in_time() -> None:
    store = Kept()
    model = HeldModel(ScriptedModel([]))
    server = HTTPServer(openai_app(Deployment(model).gateway(store), open_access()), 0.0)
    async with aiohttp.ClientSession(
        f"http://{await server.start('127.0.0.1:0', 'http')}"
    ) as session:
        request = asyncio.create_task(posted(session))
        await ended(model.called.wait())
        await ended(server.drain())
        with pytest.raises(aiohttp.ClientError):
            await ended(request)
    assert (await store.next()).status == "cancelled"


async def test_a_port_in_use_is_a_config_error_with_its_address() -> None:
    listening, late = (
        HTTPServer(openai_app(Deployment().gateway(), open_access()), 0.0) for _ in range(2)
    )
    address = await listening.start("127.0.0.1:0", "server.http")
    with pytest.raises(BadConfig, match=f"^server.http: cannot listen on {address}: .*in use"):
        await late.start(address, "server.http")
    await listening.drain()


HOSTILE_TITLE = (
    "![x](http://evil.example/q.png) [click](javascript:alert(1))\n\n<img src=x> "
    "www.evil.example \x1b[31m\u202e"
)
QUOTE = "Heat <script>alert(1)</script> is a film by [Michael Mann](http://evil.example/?q=secret)."


@pytest.mark.parametrize("stream", [False, True])
async def test_texts_from_outside_are_text_to_chat_tools(stream: bool) -> None:
    """Titles, quotes and documents bring no link, image or HTML, and neither does an answerer that
    copies them, nor control characters. The answerer's other Markdown stays, and bare addresses.
    """
    answer = (
        "**Mann** ![x](http://evil.example/?q=secret) [click](javascript:alert(1)) <img src=x> "
        "\x1b[31m\x07\u202e http://evil.example"
    )
    passage = Passage("p1", HOSTILE_TITLE, QUOTE, 0.9, "http://evil.example/heat.html")
    deployment = Deployment(
        delegator=ScriptedModel(
            lambda prompt: STOP if len(prompt.messages) > 2 else block(f"Who? {HOSTILE_TITLE}")
        ),
        executor=ScriptedModel(
            lambda prompt: (
                report("Mann", QUOTE)
                if len(prompt.messages) > 2
                else f"<search>{HOSTILE_TITLE}</search>"
            )
        ),
        answerer=ScriptedModel(lambda _prompt: f"<answer>{answer}</answer>"),
        retriever=AnyRetriever(passage),
    )
    async with served(deployment.gateway()) as session:
        if stream:
            async with session.post(
                PATH, json={"model": "rolegate", "messages": [USER], "stream": True}
            ) as response:
                deltas = [
                    chunk["choices"][0]["delta"]
                    for chunk in (await events(response))[:-1]
                    if chunk["choices"]
                ]
            texts = [
                "".join(delta.get(name, "") for delta in deltas)
                for name in ("reasoning_content", "content")
            ]
        else:
            _, reply = await posted(session)
            texts = [reply["choices"][0]["message"]["content"]]
            assert reply["rolegate"]["answer"] == answer
    assert "**Mann**" in texts[-1]
    assert "Sources:\n[1] " in texts[-1]
    for text in texts:
        assert "evil" in text
        assert text.replace("\n", "").isprintable()
        for parser in (MarkdownIt("commonmark"), MarkdownIt("gfm-like")):
            parsed = (
                parser.disable("linkify", True).parse(text)
                if text == texts[-1]
                else parser.parse(text)
            )
            kinds = {child.type for token in parsed for child in (token, *(token.children or ()))}
            assert not {"link_open", "image", "html_inline", "html_block"} & kinds


class AnyRetriever:
    """A retriever that finds one passage for every query."""

    def __init__(self, passage: Passage) -> None:
        self._passage = passage

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        return [[self._passage] for _ in queries]
