"""Turns that are held to their form: the patterns, and the endpoints that get them."""

import asyncio
import json
import re

import pytest
from aiohttp import web

from router.errors import UpstreamRefused
from router.models import Message, Prompt, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol import parse_turn
from router.protocol.tags import Malformed
from router.protocol.turns import ReportTurn, SearchTurn, turn_pattern
from router.search.executor import STOP
from tests.openai_server import DONE, MODEL, OpenAIServer, event, fails, says, streams

SEARCH = "<search>Who directed Heat?</search>"
PATTERN = turn_pattern(searched=False, may_search=True)
PROMPT = Prompt((Message("user", "hi"),), Sampling(), STOP, pattern=PATTERN)


async def asked(model: OpenAIHTTP, *, streamed: bool, prompt: Prompt = PROMPT) -> str:
    """Return the model's text."""
    if not streamed:
        return (await model.complete(prompt)).text
    return (await model.stream(prompt, lambda _delta: None)).text


def held(server: OpenAIServer) -> list[bool]:
    """Return for each request whether it has a pattern."""
    for body in server.bodies:
        assert body.get("structured_outputs") in (None, {"regex": PATTERN})
    return ["structured_outputs" in body for body in server.bodies]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("thinking", [None, False, True])
async def test_a_pattern_is_sent_to_models_that_do_not_think(
    pool: ConnectionPool, openai_server: OpenAIServer, *, streamed: bool, thinking: bool | None
) -> None:
    """A prompt without a pattern is sent without one."""
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=thinking)
    openai_server.plays(says(SEARCH))
    await asked(model, streamed=streamed)
    await asked(model, streamed=streamed, prompt=Prompt((Message("user", "hi"),), Sampling()))
    assert held(openai_server) == [not thinking, False]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "Unrecognized request argument supplied: structured_outputs"),
        (422, json.dumps([{"type": "extra_forbidden", "loc": ["body", "structured_outputs"]}])),
        (400, "Failed to transform regex into a grammar: unsupported"),
    ],
)
async def test_an_endpoint_that_refuses_patterns_gets_no_more(
    pool: ConnectionPool, openai_server: OpenAIServer, status: int, message: str, *, streamed: bool
) -> None:
    """The request is repeated without its pattern."""
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=False)
    openai_server.plays(fails(status, message), says(SEARCH))
    for _ in range(2):
        assert await asked(model, streamed=streamed) == SEARCH
    assert held(openai_server) == [True, False, False]


async def test_an_open_stream_may_refuse_its_pattern(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    """vLLM refuses an unsupported pattern in this way. Holds also for several streams in
    progress.
    """
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=False)
    refused = event(
        {
            "error": {
                "message": "Grammar error: invalid regex",
                "type": "BadRequestError",
                "code": 400,
            }
        }
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        has_pattern = "structured_outputs" in await request.json()
        return await (streams(refused, DONE) if has_pattern else says(SEARCH))(request)

    openai_server.plays(answer)
    assert await asyncio.gather(*(asked(model, streamed=True) for _ in range(3))) == [SEARCH] * 3
    assert await asked(model, streamed=True) == SEARCH
    assert sorted(held(openai_server)) == [False] * 4 + [True] * 3


async def test_another_refusal_is_raised_without_a_repetition(
    pool: ConnectionPool, openai_server: OpenAIServer
) -> None:
    model = OpenAIHTTP(pool, openai_server.base_url, MODEL, thinking=False)
    openai_server.plays(streams(event({"error": {"message": "no", "code": 400}}), DONE))
    with pytest.raises(UpstreamRefused):
        await asked(model, streamed=True)
    assert held(openai_server) == [True]


@pytest.mark.parametrize(
    ("searched", "may_search", "allowed"),
    [(False, True, {"search"}), (True, True, {"search", "report"}), (True, False, {"report"})],
)
def test_a_pattern_allows_the_turns_of_its_step(
    searched: bool, may_search: bool, allowed: set[str]
) -> None:
    """First a search, last a report, and in between either, in every form that the shipped
    models write.
    """
    pattern = turn_pattern(searched=searched, may_search=may_search)
    turns = {
        "search": [
            "<search>Heat</search>",
            "<search> Who directed Heat?</search>",
            "<search>谁?</search>",
        ],
        "report": [
            "<answer>Mann</answer><evidence>Heat is by Mann.</evidence>",
            "<answer> Mann</answer>\n<evidence>\nHeat is by Mann.\nSo it is.</evidence>",
        ],
    }
    for kind, texts in turns.items():
        for text in texts:
            assert bool(re.fullmatch(pattern, text)) == (kind in allowed)
            assert isinstance(parse_turn(text), SearchTurn if kind == "search" else ReportTurn)


@pytest.mark.parametrize(
    "text",
    [
        "Sure! <search>Heat</search>",
        "<search></search>",
        "<search>  </search>",
        "<search><answer>x</search>",
        "<answer>Mann</answer>",
        "<answer>Mann</answer><evidence> </evidence>",
        "<evidence>x</evidence><answer>Mann</answer>",
        "",
    ],
)
def test_no_pattern_allows_a_malformed_turn(text: str) -> None:
    assert isinstance(parse_turn(text), Malformed | SearchTurn)
    for searched, may_search in ((False, True), (True, True), (True, False)):
        assert not re.fullmatch(turn_pattern(searched=searched, may_search=may_search), text)
