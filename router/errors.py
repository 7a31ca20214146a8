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
├── NotFound                   no run with this id is stored, or it belongs to another tenant
│   ├── KeyNotFound            there is no API key with this identifier
│   ├── TenantNotFound         there is no tenant of this name
│   ├── IndexNotFound          there is no index of this name that the caller may use
│   └── DocumentNotFound       the tenant has no document of this name
├── RequestIdTaken             the tenant has used this request_id for a different request
├── RunCancelled               the run was cancelled
├── RunInterrupted             the gateway stopped before the run had ended
├── OutOfTime                  the request's deadline passed before the answer was ready
├── BudgetExhausted            the rest of the request's budget is too small for the next call
│   ├── QuotaExhausted         a quota for this minute, day or month is used up
│   └── PriceUnknown           the tenant's quota is in money, but the model has no price
├── Starting                   the gateway is starting
├── Overloaded                 too many runs are under way or waiting
├── UploadsFull                an upload would exceed a limit on the tenant's documents
├── SlowReader                 the client does not read its stream
├── AccessDenied               the key does not allow this
│   └── NoKey                  the key is missing, unknown, revoked or expired
├── StoreFailed                the store failed; a result that is not stored is not returned
└── UpstreamError              a model, retrieval or tool endpoint failed
    ├── UpstreamUnavailable    unreachable, overloaded or broken for now; may be retried
    ├── UpstreamRefused        the request was refused: wrong model name, wrong key
    │   ├── ContextTooLong     prompt and output limit together exceed the model's context
    │   └── ContentRefused     the model, or a content filter, declines the prompt
    ├── UpstreamProtocolError  the reply does not follow the endpoint's protocol
    ├── ToolFailed             a tool's server is down, timed out, or reports a failed call
    └── MalformedOutput        the model's output cannot be parsed, even after a correction
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import msgspec

from router.amount import Remaining

JSON_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Exceptions that decoding untrusted JSON can raise: `RecursionError` if the JSON is nested too
deeply, `UnicodeError` if a text contains half a surrogate pair, and `DecodeError` for other faults.
"""
_WORDS = {
    r"Expected `\w+` >= (\S+?)(\.0)?": r"must be at least \1",
    r"Expected `\w+` <= (\S+?)(\.0)?": r"must be at most \1",
    r"Expected `\w+` > (\S+?)(\.0)?": r"must be more than \1",
    r"Expected `\w+` < (\S+?)(\.0)?": r"must be less than \1",
    r"Expected `.+` of length >= (.+)": r"must have a length of at least \1",
    r"Expected `.+` of length <= (.+)": r"must have a length of at most \1",
    r"Expected `.+` matching regex (.+)": r"must match the regular expression \1",
    r"Invalid enum value (.+)": r"cannot be \1",
    r"Object contains unknown field (.+)": r"has the unknown field \1",
    r"Object missing required field (.+)": r"lacks the required field \1",
    "Input data was truncated": "ends too early, or contains half of a surrogate pair",
    r"'utf-8' codec .+ in position (\d+).*": r"is not UTF-8 at byte offset \1 (save it as UTF-8)",
    "Invalid UTF-8 encoded string": "is not UTF-8 text (save it as UTF-8)",
    r"maximum recursion depth .+": "is nested too deeply",
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}


def explained(error: Exception) -> str:
    """Return the message of one of the `JSON_ERRORS` in plain words, with the place of the fault
    first, such as "answer[1]: must be text, got a whole number".
    """
    text, _, place = str(error).partition(" - at `")
    words = plain_words(text)
    place = place.strip("$.`").replace("` in `$.", " of ")
    return f"{place}: {words}" if place else words


def plain_words(message: str) -> str:
    """Return a message of msgspec in plain words, such as "must be a whole number, got text"."""
    for pattern, words in _WORDS.items():
        if match := re.fullmatch(pattern, message):
            return match.expand(words)
    if kinds := re.fullmatch(r"Expected `(.+)`, got `(.+)`", message):
        wanted, given = (
            " or ".join(
                _KINDS.get(kind, kind) for kind in kind_names.split(" | ") if kind != "null"
            )
            for kind_names in kinds.groups()
        )
        return f"must be {wanted}, got {given or 'null'}"
    return message


Error = TypeVar("Error", bound=Exception)


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
def _with_fields(kind: type[Error]) -> type[Error]:
    """Class decorator for errors with fields. The constructor takes the message, and then the
    fields as keyword arguments. `str()` of the error is only the message, because Python uses the
    positional arguments of exceptions for it.
    """
    return dataclass(eq=False, repr=False, kw_only=True)(kind)


@_with_fields
class RolegateError(Exception):
    """Base of all errors that this project raises on purpose."""

    message: str = field(kw_only=False)

    def __reduce__(self) -> Any:
        """Make errors picklable. By default, unpickling would call the constructor without the
        keyword arguments.
        """
        return type(self).__new__, (type(self), *self.args), vars(self)


class BadRequest(RolegateError):
    """The client's request is invalid."""


