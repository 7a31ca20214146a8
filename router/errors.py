"""Errors that this project raises on purpose.

RolegateError                  `str(error)` is for people: what is wrong, where, what to do
├── BadRequest                 the client's input cannot be used
├── BadConfig                  the configuration, or a file that it names, cannot be used
│   └── StoreInUse             another process has the store's log
├── BadIndex                   an index folder is incomplete, damaged, or of another embedder
├── BadCorpus                  a row of a corpus cannot be used
│   └── DuplicateId            another row has the same id
├── BadDocument                a file cannot be read as a document
│   └── DocumentTooLarge       reading it exceeds the limits on time, memory or text
├── BadVersion                 an executor version is incomplete, damaged, or does not fit
├── NotFound                   no such run is stored, or it belongs to another tenant
├── RequestIdTaken             the request_id names another request of this tenant
├── RunCancelled               the run was cancelled
├── OutOfTime                  the deadline passed before anything could be answered
├── BudgetExhausted            the request's budget is too small
│   ├── QuotaExhausted         the tenant's quota is used up for now
│   └── PriceUnknown           the limit is in money, and a model has no price
├── Overloaded                 too many runs are under way or waiting
├── SlowReader                 the client does not read its stream
├── AccessDenied               the key does not allow this
│   └── NoKey                  the key is missing, unknown or revoked
├── StoreFailed                the run could not be stored, so it is not acknowledged
└── UpstreamError              a model, retrieval or tool endpoint failed
    ├── UpstreamUnavailable    unreachable, overloaded or broken for now; may be retried
    ├── UpstreamRefused        the request was refused: wrong model name, wrong key
    │   ├── ContextTooLong     the prompt is longer than the model's context
    │   └── ContentRefused     the model, or a content filter, declines the prompt
    ├── UpstreamProtocolError  the reply does not follow the protocol
    ├── ToolFailed             a tool's server is down, timed out, or reports a failed call
    └── MalformedOutput        the model's output cannot be parsed, even after a correction
"""

import msgspec

from router.amount import Remaining

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding untrusted JSON; `RecursionError` for JSON that is nested too deeply."""


class RolegateError(Exception):
    """Base of all errors that this project raises on purpose."""


class BadRequest(RolegateError):
    """The client's input cannot be used."""


class BadConfig(RolegateError):
    """The configuration, or a file that it names, cannot be used."""


class StoreInUse(BadConfig):
    """Another process has the store's log."""

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message)
        self.address = address
        """Address of its gRPC server; empty if there is none, or not yet."""


class BadIndex(RolegateError):
    """An index folder is incomplete, damaged, or was built with another embedder."""


class BadCorpus(RolegateError):
    """A row of a corpus cannot be used."""


class DuplicateId(BadCorpus):
    """Another row has the same id."""


class BadDocument(RolegateError):
    """A file cannot be read as a document."""


class DocumentTooLarge(BadDocument):
    """Reading the document exceeds the limits on time, memory or text."""


class BadVersion(RolegateError):
    """An executor version is incomplete, damaged, or does not fit the engine."""


class NotFound(RolegateError):
    """No run of that identifier is stored, or it belongs to another tenant."""


class RequestIdTaken(RolegateError):
    """The `request_id` names another request of this tenant."""


class RunCancelled(RolegateError):
    """The run was cancelled."""


class OutOfTime(RolegateError):
    """The deadline passed before anything could be answered."""


class BudgetExhausted(RolegateError):
    """The request's budget is too small for the next step."""

    def __init__(
        self, message: str, *, contended: bool = False, left: Remaining | None = None
    ) -> None:
        super().__init__(message)
        self.contended = contended
        """True if only reservations for work under way are in the way, so that waiting may help."""
        self.left = left
        """The amount that the limit has left; None if a smaller request would fail, too."""


class QuotaExhausted(BudgetExhausted):
    """The tenant's quota is too small for now."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float,
        contended: bool = False,
        left: Remaining | None = None,
    ) -> None:
        super().__init__(message, contended=contended, left=left)
        self.retry_after_s = retry_after_s
        """Seconds until a retry may succeed."""


class PriceUnknown(BudgetExhausted):
    """The tenant's quota is in money, and the price of the next call is unknown."""


class Overloaded(RolegateError):
    """Too many runs are under way or waiting; nothing was begun."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Seconds until a retry may succeed."""


class SlowReader(RolegateError):
    """The client does not read its stream, so the stream ends."""


class AccessDenied(RolegateError):
    """The key does not allow this."""


class NoKey(AccessDenied):
    """The key is missing, unknown or revoked."""


class StoreFailed(RolegateError):
    """The run could not be stored, so it is not acknowledged."""


class UpstreamError(RolegateError):
    """A model, retrieval or tool endpoint failed."""

    def __init__(self, message: str, *, endpoint: str) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        """Its address."""
        self.role: str | None = None
        """The role that called the model; None for retrieval."""
        self.passed_on = False
        """True if output was passed on already, so that no other endpoint may be asked."""

    def __str__(self) -> str:
        return f"{self.role or 'retrieval'} at {self.endpoint}: {super().__str__()}"


class UpstreamUnavailable(UpstreamError):
    """The endpoint is unreachable, overloaded or broken for now; the call may be retried."""

    def __init__(
        self,
        message: str,
        *,
        endpoint: str,
        retry_after_s: float | None = None,
        unspent: bool = False,
        repeatable: bool = True,
        throttled: bool = False,
    ) -> None:
        super().__init__(message, endpoint=endpoint)
        self.repeatable = repeatable
        """True if the same endpoint may be asked again; otherwise only another one."""
        self.throttled = throttled
        """True if the endpoint works, but limits the rate of calls."""
        self.unspent = unspent
        """True if the endpoint certainly did no work: it was not reached, or sent the call away."""
        self.retry_after_s = retry_after_s
        """Retry-After of the endpoint, in seconds; None if it sent none."""


class UpstreamRefused(UpstreamError):
    """The endpoint refused the request: wrong model name, wrong key."""

    def __init__(self, message: str, *, endpoint: str, lasting: bool = False) -> None:
        super().__init__(message, endpoint=endpoint)
        self.lasting = lasting
        """True if the endpoint refuses every call, not just this prompt."""


class ContextTooLong(UpstreamRefused):
    """The prompt and the output limit together exceed the model's context."""


class ContentRefused(UpstreamRefused):
    """The model, or a content filter, declines to answer the prompt."""

    def __init__(self, message: str, *, endpoint: str, words: str = "") -> None:
        super().__init__(message, endpoint=endpoint)
        self.words = words
        """The text with which the model declines."""


class UpstreamProtocolError(UpstreamError):
    """The reply does not follow the protocol."""


class ToolFailed(UpstreamError):
    """A tool's server is down, timed out, or reports that the call failed."""

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.args[0]}"


class MalformedOutput(UpstreamError):
    """The model's output cannot be parsed as a turn of its role, even after a correction."""
