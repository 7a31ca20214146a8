"""Hosted models: the real LiteLLM against a server on the loopback."""

import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest
from multidict import CIMultiDict

from router.errors import (
    ContextTooLong,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models import Completion, Message, Prompt, Sampling, Usage
from router.models.failures import Upstream
from router.models.litellm_client import LiteLLMModel, close_clients
from router.models.openai_wire import REQUEST_ID
from tests.openai_behaviours import disconnects, replies, text_event
from tests.openai_server import (
    DONE,
    MODEL,
    USAGE,
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

PROMPT = Prompt((Message("user", "hi"),), Sampling(), stop=("</x>",))
COUNTED = Usage(11, 7, cached_tokens=4, reasoning_tokens=3)


@pytest.fixture
async def model(openai_server: OpenAIServer) -> AsyncIterator[LiteLLMModel]:
    yield LiteLLMModel(f"openai/{MODEL}", api_key="sk-secret", api_base=openai_server.base_url)
    await close_clients()


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (says("a ", "b"), Completion("a b", "stop", usage=COUNTED)),
        (says("a", finish_reason="length"), Completion("a", "length", usage=COUNTED)),
        (says(None), Completion("", "stop", usage=COUNTED, unclosed=True)),
        (says("<think>a</x></think>b", "</x>"), Completion("b</x>", "stop", "a</x>", COUNTED)),
        (says("a", reasoning={"reasoning_content": "hm"}), Completion("a", "stop", "hm", COUNTED)),
        (says("a", reasoning={"reasoning": "hm"}), Completion("a", "stop", "hm", COUNTED)),
        (says("a</", "x>", finish_reason="length"), Completion("a</x>", "stop", usage=COUNTED)),
        (says("a", "</x>"), Completion("a</x>", "stop", usage=COUNTED)),
        (says("a</x> b", usage=None), Completion("a</x>", "stop", overran=True)),
    ],
)
async def test_a_stream_gives_the_same_completion_as_a_whole_reply(
    model: LiteLLMModel, openai_server: OpenAIServer, behaviour: Behaviour, expected: Completion
) -> None:
    """Usage is equal too."""
    openai_server.plays(behaviour)
    assert await model.complete(PROMPT) == expected
    assert await streamed(model, PROMPT) == expected


async def test_a_stream_that_overruns_a_stop_string_is_left(
    model: LiteLLMModel, openai_server: OpenAIServer
) -> None:
    """The provider is left immediately."""
    openai_server.plays(streams(text_event("a</"), text_event("x>b"), then=hang))
    assert await streamed(model, PROMPT) == Completion("a</x>", "stop", overran=True)
    await disconnects(openai_server)
    openai_server.plays(says("a</x>b"))
    assert (await model.complete(PROMPT)).text == "a</x>"


async def test_usage_that_is_not_reported_is_unknown(
    model: LiteLLMModel, openai_server: OpenAIServer
) -> None:
    """It is neither zero nor LiteLLM's own estimate."""
    openai_server.plays(says("a", usage=None, reasoning={"reasoning_content": "hm"}))
    assert (await model.complete(PROMPT)).usage is None
    assert (await streamed(model, PROMPT)).usage is None


async def test_reasoning_tokens_that_are_not_reported_are_unknown(
    model: LiteLLMModel, openai_server: OpenAIServer
) -> None:
    """LiteLLM would estimate them from the text."""
    usage = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    openai_server.plays(says("a", usage=usage, reasoning={"reasoning_content": "hm"}))
    assert (await model.complete(PROMPT)).usage == Usage(5, 9)
    assert (await streamed(model, PROMPT)).usage == Usage(5, 9)


async def test_a_request_has_what_was_set(model: LiteLLMModel, openai_server: OpenAIServer) -> None:
    """A stream asks for its usage."""
    await model.complete(
        Prompt((Message("system", "be"), Message("user", "é")), Sampling(9, 0.5, 0.9, seed=3))
    )
    assert openai_server.bodies[-1] == {
        "model": MODEL,
        "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "é"}],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
    }
    await streamed(model, PROMPT)
    assert openai_server.bodies[-1]["stream_options"] == {"include_usage": True}
    assert openai_server.bodies[-1]["stop"] == ["</x>"]


