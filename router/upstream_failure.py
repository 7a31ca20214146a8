"""What goes wrong upstream, as our errors: HTTP statuses and aiohttp's exceptions, mapped here and nowhere else."""

import math

import aiohttp
from aiohttp.http import HttpProcessingError

from router.errors import UpstreamError, UpstreamGarbled, UpstreamRefused, UpstreamUnavailable

MAX_SAID_CHARS = 300

_UNAVAILABLE = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_REFUSED = {
    400: "perhaps the prompt is too long for the model's context",
    401: "check the API key",
    402: "check the account's credit",
    403: "check the API key and what it may use",
    404: "check that the endpoint serves a model of this name and that its address ends in /v1",
    413: "the prompt is too long",
    422: "the endpoint does not take one of the parameters, or the prompt is too long",
}

ForeignError = aiohttp.ClientError | HttpProcessingError | OSError
"""All that aiohttp raises for the outside world's sake; its timeouts are `OSError`s."""

_WRONG_ADDRESS = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, aiohttp.RedirectClientError)
_WRONG_CERTIFICATE = (aiohttp.ClientConnectorCertificateError, aiohttp.ServerFingerprintMismatch)
_GARBLED = (aiohttp.ClientResponseError, HttpProcessingError)


class Upstream:
    """Names one model at one endpoint in the errors that it makes, and keeps its key out of them."""

    def __init__(self, model: str, endpoint: str, api_key: str | None) -> None:
        self._model, self._endpoint, self._api_key = model, endpoint, api_key

    def from_status(self, status: int, said: str, retry_after: str | None = None) -> UpstreamError:
        """The error for an HTTP status. `said`: the server's words. `retry_after`: the header of that name."""
        message = f"model {self._model!r}: HTTP {status}: {self._short(said)}"
        if status in _UNAVAILABLE:
            return UpstreamUnavailable(message, endpoint=self._endpoint, retry_after_s=_seconds(retry_after))
        if status in _REFUSED:
            return UpstreamRefused(f"{message}; {_REFUSED[status]}", endpoint=self._endpoint)
        return self.garbled(f"HTTP {status}: {said}")

    def from_report(self, code: str | int | None, said: str) -> UpstreamError:
        """The error that a reply of status 200 reports; without a known status it may pass, so it is worth a try."""
        status = int(code) if isinstance(code, int) or (code and code.isdecimal()) else 0
        return self.from_status(status if status in _UNAVAILABLE or status in _REFUSED else 500, said)

    def from_transport(self, error: ForeignError) -> UpstreamError:
        """The error for whatever aiohttp or the socket raised."""
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, _WRONG_ADDRESS):
            return self._refused(f"{said}; check its address")
        if isinstance(error, _WRONG_CERTIFICATE):
            return self._refused(f"{said}; check its certificate")
        if isinstance(error, _GARBLED) and not isinstance(error, aiohttp.ClientHttpProxyError):
            return self.garbled(said)
        return self.unavailable(said)

    def unavailable(self, said: str) -> UpstreamUnavailable:
        """Not reachable, or broken for now."""
        return UpstreamUnavailable(f"model {self._model!r}: {self._short(said)}", endpoint=self._endpoint)

    def garbled(self, said: str) -> UpstreamGarbled:
        """Not the protocol."""
        return UpstreamGarbled(f"model {self._model!r}: {self._short(said)}", endpoint=self._endpoint)

    def _refused(self, said: str) -> UpstreamRefused:
        return UpstreamRefused(f"model {self._model!r}: {self._short(said)}", endpoint=self._endpoint)

    def _short(self, said: str) -> str:
        said = " ".join(said.split()) or "(no message)"
        if self._api_key:
            said = said.replace(self._api_key, "***")
        return said if len(said) <= MAX_SAID_CHARS else f"{said[: MAX_SAID_CHARS - 1]}…"


def _seconds(retry_after: str | None) -> float | None:
    """The header's seconds; None for a date, which would need the server's clock, and for anything else."""
    try:
        seconds = float(retry_after or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
