"""Foreign errors become ours, and none is missed."""

from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp.http import HttpProcessingError

from router.errors import UpstreamError, UpstreamGarbled, UpstreamRefused, UpstreamUnavailable
from router.upstream_failure import MAX_SAID_CHARS, Upstream

UPSTREAM = Upstream("tiny", "http://x/v1", "sk-secret")

REFUSED = {
    "InvalidURL",
    "InvalidUrlClientError",
    "InvalidUrlRedirectClientError",
    "RedirectClientError",
    "NonHttpUrlClientError",
    "NonHttpUrlRedirectClientError",
    "ClientConnectorCertificateError",
    "ServerFingerprintMismatch",
}
GARBLED = {"ClientResponseError", "ContentTypeError", "WSServerHandshakeError", "TooManyRedirects"}


def _family(error: type[Exception]) -> Iterator[type[Exception]]:
    yield error
    for child in error.__subclasses__():
        yield from _family(child)


def _instance(kind: type[Exception]) -> Exception:
    """An error of that class, without the arguments that each wants; enough attributes for its `str`."""

    class Bare(kind):  # type: ignore[misc, valid-type]
        __str__ = Exception.__str__

    return Bare.__new__(Bare)


@pytest.mark.parametrize("kind", sorted(set(_family(aiohttp.ClientError)), key=str))
def test_every_client_error(kind: type[aiohttp.ClientError]) -> None:
    """Every error of aiohttp's client has a class here; those not listed as final or garbled are worth a retry."""
    name = kind.__name__
    expected = UpstreamRefused if name in REFUSED else UpstreamGarbled if name in GARBLED else UpstreamUnavailable
    error = _instance(kind)
    assert isinstance(error, aiohttp.ClientError)
    assert type(UPSTREAM.from_transport(error)) is expected


@pytest.mark.parametrize("kind", sorted(set(_family(HttpProcessingError)), key=str))
def test_every_parser_error(kind: type[HttpProcessingError]) -> None:
    """What aiohttp cannot parse as HTTP is garbled."""
    error = _instance(kind)
    assert isinstance(error, HttpProcessingError)
    assert isinstance(UPSTREAM.from_transport(error), UpstreamGarbled)


@pytest.mark.parametrize("error", [OSError("x"), TimeoutError(), ConnectionResetError("x"), BrokenPipeError()])
def test_sockets(error: OSError) -> None:
    """Errors of the socket are worth another try."""
    assert isinstance(UPSTREAM.from_transport(error), UpstreamUnavailable)


@pytest.mark.parametrize(
    ("kind", "statuses"),
    [
        (UpstreamUnavailable, (408, 429, 500, 502, 503, 504, 529)),
        (UpstreamRefused, (400, 401, 402, 403, 404, 413, 422)),
        (UpstreamGarbled, (201, 204, 301, 405, 418, 501)),
    ],
)
def test_statuses(kind: type[UpstreamError], statuses: tuple[int, ...]) -> None:
    """A status says whether to try again, to give up, or that this is no such endpoint."""
    assert {type(UPSTREAM.from_status(status, "no")) for status in statuses} == {kind}


@pytest.mark.parametrize(("status", "hint"), [(404, "serves"), (401, "API key"), (403, "key"), (400, "too long")])
def test_hints(status: int, hint: str) -> None:
    """A refusal says what to do about it."""
    assert hint in str(UPSTREAM.from_status(status, "no"))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), (None, None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None), ("inf", None)],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    """The seconds of Retry-After are kept; dates and nonsense count as not said."""
    error = UPSTREAM.from_status(429, "slow down", header)
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
    ],
)
def test_reports(code: str | int | None, kind: type[UpstreamError]) -> None:
    """An error that comes with status 200 counts by its code."""
    assert type(UPSTREAM.from_report(code, "no")) is kind


def test_key_stays_secret() -> None:
    """A server that repeats the API key does not get it into messages."""
    error = UPSTREAM.from_status(401, "wrong key sk-secret")
    assert "sk-secret" not in f"{error} {error!r}"
    assert "wrong key ***" in str(error)


def test_short() -> None:
    """A page of HTML does not become a page of log."""
    assert len(str(UPSTREAM.garbled("x" * 10_000))) < MAX_SAID_CHARS + 100