class BadConfig(RolegateError):
    """The config, or a file that the config names, is invalid or missing."""


@_with_fields
class StoreInUse(BadConfig):
    """Another process is using the store, and only one process at a time may write its log."""

    address: str
    """Address of the other process's gRPC server; empty if that process serves none, or has not
    started it yet.
    """


class BadIndex(RolegateError):
    """An index folder is incomplete, damaged, or was built with another embedder."""


class BadCorpus(RolegateError):
    """A row of a corpus is invalid."""


class DuplicateId(BadCorpus):
    """A row of a corpus has the same id as another row."""


@_with_fields
class NoText(BadCorpus):
    """None of the documents has text that can be indexed."""

    reasons: Mapping[str, str]
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
    """The gateway stopped before the run had ended. Runs for answers and tables can be resumed."""

    @staticmethod
    def of(run_id: str) -> "RunInterrupted":
        """Return the error for a run. Its message says how to resume the run."""
        return RunInterrupted(
            f"Run {run_id} was interrupted because its gateway stopped; when it runs again, use "
            f"`rolegate runs resume {run_id}`, or send the request again with the same request_id."
        )


class OutOfTime(RolegateError):
    """The request's deadline passed before the answer was ready."""


@_with_fields
class BudgetExhausted(RolegateError):
    """The rest of the request's budget is too small for the next model call."""

    contended: bool = False
    """True if the next call would fit without the reservations for calls that are under way. Then
    it may help to wait until these calls have ended.
    """
    left: Remaining | None = None
    """The rest of the exceeded limit, if a call with a smaller output limit may fit into it; else
    None. For a limit per minute: the whole limit, if the call is larger than it; else None, because
    the call can wait for the next minute.
    """


@_with_fields
class QuotaExhausted(BudgetExhausted):
    """The tenant or the key has too little left of a quota for the current minute, day or month, or
    the tenant has too many runs under way.
    """

    retry_after_s: float
    """Seconds until a retry may succeed."""


class PriceUnknown(BudgetExhausted):
    """The tenant's quota is in money, and the model of the next call has no known price."""


@_with_fields
class Overloaded(RolegateError):
    """Too many runs are under way or waiting; the request was refused before any work on it."""

    retry_after_s: float
    """Seconds until a retry may succeed."""


class Starting(RolegateError):
    """The gateway is starting and does not accept requests yet."""

    retry_after_s = 1.0
    """Seconds until a retry may succeed."""


class UploadsFull(RolegateError):
    """The upload would exceed the limit on the number or the size of the tenant's documents."""


class SlowReader(RolegateError):
    """The client read nothing from its stream until a timeout, so the gateway ended the stream."""


class AccessDenied(RolegateError):
    """The API key does not permit this request."""


class NoKey(AccessDenied):
    """The API key is missing, unknown, revoked or expired."""


class StoreFailed(RolegateError):
    """The gateway's store failed. If a run could not be stored, its result is not returned."""


@_with_fields
class UpstreamError(RolegateError):
    """A model, retrieval or tool endpoint failed."""

    endpoint: str
    """Address of the endpoint that failed."""
    role: str | None = None
    """The role that called the model; None for retrieval."""
    passed_on: bool = False
    """True if a part of the output was already streamed to the client. Then the call must not be
    repeated at another endpoint.
    """

    def __str__(self) -> str:
        return f"{self.role or 'retrieval'} at {self.endpoint}: {super().__str__()}"


@_with_fields
class UpstreamUnavailable(UpstreamError):
    """An endpoint of a model or of retrieval is unreachable, overloaded or failing. A later call
    may succeed.
    """

    retry_after_s: float | None = None
    """Seconds from the endpoint's header Retry-After; None if the endpoint sent no such header."""
    unspent: bool = False
    """True if it is certain that the endpoint did no work for the call, because it was not reached
    or refused the call immediately.
    """
    repeatable: bool = True
    """True if the call may be retried at the same endpoint; False if only at another one."""
    throttled: bool = False
    """True if the endpoint works, but refused the call because of a rate limit."""


@_with_fields
class UpstreamRefused(UpstreamError):
    """An endpoint refused the gateway's request, for example because of a wrong model name or
    key.
    """

    lasting: bool = False
    """True if the endpoint would refuse every call, not just this prompt."""


class ContextTooLong(UpstreamRefused):
    """The prompt and the output limit together exceed the model's context."""


@_with_fields
class ContentRefused(UpstreamRefused):
    """The model, or a content filter, declines to answer the prompt."""

    words: str = ""
    """The model's own text in which it declines; empty if there is none."""


class UpstreamProtocolError(UpstreamError):
    """An endpoint sent a reply that violates its protocol, such as OpenAI's API."""


class ToolFailed(UpstreamError):
    """A tool's server is down, timed out, or reports that the call failed."""

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.args[0]}"


class MalformedOutput(UpstreamError):
    """The model's output does not have the form that its role requires, even after the model was
    asked to correct it.
    """
