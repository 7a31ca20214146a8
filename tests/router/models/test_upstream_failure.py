"""Errors of other libraries become upstream errors, and none is missed."""

import time
from collections.abc import Iterator, Mapping

import aiohttp
import pytest
from aiohttp.http import HttpProcessingError

from router.errors import (
    ContextTooLong,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models.failures import Upstream

UPSTREAM = Upstream("tiny", "http://x/v1", "sk-secret")

REFUSED = set(
    "InvalidURL InvalidUrlClientError InvalidUrlRedirectClientError RedirectClientError "
    "NonHttpUrlClientError "
    "NonHttpUrlRedirectClientError ClientConnectorCertificateError "
    "ServerFingerprintMismatch".split()
)
MALFORMED = {
    "BodyTooLong",
    "ClientResponseError",
    "ContentTypeError",
    "WSServerHandshakeError",
    "TooManyRedirects",
}


def _family(error: type[Exception]) -> Iterator[type[Exception]]:
    yield error
    for child in error.__subclasses__():
        yield from _family(child)


def _instance(kind: type[Exception]) -> Exception:
    """Return an error of this class, without its arguments."""

    class Bare(kind):  # type: ignore[misc, valid-type]
        __str__ = Exception.__str__

    return Bare.__new__(Bare)


@pytest.mark.parametrize("kind", sorted(set(_family(aiohttp.ClientError)), key=str))
def test_every_error_of_aiohttp_s_client_is_typed(kind: type[aiohttp.ClientError]) -> None:
    """Errors that are not listed as refused or malformed are worth a retry."""
    name = kind.__name__
    expected: type[UpstreamError] = UpstreamUnavailable
    if name in REFUSED:
        expected = UpstreamRefused
    elif name in MALFORMED:
        expected = UpstreamProtocolError

    error = _instance(kind)
    assert isinstance(error, aiohttp.ClientError)
    assert type(UPSTREAM.from_transport(error)) is expected


@pytest.mark.parametrize("kind", sorted(set(_family(HttpProcessingError)), key=str))
def test_every_error_of_aiohttp_s_parser_is_a_protocol_error(
    kind: type[HttpProcessingError],
) -> None:
    error = _instance(kind)
    assert isinstance(error, HttpProcessingError)
    assert isinstance(UPSTREAM.from_transport(error), UpstreamProtocolError)


@pytest.mark.parametrize(
    "error", [OSError("x"), TimeoutError(), ConnectionResetError("x"), BrokenPipeError()]
)
def test_an_error_of_a_socket_is_worth_a_retry(error: OSError) -> None:
    assert isinstance(UPSTREAM.from_transport(error), UpstreamUnavailable)


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        (UpstreamUnavailable, (408, 429, 500, 502, 503, 504, 529)),
        (UpstreamRefused, (400, 401, 402, 403, 404, 422)),
        (ContextTooLong, (413,)),
        (UpstreamProtocolError, (201, 204, 301, 405, 418, 501)),
    ],
)
def test_a_status_is_unavailable_refused_too_long_or_a_protocol_error(
    kind: type[UpstreamError], statuses: tuple[int, ...]
) -> None:
    assert {type(UPSTREAM.from_status(status, "no")) for status in statuses} == {kind}


TOO_LONG = {
    "OpenAI": "Input tokens exceed the configured limit of 272000 tokens. (context_length_exceeded)",
    "OpenAI, a minute's limit": "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 41000. "
    "The input or output tokens must be reduced in order to run successfully.",
    "vLLM 0.32": "This model's maximum context length is 2048 tokens. However, your prompt contains "
    "at least 2049 "
    "input tokens, which exceeds this limit even without any output tokens. Please "
    "reduce the length of the input "
    "prompt.",
    "vLLM, its engine": "The decoder prompt (length 10127) is longer than the maximum model length of 8192. "
    "Make sure "
    "that `max_model_len` is no smaller than the number of text tokens.",
    "SGLang": "The input (61709 tokens) is longer than the model's context length (40960 tokens).",
    "llama.cpp": (
        "request (4521 tokens) exceeds the available context size (4096 tokens), try increasing it"
    ),
    "llama-cpp-python": "Requested tokens (2285) exceed context window of 2048",
    "LM Studio": "Trying to keep the first 9000 tokens when context the overflows. However, the model "
    "is loaded with "
    "context length of only 4096 tokens",
    "Ollama": "the input length exceeds the context length",
    "TGI": (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: "
        "4000 and 512"
    ),
    "Anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
    "Mistral": (
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 "
        "maximum context length"
    ),
    "Gemini": (
        "The input token count (317740) exceeds the maximum number of tokens allowed (131072)."
    ),
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Cohere": (
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000."
    ),
    "Qwen": (
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]"
    ),
    "Kimi": "Invalid request: Your request exceeded model token limit: 8192",
    "Bedrock": "Input is too long for requested model.",
    "LiteLLM": (
        "litellm.ContextWindowExceededError: litellm.BadRequestError: AI21Exception - length "
        "limit exceeded"
    ),
}