async def test_a_call_s_request_id_is_sent(
    model: LiteLLMModel, openai_server: OpenAIServer
) -> None:
    await model.complete(msgspec.structs.replace(PROMPT, request_id="run-1-0"))
    await streamed(model, msgspec.structs.replace(PROMPT, request_id="run-1-1"))
    await model.complete(PROMPT)
    request_ids = [CIMultiDict(headers).get(REQUEST_ID) for headers in openai_server.headers]
    assert request_ids == ["run-1-0", "run-1-1", None]


async def test_only_openai_s_models_are_counted() -> None:
    """For other models, LiteLLM would use the wrong tokenizer."""
    usage = await LiteLLMModel("openai/gpt-4.1-mini").count(PROMPT, "one two three")
    assert usage is not None
    assert (usage.completion_tokens, usage.estimated) == (3, True)
    assert 1 < usage.prompt_tokens < 20
    for name in ("deepseek/deepseek-chat", "anthropic/claude-sonnet-4-5", f"openai/{MODEL}"):
        assert await LiteLLMModel(name).count(PROMPT, "one two three") is None


async def test_extra_arguments_win_except_over_the_call_s_own(openai_server: OpenAIServer) -> None:
    """Retries stay off too."""
    extra = {
        "reasoning_effort": "low",
        "temperature": 0.6,
        "top_k": 20,
        "stream": True,
        "num_retries": 3,
    }
    model = LiteLLMModel(
        f"openai/{MODEL}", api_key="k", api_base=openai_server.base_url, extra_body=extra
    )
    assert (await model.complete(PROMPT)).text == "hello"
    body = openai_server.bodies[-1]
    assert (body["model"], body["temperature"], body["top_k"]) == (MODEL, 0.6, 20)
    openai_server.plays(fails(503, "loading"))
    with pytest.raises(UpstreamUnavailable):
        await model.complete(PROMPT)
    assert len(openai_server.bodies) == 2
    await close_clients()


@pytest.mark.parametrize(
    ("behaviour", "kind", "message"),
    [
        (fails(429, "slow down"), UpstreamUnavailable, "slow down"),
        (fails(503, "loading"), UpstreamUnavailable, "loading"),
        (fails(504, "timeout"), UpstreamUnavailable, "timeout"),
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
        (fails(413, "request too large"), ContextTooLong, "request too large"),
        (fails(401, "no sk-secret"), UpstreamRefused, "check the API key"),
        (fails(403, "no"), UpstreamRefused, "check that the API key"),
        (fails(404, "no such model"), UpstreamRefused, "check that the endpoint serves"),
        (fails(418, "teapot"), UpstreamProtocolError, "teapot"),
        (reset, UpstreamUnavailable, ""),
        (replies(b"<html>", "text/html"), UpstreamUnavailable, ""),
    ],
)
async def test_failures_are_typed_and_name_the_endpoint_but_no_key(
    model: LiteLLMModel,
    openai_server: OpenAIServer,
    behaviour: Behaviour,
    kind: type[UpstreamError],
    message: str,
) -> None:
    """The provider's message is part of the error, and a failure costs one request."""
    openai_server.plays(behaviour)
    with pytest.raises(kind) as whole:
        await model.complete(PROMPT)
    with pytest.raises(kind) as stream:
        await streamed(model, PROMPT)
    for caught in (whole, stream):
        assert message in str(caught.value)
        assert caught.value.endpoint == openai_server.base_url
        assert "sk-secret" not in f"{caught.value} {caught.value!r}"
    assert len(openai_server.bodies) == 2


