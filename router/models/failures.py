"""Translation of failures of model endpoints (HTTP statuses, error replies and exceptions of the
HTTP client) to the errors of `router.errors`.
"""

import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from urllib.parse import unquote

import aiohttp
import httptools
from aiohttp.http import HttpProcessingError

from router.errors import (
    ContentRefused,
    ContextTooLong,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models.connection_pool import CertificateError, ConnectError
from router.models.session import BodyTooLong

_USERINFO = re.compile(r"(?<=://)[^/\s]*@")
_SHORTEST_NESTED = 16
"""A string in the settings counts as a secret if it has at least this many characters. Shorter
strings are usually values such as `low`.
"""


def without_userinfo(text: str) -> str:
    """Return `text` with the user and password removed from every URL in it."""
    return _USERINFO.sub("", text)


class Secrets:
    """Strings that must not appear in error messages: an API key, the long strings in a table of
    settings, and the password in an address.
    """

    def __init__(
        self,
        key: str | None,
        settings: Mapping[str, object] | None = None,
        address: str = "",
    ) -> None:
        """`key`: an API key. `settings`: nested settings whose strings may be secrets. `address`:
        the endpoint's URL, which may contain a user and password.
        """
        nested = (text for text in _strings(settings or {}) if len(text) >= _SHORTEST_NESTED)
        self._words = sorted(
            {*filter(None, [key]), *nested, *_passwords(address)}, key=len, reverse=True
        )

    def hidden(self, text: str) -> str:
        """Return `text` with each secret replaced by `***`, and without users and passwords in
        URLs.
        """
        for word in self._words:
            text = text.replace(word, "***")
        return without_userinfo(text)


def _passwords(address: str) -> Iterator[str]:
    """Yield the password in `address`, both as plain text and in the Base64 form that basic
    authentication sends.
    """
    for userinfo in _USERINFO.findall(address):
        pair = unquote(userinfo.removesuffix("@"))
        yield from filter(None, [pair.partition(":")[2]])
        yield b64encode((pair if ":" in pair else f"{pair}:").encode()).decode()


def _strings(value: object) -> Iterator[str]:
    """Yield all strings in nested settings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _strings(child)
    elif isinstance(value, Sequence):
        for child in value:
            yield from _strings(child)


MAX_WORDS_CHARS = 300
"""Max characters of a server's message that are quoted in our error."""
_MAX_READ = 4096
"""Known phrases are searched for only in this many characters at the start of a server's message.
"""

_TOO_LARGE = 413
_BROKEN = 500
_THROTTLED = 429
_UNAVAILABLE = frozenset(
    {408, 425, _THROTTLED, _BROKEN, 502, 503, 504, 520, 521, 522, 523, 524, 529}
)
_REFUSED = {
    400: "perhaps the prompt is too long for the model's context, or the model does not accept "
    "system messages (set `system_role = false`)",
    401: "check the API key",
    402: "check the account's credit",
    403: "check that the API key is allowed to use this model",
    404: "check that the endpoint serves a model of this name and that its address ends in /v1",
    422: "the endpoint does not accept one of the parameters, or the prompt is too long",
}
_LASTING = frozenset({401, 402, 403, 404})
"""Statuses whose cause is not the prompt, so that any other prompt would fail too."""

_TOO_LONG = re.compile(
    "context_length_exceeded|ContextWindowExceededError|exceed_context_size_error"
    "|(?:maximum|model's|available|input length exceeds the|greater than the) context "
    "(?:length|size)"
    "|context (?:length of only|window of|window exceeds|limit:)|`inputs` (?:tokens|must have less)"
    "|maximum (?:model length|prompt length|allowed length|number of tokens allowed)|"
    "only supports up to"
    "|(?:prompt|input) is too long|prompt exceeds max length|exceeded model token limit"
    "|tokens in the (?:prompt|request) cannot exceed|range of input length should be|"
    "must be reduced in order to run",
    re.IGNORECASE,
)
"""Phrases by which engines and providers say that a prompt exceeds the model's context. They are
searched for in error replies with any HTTP status. The tests quote whole messages.
"""

_DECLINED = re.compile(
    "content.?(?:filter|policy|management)|responsible.?ai.?policy|"
    "data.?inspection.?failed|content.exists.risk"
    "|prohibited.content|moderation_blocked",
    re.IGNORECASE,
)
"""Phrases by which providers say that their content filter declined a prompt."""
_OMITTED = "temperature|top_p|seed|stop|stream_options|chat_template_kwargs"
_PARAMETER = re.compile(
    rf"\b({_OMITTED})\b"
    rf"|(?:parameter|argument|field)s?(?: supplied)?[: ]{{1,2}}['\"`]?(?!{_OMITTED})(\w+_\w+)"
)
"""Finds the name of a refused parameter in an endpoint's message. Group 1 is a parameter that a
role's setting `omit` can leave out; group 2 is any other parameter.
"""
_NAMED = re.compile(
    "(?P<_429>rate.?limit|too.?many|throttl|exhausted|quota)|(?P<_503>overload|"
    "unavailable|capacity|not.?ready|loading)"
    "|(?P<_504>time.?out|deadline)|(?P<_401>authentication|unauthori|invalid.?(?:api.?key|token))"
    "|(?P<_402>billing|payment|insufficient.?(?:balance|credit))|(?P<_403>permission|"
    "forbidden|access.?denied)"
    r"|(?P<_404>\b\w*?not.?found)|(?P<_413>\b\w*?too.?large)|(?P<_400>invalid|"
    "bad.?request|unsupported|unprocess|content)",
    re.IGNORECASE,
)
"""Matches the name of a failure. The failure is treated like the HTTP status in the name of the
matching group, such as 429 for `_429`.
"""
_LONGEST_NAME = 200
"""Max characters that are read of a failure's code, and of its type."""
_DELAY = re.compile(
    r"(?:retryDelay\W{1,9}|(?:retry|try again) (?:in|after) )"
    r"([0-9]+(?:\.[0-9]+)?) ?s(?:ec(?:ond)?s?)?\b",
    re.IGNORECASE,
)
"""Finds the seconds in Google's `RetryInfo` (`"retryDelay": "7s"`), or in a message."""
_LONGEST_PAUSE_S = 86_400.0

ForeignError = aiohttp.ClientError | HttpProcessingError | httptools.HttpParserError | OSError
"""Exceptions that aiohttp and our own connections raise when the network or the server fails.
Timeouts are included, because `TimeoutError` is an `OSError`.
"""

_TURNED_AWAY = frozenset({_THROTTLED, 503})
"""Statuses that mean that the server did not begin the work, so that no tokens were spent."""
_WRONG_ADDRESS = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, aiohttp.RedirectClientError)
_WRONG_CERTIFICATE = (
    aiohttp.ClientConnectorCertificateError,
    aiohttp.ServerFingerprintMismatch,
    CertificateError,
)
_SSL = re.compile(r" ssl:(<[^>]*>|\w+)")
"""Matches aiohttp's note on how it checks a host's certificate. The note is removed from messages.
"""
_BROKEN_PROTOCOL = (
    aiohttp.ClientResponseError,
    HttpProcessingError,
    httptools.HttpParserError,
    BodyTooLong,
)


