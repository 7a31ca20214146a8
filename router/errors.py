"""Errors that this project raises on purpose.

RolegateError                  `str(error)` is for people: what is wrong, where, what to do
├── BadRequest                 the client's request is invalid
├── BadConfig                  the configuration, or a file that it names, is invalid or missing
│   └── StoreInUse             another process is using the store
├── BadIndex                   an index folder is incomplete, damaged, or of another embedder
├── BadCorpus                  a row of a corpus is invalid
│   ├── DuplicateId            another row of the corpus has the same id
│   └── NoText                 none of the documents has text that can be indexed
├── BadDocument                a file cannot be read as a document
│   └── DocumentTooLarge       reading it exceeds the limits on time, memory or text
├── BadVersion                 an executor version is incomplete, damaged, or does not fit
├── NotFound                   no such run is stored, or it belongs to another tenant
│   ├── KeyNotFound            there is no API key with this identifier
│   ├── TenantNotFound         there is no tenant of this name
│   ├── IndexNotFound          there is no index of this name that the caller may use
│   └── DocumentNotFound       the tenant has no document of this name
├── RequestIdTaken             the tenant has used this request_id for a different request
├── RunCancelled               the run was cancelled
├── RunInterrupted             the gateway stopped before the run had ended
├── OutOfTime                  the deadline passed before there was an answer
├── BudgetExhausted            the rest of the request's budget is too small for the next call
│   ├── QuotaExhausted         a quota for this minute, day or month is used up
│   └── PriceUnknown           the tenant's quota is in money, and a model has no price
├── Starting                   the gateway is starting
├── Overloaded                 too many runs are under way or waiting
├── UploadsFull                the tenant's documents reach a limit
├── SlowReader                 the client does not read its stream
├── AccessDenied               the key does not allow this
│   └── NoKey                  the key is missing, unknown or revoked
├── StoreFailed                the run could not be stored, so it is not acknowledged
└── UpstreamError              a model, retrieval or tool endpoint failed
    ├── UpstreamUnavailable    unreachable, overloaded or broken for now; may be retried
    ├── UpstreamRefused        the request was refused: wrong model name, wrong key
    │   ├── ContextTooLong     the prompt is longer than the model's context
    │   └── ContentRefused     the model, or a content filter, declines the prompt
    ├── UpstreamProtocolError  the reply does not follow the endpoint's protocol
    ├── ToolFailed             a tool's server is down, timed out, or reports a failed call
    └── MalformedOutput        the model's output cannot be parsed, even when asked to correct it
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from router.amount import Remaining

JSON_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Exceptions that decoding untrusted JSON can raise. JSON that is nested too deeply raises
`RecursionError`, and half a surrogate pair in a text raises `UnicodeError`.
"""


class RolegateError(Exception):
    """Base of all errors that this project raises on purpose."""

    def __reduce__(self) -> Any:
        """Let errors be pickled. By default, Python would call the constructor without keywords."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class BadRequest(RolegateError):
    """The client's request is invalid."""


class BadConfig(RolegateError):
    """The configuration, or a file that it names, is invalid or missing."""


class StoreInUse(BadConfig):
    """Another process is using the store; only one process at a time may write its log."""

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message)
        self.address = address
        """Address of the other process's gRPC server; empty if that process serves none, or has not
        started it yet.
        """


class BadIndex(RolegateError):
    """An index folder is incomplete, damaged, or was built with another embedder."""


class BadCorpus(RolegateError):
    """A row of a corpus is invalid."""


class DuplicateId(BadCorpus):
    """A row of a corpus has the same id as another row."""