@pytest.mark.parametrize("message", TOO_LONG.values(), ids=TOO_LONG.keys())
@pytest.mark.parametrize("status", [400, 422, 429, 500])
def test_a_message_about_a_too_long_prompt_is_recognised(status: int, message: str) -> None:
    """Holds for every status that engines give it."""
    assert type(UPSTREAM.from_status(status, message)) is ContextTooLong
    assert type(UPSTREAM.from_report(status, message, None)) is ContextTooLong


@pytest.mark.parametrize(
    "message",
    [
        "System role not supported",
        "Conversation roles must alternate user/assistant/user/assistant/...",
        (
            "max_tokens=5000 cannot be greater than max_model_len=2048. Please request fewer "
            "output tokens."
        ),
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead."
        ),
        (
            "Invalid 'user': string too long. Expected a string with maximum length 64. "
            "(string_above_max_length)"
        ),
        "The model `tiny` does not exist.",
        "Too many tokens, please wait before trying again.",
        "Invalid schema: context_length must be an integer",
    ],
)
def test_a_message_about_other_lengths_is_a_plain_refusal(message: str) -> None:
    assert type(UPSTREAM.from_status(400, message)) is UpstreamRefused


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "20", "retry-after": "1"}, 0.02),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:12 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2995 07:28:12 GMT"}, 86_400.0),
        ({"retry-after": "9" * 30}, 86_400.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after-ms": "-5", "retry-after": " 2 "}, 2.0),
        ({"retry-after": "Wed, 99 Foo 2026 07:28:12 GMT"}, None),
        ({"retry-after": "7s"}, 7.0),
        ({"retry-after": " 7.5 s"}, 7.5),
        ({"retry-after": "7m"}, None),
        ({"retry-after": "s"}, None),
        ({"retry-after-ms": "7ms", "retry-after": "1s"}, 1.0),
        ({"message": '{"retryDelay": "7s"}'}, 7.0),
        ({"message": "[{'retryDelay': '34.074824224s'}]"}, 34.074824224),
        ({"message": "Quota exceeded. Please retry in 7.5s."}, 7.5),
        ({"message": "Rate limit reached. Please try again in 7s."}, 7.0),
        ({"message": "Please retry after 7 seconds."}, 7.0),
        ({"message": "Please try again in 20ms."}, None),
        ({"message": "Please try again in 1m7s."}, None),
        ({"message": "retryDelay: soon"}, None),
        ({"message": "Please retry after 5 seconds."}, 5.0),
        ({"message": "retry after 5 seasons"}, None),
        ({"retry-after": "s7s"}, None),
        ({"message": "retryDelay: " + "9" * 400 + "s"}, 86_400.0),
        ({"message": "Please retry in 7s.", "retry-after": "2"}, 2.0),
    ],
)
def test_retry_after_is_milliseconds_seconds_or_a_date(
    headers: Mapping[str, str], seconds: float | None
) -> None:
    """A day is the maximum, and invalid values are ignored. Without the header, the server's
    message may name the pause.
    """
    error = UPSTREAM.from_status(429, headers.get("message", "slow down"), headers)
    assert isinstance(error, UpstreamUnavailable)
    assert error.retry_after_s == seconds


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, UpstreamRefused),
        ("404", UpstreamRefused),
        (503, UpstreamUnavailable),
        ("rate_limit_exceeded", UpstreamUnavailable),
        (9001, UpstreamUnavailable),
        (None, UpstreamUnavailable),
        (413, ContextTooLong),
    ],
)
def test_an_error_with_status_200_is_typed_by_its_code(
    code: str | int | None, kind: type[UpstreamError]
) -> None:
    assert type(UPSTREAM.from_report(code, "no", None)) is kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_MODEL_NOT_FOUND", UpstreamRefused),
        ("content_too_large", ContextTooLong),
        ("a" * 900_000, UpstreamUnavailable),
        ("a_" * 450_000, UpstreamUnavailable),
        ("not " * 225_000, UpstreamUnavailable),
        ("9" * 900_000, UpstreamUnavailable),
        ("9" * 4_301, UpstreamUnavailable),
    ],
    ids=lambda code: str(code)[:30],
)
def test_a_long_code_is_read_in_linear_time(code: str, kind: type[UpstreamError]) -> None:
    """Only the start of a code and of a type is read; a code of twenty thousand letters took a
    minute.
    """
    start = time.thread_time()
    assert type(UPSTREAM.from_report(code, "no", None)) is kind
    assert type(UPSTREAM.from_report(None, "no", code)) is kind
    assert time.thread_time() - start < 0.2


def test_an_api_key_that_a_server_repeats_is_masked() -> None:
    error = UPSTREAM.from_status(401, "wrong key sk-secret")
    assert "sk-secret" not in f"{error} {error!r}"
    assert "wrong key ***" in str(error)
