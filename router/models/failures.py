"""Failures of upstreams as our errors: HTTP statuses and exceptions of the connection, mapped
here and nowhere else.
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
"""Characters; what is shorter is rather a setting, such as `low`."""


def without_userinfo(text: str) -> str:
    """The same with user and password left out of every address in it."""
    return _USERINFO.sub("", text)


class Secrets:
    """Keeps a key, and what a table of settings holds, out of texts."""

    def __init__(
        self, key: str | None, settings: Mapping[str, object] | None = None, address: str = ""
    ) -> None:
        """`address`: what is asked, perhaps with user and password in it."""
        nested = (text for text in _strings(settings or {}) if len(text) >= _SHORTEST_NESTED)
        self._words = sorted(
            {*filter(None, [key]), *nested, *_passwords(address)}, key=len, reverse=True
        )

    def hidden(self, text: str) -> str:
        """`text` without them, and without users and passwords in addresses."""
        for word in self._words:
            text = text.replace(word, "***")
        return without_userinfo(text)


def _passwords(address: str) -> Iterator[str]:
    """As they stand in an address, and as they are sent."""
    for userinfo in _USERINFO.findall(address):
        pair = unquote(userinfo.removesuffix("@"))
        yield from filter(None, [pair.partition(":")[2]])
        yield b64encode((pair if ":" in pair else f"{pair}:").encode()).decode()


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _strings(child)
    elif isinstance(value, Sequence):
        for child in value:
            yield from _strings(child)


MAX_SAID_CHARS = 300
_MOST_READ = 4096
"""Characters of what a server says that are looked at."""

_TOO_LARGE = 413
_BROKEN = 500
_THROTTLED = 429
_UNAVAILABLE = frozenset(
    {408, 425, _THROTTLED, _BROKEN, 502, 503, 504, 520, 521, 522, 523, 524, 529}
)
_REFUSED = {
    400: "perhaps the prompt is too long for the model's context, or the model knows no "
    "system role "
    "(`system_role = false`)",
    401: "check the API key",
    402: "check the account's credit",
    403: "check the API key and what it may use",
    404: "check that the endpoint serves a model of this name and that its address ends in /v1",
    422: "the endpoint does not take one of the parameters, or the prompt is too long",
}
_LASTING = frozenset({401, 402, 403, 404})
"""Those of them that have nothing to do with a prompt."""

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
"""Words of engines and providers for a prompt that is longer than the model's context; each says it
with a status of its own, and of nothing else. The tests have their words.
"""

_DECLINED = re.compile(
    "content.?(?:filter|policy|management)|responsible.?ai.?policy|"
    "data.?inspection.?failed|content.exists.risk"
    "|prohibited.content|moderation_blocked",
    re.IGNORECASE,
)
"""Words of providers whose filters decline a prompt."""
_OMITTED = (
    "temperature|top_p|seed|stop|stream_options|chat_template_kwargs|add_generation_prompt|"
    "continue_final_message"
)
_PARAMETER = re.compile(
    rf"\b({_OMITTED})\b|(?:parameter|argument|field)s?(?: supplied)?[: ]{{1,"
    rf"2}}['\"`]?(?!{_OMITTED})(\w+_\w+)"
)
"""Parameters of a request in an endpoint's words: those that may be left out, and others."""
_NAMED = re.compile(
    "(?P<_429>rate.?limit|too.?many|throttl|exhausted|quota)|(?P<_503>overload|"
    "unavailable|capacity|not.?ready|loading)"
    "|(?P<_504>time.?out|deadline)|(?P<_401>authentication|unauthori|invalid.?(?:api.?key|token))"
    "|(?P<_402>billing|payment|insufficient.?(?:balance|credit))|(?P<_403>permission|"
    "forbidden|access.?denied)"
    "|(?P<_404>[a-z_]*not.?found)|(?P<_413>[a-z_]*too.?large)|(?P<_400>invalid|"
    "bad.?request|unsupported|unprocess|content)",
    re.IGNORECASE,
)
"""Names of failures, by the status that stands for each."""
_LONGEST_PAUSE_S = 86_400.0

ForeignError = aiohttp.ClientError | HttpProcessingError | httptools.HttpParserError | OSError
"""All that aiohttp and our connections raise for the outside world's sake; timeouts are
`OSError`s.
"""

_TURNED_AWAY = frozenset({_THROTTLED, 503})
"""Statuses of a server that did not begin."""
_WRONG_ADDRESS = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, aiohttp.RedirectClientError)
_WRONG_CERTIFICATE = (
    aiohttp.ClientConnectorCertificateError,
    aiohttp.ServerFingerprintMismatch,
    CertificateError,
)
_SSL = re.compile(r" ssl:(<[^>]*>|\w+)")
"""The note that aiohttp puts behind a host: how its certificate is checked, by name or as an
object.
"""
_BROKEN_PROTOCOL = (
    aiohttp.ClientResponseError,
    HttpProcessingError,
    httptools.HttpParserError,
    BodyTooLong,
)