class NoText(BadCorpus):
    """None of the documents has text that can be indexed."""

    def __init__(self, message: str, *, reasons: Mapping[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons
        """Why each document was not read, by the document's path."""


class BadDocument(RolegateError):
    """A file cannot be read as a document."""


class DocumentTooLarge(BadDocument):
    """Reading the document exceeds the limits on time, memory or text."""


class BadVersion(RolegateError):
    """An executor version is incomplete, damaged, or does not fit the engine."""


class NotFound(RolegateError):
    """No run with this identifier is stored, or it belongs to another tenant."""


class KeyNotFound(NotFound):
    """There is no API key with this identifier."""


class TenantNotFound(NotFound):
    """There is no tenant of this name."""


class IndexNotFound(NotFound):
    """There is no index of this name, or the caller may not use it."""


class DocumentNotFound(NotFound):
    """The tenant has no uploaded document of this name."""


class RequestIdTaken(RolegateError):
    """The tenant has already used this `request_id` for a different request."""


class RunCancelled(RolegateError):
    """The run was cancelled by `CancelRun`, or on its page."""


class RunInterrupted(RolegateError):
    """The gateway stopped before the run had ended. An answer or a table can be resumed."""

    @staticmethod
    def of(run_id: str) -> "RunInterrupted":
        """Return the error for a run."""
        return RunInterrupted(
            f"Run {run_id} was interrupted, because its gateway stopped; when it runs again, use "
            f"`rolegate runs resume {run_id}`, or send the request again with the same request_id."
        )


class OutOfTime(RolegateError):
    """The deadline passed before there was an answer."""


class BudgetExhausted(RolegateError):
    """The rest of the request's budget is too small for the next model call."""

    def __init__(
        self, message: str, *, contended: bool = False, left: Remaining | None = None
    ) -> None:
        super().__init__(message)
        self.contended = contended
        """True if the amount would fit but for reservations of calls that are under way. Then
        waiting until these calls end may help.
        """
        self.left = left
        """The amount to which a call may be shortened: what the limit has left. For a limit per
        minute, it is the whole limit, or None for a call that fits into another minute. Also None
        if a smaller amount would be refused too.
        """


class QuotaExhausted(BudgetExhausted):
    """The rest of a quota of the tenant or the key, for this minute, day or month, is too small."""

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
    """The tenant's quota is in money, and the model of the next call has no known price."""


class Overloaded(RolegateError):
    """Too many runs are under way or waiting; the request was refused before any work on it."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Seconds until a retry may succeed."""


class Starting(RolegateError):
    """The gateway is starting."""

    retry_after_s = 1.0
    """Seconds until a retry may succeed."""


class UploadsFull(RolegateError):
    """The tenant's uploaded documents reach a limit on their number or size."""


class SlowReader(RolegateError):
    """The client did not read its stream for too long, so the gateway ended the stream."""


class AccessDenied(RolegateError):
    """The API key does not permit this request."""


class NoKey(AccessDenied):
    """The API key is missing, unknown or revoked."""


class StoreFailed(RolegateError):
    """The run could not be stored, so its result is not returned."""


class UpstreamError(RolegateError):
    """A model, retrieval or tool endpoint failed."""

    def __init__(self, message: str, *, endpoint: str) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        """Address of the endpoint that failed."""
        self.role: str | None = None
        """The role that called the model; None for retrieval."""
        self.passed_on = False
        """True if a part of the output was already streamed to the client. Then the call must not
        be repeated at another endpoint.
        """

    def __str__(self) -> str:
        return f"{self.role or 'retrieval'} at {self.endpoint}: {super().__str__()}"


class UpstreamUnavailable(UpstreamError):
    """The endpoint is unreachable, overloaded or broken at present; the call may be retried."""

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
        """True if the call may be retried at the same endpoint; False if only at another one."""
        self.throttled = throttled
        """True if the endpoint works, but refused the call because of a rate limit."""
        self.unspent = unspent
        """True if the endpoint certainly did no work for the call, because it was not reached or
        refused the call immediately.
        """
        self.retry_after_s = retry_after_s
        """Seconds in the endpoint's Retry-After header; None if it sent none."""


class UpstreamRefused(UpstreamError):
    """The endpoint refused the request, for example because of a wrong model name or key."""

    def __init__(self, message: str, *, endpoint: str, lasting: bool = False) -> None:
        super().__init__(message, endpoint=endpoint)
        self.lasting = lasting
        """True if the endpoint would refuse every call, not just this prompt."""


class ContextTooLong(UpstreamRefused):
    """The prompt and the output limit together exceed the model's context."""


class ContentRefused(UpstreamRefused):
    """The model, or a content filter, declines to answer the prompt."""

    def __init__(self, message: str, *, endpoint: str, words: str = "") -> None:
        super().__init__(message, endpoint=endpoint)
        self.words = words
        """The model's own text in which it declines; empty if there is none."""


class UpstreamProtocolError(UpstreamError):
    """The reply does not follow the endpoint's protocol, such as OpenAI's API."""


class ToolFailed(UpstreamError):
    """A tool's server is down, timed out, or reports that the call failed."""

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.args[0]}"


class MalformedOutput(UpstreamError):
    """The model's output does not have the form that its role requires, even after the model was
    asked to correct it.
    """