@pytest.mark.parametrize("name", ["openai/tiny", "anthropic/tiny", "gemini/tiny"])
async def test_a_server_that_cannot_be_reached_has_no_status(name: str) -> None:
    """Nothing was spent."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        model = LiteLLMModel(
            name, api_key="sk-secret", api_base=f"http://127.0.0.1:{bound.getsockname()[1]}"
        )
        with pytest.raises(UpstreamUnavailable, match="Cannot connect") as caught:
            await model.complete(PROMPT)
    assert not re.search("HTTP|ssl", str(caught.value))
    assert caught.value.unspent
    await close_clients()


async def test_a_broken_connection_has_no_status_and_may_have_spent(
    model: LiteLLMModel, openai_server: OpenAIServer
) -> None:
    openai_server.plays(reset)
    for output in (model.complete(PROMPT), streamed(model, PROMPT)):
        with pytest.raises(UpstreamUnavailable) as caught:
            await output
        assert "HTTP" not in str(caught.value)
        assert not caught.value.unspent


async def test_a_failure_during_another_s_handling_is_its_own(
    model: LiteLLMModel, openai_server: OpenAIServer
) -> None:
    """The error being handled does not leak into the new one."""
    openai_server.plays(fails(400, "at most 512 tokens"))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        unreachable = LiteLLMModel(
            "openai/tiny", api_key="sk-x", api_base=f"http://127.0.0.1:{bound.getsockname()[1]}"
        )
        for call in (model.complete, lambda _prompt: streamed(model, PROMPT)):
            with pytest.raises(UpstreamRefused, match="at most 512 tokens"):
                try:
                    await unreachable.complete(PROMPT)
                except UpstreamUnavailable:
                    await call(PROMPT)


async def test_every_error_of_litellm_has_a_known_status_or_none(model: LiteLLMModel) -> None:
    """The table of statuses knows each; an error without a status is a protocol error."""
    await model.complete(PROMPT)
    litellm = sys.modules["litellm"]
    upstream = Upstream("tiny", "http://x", None)
    for kind in litellm.exceptions.LITELLM_EXCEPTION_TYPES:
        status = getattr(kind.__new__(kind), "status_code", None)
        assert status is None or isinstance(
            upstream.from_status(status, ""), UpstreamRefused | UpstreamUnavailable
        )


@pytest.mark.parametrize(
    "behaviour",
    [
        streams(text_event("a")),
        streams(text_event("a"), then=reset),
        streams(text_event("a"), event({"error": {"message": "engine died", "code": 500}}), DONE),
        streams(text_event("a"), b"data: {nope\n\n"),
    ],
)
async def test_a_cut_stream_is_an_error(
    model: LiteLLMModel, openai_server: OpenAIServer, behaviour: Behaviour
) -> None:
    """LiteLLM would invent a finish reason and a usage for it."""
    openai_server.plays(behaviour)
    with pytest.raises(UpstreamUnavailable):
        await streamed(model, PROMPT)


async def test_a_finish_reason_with_the_last_text_is_kept(
    model: LiteLLMModel, openai_server: OpenAIServer
) -> None:
    """It is the provider's own."""
    last_chunk = {"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "length"}]}
    openai_server.plays(
        streams(text_event("a"), event(last_chunk), event({"choices": [], "usage": USAGE}), DONE)
    )
    assert await streamed(model, PROMPT) == Completion("ab", "length", usage=COUNTED)


async def test_leaving_a_stream_stops_the_work_upstream(
    model: LiteLLMModel, openai_server: OpenAIServer
) -> None:
    openai_server.plays(streams(text_event("a"), then=hang))
    assert [delta.text for delta in await left(model, PROMPT)] == ["a"]
    await disconnects(openai_server)


def in_a_fresh_python(code: str) -> str:
    """Return what `code` prints in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_making_a_model_does_not_import_litellm() -> None:
    """Closing without LiteLLM does nothing."""
    code = """
import asyncio, sys
from router.models.litellm_client import LiteLLMModel, close_clients
model = LiteLLMModel("deepseek/deepseek-chat", api_key="sk-secret")
asyncio.run(close_clients())
print("litellm" in sys.modules, model.name, model.endpoint, "sk-secret" in repr(model))
"""
    assert in_a_fresh_python(code) == "False deepseek/deepseek-chat litellm:deepseek False"


def test_the_first_call_imports_litellm_in_a_thread() -> None:
    """LiteLLM's settings are applied first. If it is missing, the error says what to install."""
    code = """
import asyncio, os, sys, threading
from router.errors import BadConfig
from router.models.litellm_client import LiteLLMModel
from router.models.model import Message, Prompt, Sampling

class Watcher:
    def find_spec(self, name, path=None, target=None):
        if name == "litellm":
            main = threading.current_thread() is threading.main_thread()
            print(main, os.environ["LITELLM_LOCAL_MODEL_COST_MAP"], os.environ["LITELLM_MODE"])
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Watcher())
try:
    asyncio.run(LiteLLMModel("deepseek/x").complete(Prompt((Message("user", "hi"),), Sampling())))
except BadConfig as error:
    print(error)
"""
    imported, error = in_a_fresh_python(code).splitlines()
    assert imported == "False True PRODUCTION"
    assert "install rolegate[hosted]" in error