class Upstream:
    """Builds the errors of one model at one endpoint. Their messages name the model and contain no
    secrets.
    """

    def __init__(
        self,
        model: str,
        address: str,
        api_key: str | None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        """`extra_body`: further fields of each request. Their strings are hidden, because an
        endpoint may repeat them in an error.
        """
        self._model = model
        self._endpoint = without_userinfo(address)
        self._secrets = Secrets(api_key, extra_body, address)

    def from_status(
        self,
        status: int,
        text: str,
        headers: Mapping[str, str] | None = None,
    ) -> UpstreamError:
        """Return the error for an HTTP status.

        `text`: the server's message. `headers`: the reply's headers, in a mapping that has
        lower-case names or ignores case.
        """
        text = text[:_MAX_READ]
        message = f"model {self._model!r}: HTTP {status}: {self._short(text)}"
        if status == _TOO_LARGE or _TOO_LONG.search(text):
            hint = "show the model fewer or shorter passages, or serve it with a longer context"
            return ContextTooLong(f"{message}; {hint}", endpoint=self._endpoint)
        if status in _UNAVAILABLE:
            return UpstreamUnavailable(
                f"{message}; try again, or read the endpoint's log",
                endpoint=self._endpoint,
                retry_after_s=_pause_s(headers or {}, text),
                unspent=status in _TURNED_AWAY,
                repeatable=status != _BROKEN,
                throttled=status == _THROTTLED,
            )
        if status not in _REFUSED:
            return self.protocol_error(
                f"unexpected reply, HTTP {status}; check the address: {text}"
            )
        if _DECLINED.search(text):
            return self.declined(text)
        lasting = status in _LASTING
        parameter = None if lasting else _PARAMETER.search(text)
        hint = _hint(parameter) if parameter else _REFUSED[status]
        return UpstreamRefused(f"{message}; {hint}", endpoint=self._endpoint, lasting=lasting)

    def from_report(
        self,
        code: str | int | None,
        text: str,
        kind: str | None,
    ) -> UpstreamError:
        """Return the error for a failure that the server reports in the body of a reply with status
        200.

        `code`, `kind`: code and type of the failure; an HTTP status is derived from them. If both
        are unknown, the failure counts as an internal error of the server (status 500).
        """
        code = str(code)[:_LONGEST_NAME]
        named = _NAMED.search(f"{code} {str(kind)[:_LONGEST_NAME]}")
        status = int(named.lastgroup[1:]) if named and named.lastgroup else _BROKEN
        if code.isdecimal():
            number = int(code)
            if number == _TOO_LARGE or number in _UNAVAILABLE or number in _REFUSED:
                status = number
        return self.from_status(status, text)

    def moved(self, status: int, target: str) -> UpstreamRefused:
        """Return the error for a redirect that is not followed. `target`: the address in the
        redirect. Only one redirect per call is followed, and only to the same origin, so that no
        other server gets the prompt and the key.
        """
        return self._refused(
            f"HTTP {status}: the endpoint redirects to {target}; set base_url to that address"
        )

    def declined(self, text: str) -> ContentRefused:
        """Return the error for a prompt that the model or a content filter declined. `text`: the
        refusal.
        """
        words = self._short(text)
        return ContentRefused(
            f"model {self._model!r} declined the prompt; rephrase the request: {words}",
            endpoint=self._endpoint,
            words=words,
        )

    def from_transport(self, error: ForeignError) -> UpstreamError:
        """Return the error for an exception that the connection or the HTTP client raised."""
        text = f"{type(error).__name__}: {_SSL.sub('', str(error))}"
        if isinstance(error, _WRONG_ADDRESS):
            return self._refused(f"{text}; check the endpoint's address")
        if isinstance(error, _WRONG_CERTIFICATE):
            return self._refused(f"{text}; check the endpoint's certificate")
        proxied = isinstance(error, aiohttp.ClientHttpProxyError)
        if isinstance(error, _BROKEN_PROTOCOL) and not proxied:
            return self.protocol_error(text)
        unspent = isinstance(error, aiohttp.ClientConnectorError | ConnectError)
        return self.unavailable(text, unspent=unspent)

    def unavailable(self, text: str, *, unspent: bool = False) -> UpstreamUnavailable:
        """Return the error for an endpoint that is temporarily unreachable or failing. `unspent`:
        whether it is certain that the endpoint spent no tokens.
        """
        advice = "; check that it runs and can be reached from here" if unspent else "; try again"
        return UpstreamUnavailable(
            self._named(text) + advice, endpoint=self._endpoint, unspent=unspent
        )

    def protocol_error(self, text: str) -> UpstreamProtocolError:
        """Return the error for a reply that breaks the protocol."""
        return UpstreamProtocolError(self._named(text), endpoint=self._endpoint)

    def _refused(self, text: str) -> UpstreamRefused:
        return UpstreamRefused(self._named(text), endpoint=self._endpoint, lasting=True)

    def _named(self, text: str) -> str:
        return f"model {self._model!r}: {self._short(text)}"

    def _short(self, text: str) -> str:
        """Return a server's message on one line, without secrets, cut to `MAX_WORDS_CHARS`."""
        text = self._secrets.hidden(" ".join(text[:_MAX_READ].split())) or "(no message)"
        return text if len(text) <= MAX_WORDS_CHARS else f"{text[: MAX_WORDS_CHARS - 1]}…"


def _hint(parameter: re.Match[str]) -> str:
    if name := parameter[1]:
        return (
            f"the endpoint does not accept the parameter {name}; "
            f'leave it out with omit = ["{name}"] in the table of the role'
        )
    return (
        f"the endpoint does not accept the parameter {parameter[2]}; remove it from the role's "
        "settings or its extra_body"
    )


def _pause_s(headers: Mapping[str, str], text: str) -> float | None:
    """Return the pause that the server requests before a retry, in seconds, at most one day. It is
    read from the header `Retry-After-Ms` or `Retry-After`, or else from `text`, the server's
    message. Return None if the server requests no pause.
    """
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if seconds := re.fullmatch(r"([0-9]+(?:\.[0-9]*)?) ?s?", value, re.ASCII):
            return min(float(seconds[1]) * unit_s, _LONGEST_PAUSE_S)
        with suppress(ValueError, OverflowError):
            pause_s = parsedate_to_datetime(value).timestamp() - time.time()
            return min(max(0.0, pause_s), _LONGEST_PAUSE_S)
    delay = _DELAY.search(text)
    return min(float(delay[1]), _LONGEST_PAUSE_S) if delay else None