class Upstream:
    """Names one model at one endpoint in the errors that it makes, and keeps what is secret out
    of them.
    """

    def __init__(
        self,
        model: str,
        address: str,
        api_key: str | None,
        extra_body: Mapping[str, object] | None = None,
    ) -> None:
        """`extra_body`: what is sent beside the prompt, which an endpoint may repeat."""
        self._model = model
        self._endpoint = without_userinfo(address)
        self._secrets = Secrets(api_key, extra_body, address)

    def from_status(
        self, status: int, said: str, headers: Mapping[str, str] | None = None
    ) -> UpstreamError:
        """The error for an HTTP status. `said`: the server's words. `headers`: its reply's, in
        lower case or in any.
        """
        said = said[:_MOST_READ]
        message = f"model {self._model!r}: HTTP {status}: {self._short(said)}"
        if status == _TOO_LARGE or _TOO_LONG.search(said):
            hint = "show the model fewer or shorter passages, or serve it with a longer context"
            return ContextTooLong(f"{message}; {hint}", endpoint=self._endpoint)
        if status in _UNAVAILABLE:
            return UpstreamUnavailable(
                message,
                endpoint=self._endpoint,
                retry_after_s=_pause_s(headers or {}),
                unspent=status in _TURNED_AWAY,
                repeatable=status != _BROKEN,
                throttled=status == _THROTTLED,
            )
        if status in _REFUSED and _DECLINED.search(said):
            return self.declined(said)
        if status in _REFUSED:
            lasting = status in _LASTING
            parameter = None if lasting else _PARAMETER.search(said)
            hint = _hint(parameter) if parameter else _REFUSED[status]
            return UpstreamRefused(f"{message}; {hint}", endpoint=self._endpoint, lasting=lasting)
        return self.protocol_error(f"HTTP {status}: {said}")

    def from_report(
        self, code: str | int | None, said: str, kind: str | None = None
    ) -> UpstreamError:
        """The error that a reply of status 200 reports, by its code or its kind; without a known
        one it counts as the server's own.
        """
        named = _NAMED.search(f"{code} {kind}")
        status = int(((named and named.lastgroup) or "")[1:] or _BROKEN)
        if isinstance(code, int) or (code and code.isdecimal()):
            known = int(code) == _TOO_LARGE or int(code) in _UNAVAILABLE or int(code) in _REFUSED
            status = int(code) if known else status
        return self.from_status(status, said)

    def moved(self, status: int, target: str) -> UpstreamRefused:
        """It is elsewhere, where nobody has said that the prompt and the key may go."""
        return self._refused(
            f"HTTP {status}: the endpoint sends callers to {target}; name that in base_url"
        )

    def declined(self, said: str) -> ContentRefused:
        """The model, or a filter before or behind it, will not answer this prompt."""
        words = self._short(said)
        return ContentRefused(
            f"model {self._model!r} declines: {words}", endpoint=self._endpoint, said=words
        )

    def from_transport(self, error: ForeignError) -> UpstreamError:
        """The error for whatever aiohttp or the socket raised."""
        said = f"{type(error).__name__}: {_SSL.sub('', str(error))}"
        if isinstance(error, _WRONG_ADDRESS):
            return self._refused(f"{said}; check its address")
        if isinstance(error, _WRONG_CERTIFICATE):
            return self._refused(f"{said}; check its certificate")
        if isinstance(error, _BROKEN_PROTOCOL) and not isinstance(
            error, aiohttp.ClientHttpProxyError
        ):
            return self.protocol_error(said)
        return self.unavailable(
            said, unspent=isinstance(error, aiohttp.ClientConnectorError | ConnectError)
        )

    def unavailable(self, said: str, *, unspent: bool = False) -> UpstreamUnavailable:
        """Not reachable, or broken for now."""
        message = f"model {self._model!r}: {self._short(said)}"
        return UpstreamUnavailable(message, endpoint=self._endpoint, unspent=unspent)

    def protocol_error(self, said: str) -> UpstreamProtocolError:
        """Not the protocol."""
        return UpstreamProtocolError(
            f"model {self._model!r}: {self._short(said)}", endpoint=self._endpoint
        )

    def _refused(self, said: str) -> UpstreamRefused:
        return UpstreamRefused(
            f"model {self._model!r}: {self._short(said)}", endpoint=self._endpoint, lasting=True
        )

    def _short(self, said: str) -> str:
        said = self._secrets.hidden(" ".join(said[:_MOST_READ].split())) or "(no message)"
        return said if len(said) <= MAX_SAID_CHARS else f"{said[: MAX_SAID_CHARS - 1]}…"


def _hint(parameter: re.Match[str]) -> str:
    if parameter[1]:
        return (
            f"the endpoint does not take the parameter {parameter[1]}; leave it out with "
            f'omit = ["{parameter[1]}"]'
        )
    return (
        f"the endpoint does not take the parameter {parameter[2]}; see the role's settings "
        "and extra_body"
    )


def _pause_s(headers: Mapping[str, str]) -> float | None:
    """The pause that the server asks for, in seconds, a day at most; None where it does not say."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        said = headers.get(name, "").strip()
        if re.fullmatch(r"[0-9]+(?:\.[0-9]*)?", said, re.ASCII):
            return min(float(said) * unit_s, _LONGEST_PAUSE_S)
        with suppress(ValueError, OverflowError):
            return min(
                max(0.0, parsedate_to_datetime(said).timestamp() - time.time()), _LONGEST_PAUSE_S
            )
    return None
