"""Everything that goes wrong on purpose.

RolegateError                  `str(error)` is for people: what is wrong, where, what to do
├── BadRequest                 the client's input cannot be used
├── BadConfig                  the configuration, or a file that it names, cannot be used
│   └── StoreInUse             another process has the store's log
├── BadIndex                   an index folder is incomplete, damaged, or of another embedder
├── BadCorpus                  a row of a corpus cannot be used
│   └── DuplicateId                 its id is another one's already
├── BadDocument                a file cannot be read as a document
│   └── DocumentTooLarge                reading it takes more time, memory or text than any may
├── BadVersion                 a version of the executor is incomplete, damaged, or does not fit
├── NotFound                   no run of that identifier is stored, or it is somebody else's
├── RequestIdTaken             the request_id names another request of this tenant
├── RunCancelled               somebody cancelled the run
├── OutOfTime                  the deadline passed before there was anything to answer from
├── BudgetExhausted            the request's budget does not suffice for an answer
│   ├── QuotaExhausted         the tenant's quota does not, for now
│   └── PriceUnknown           nobody can tell: it is in money, and a model has no price
├── Overloaded                 as many runs are under way or waiting as may be
├── SlowReader                 the client takes nothing of what it asked to be told
├── AccessDenied               the key must not do this
│   └── NoKey                  there is no key, or it is unknown or revoked
├── StoreFailed                the run could not be written, so it is not acknowledged
└── UpstreamError              a model or retrieval endpoint did not do its part
    ├── UpstreamUnavailable    not reachable, overloaded or broken for now; worth another try ├──
    UpstreamRefused        it understood and will not: wrong model name, wrong key │   ├──
    ContextTooLong     the prompt is longer than the model's context │   └── ContentRefused     the
    model, or a content filter, declines to answer this prompt ├── UpstreamProtocolError        it
    answered something that is not its protocol ├── ToolFailed             a tool's server is down,
    died, took too long, or says that the call failed └── MalformedOutput        its model writes
    nothing that can be read as a turn of its role, corrected or not
"""

import msgspec

from router.amount import Remaining

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that decoding JSON from outside raises; the last one for what is nested too deeply."""


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
        """Where that is to be asked; empty where it cannot be, or not yet."""


class BadIndex(RolegateError):
    """An index folder is incomplete, damaged, or was built with another embedder."""


class BadCorpus(RolegateError):
    """A row of a corpus cannot be used."""


class DuplicateId(BadCorpus):
    """Its id is another one's already."""


class BadDocument(RolegateError):
    """A file cannot be read as a document."""


class DocumentTooLarge(BadDocument):
    """Reading it takes more time, memory or text than any may."""


class BadVersion(RolegateError):
    """A version of the executor is incomplete, damaged, or does not fit the engine."""


class NotFound(RolegateError):
    """No run of that identifier is stored, or it is somebody else's."""


class RequestIdTaken(RolegateError):
    """The `request_id` names another request of this tenant."""


class RunCancelled(RolegateError):
    """Somebody cancelled the run."""


class OutOfTime(RolegateError):
    """The deadline passed before there was anything to answer from."""


class BudgetExhausted(RolegateError):
    """The request's budget does not suffice for an answer."""

    def __init__(
        self, message: str, *, contended: bool = False, left: Remaining | None = None
    ) -> None:
        super().__init__(message)
        self.contended = contended
        """Whether it would suffice if nothing were reserved for what is under way, so that
        waiting may help.
        """
        self.left = left
        """What is left of what does not suffice; None where less would not help either."""


class QuotaExhausted(BudgetExhausted):
    """The tenant's quota does not suffice, for now."""

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
        """When to come back, in seconds from now."""


class PriceUnknown(BudgetExhausted):
    """The tenant's quota is in money, and what the next call costs is not known."""


class Overloaded(RolegateError):
    """No room: as many runs are under way or waiting as may be; nothing was begun."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """When to come back, in seconds from now."""


class SlowReader(RolegateError):
    """The client takes nothing of what it asked to be told, so the stream ends."""


class AccessDenied(RolegateError):
    """The key must not do this."""


class NoKey(AccessDenied):
    """There is no key, or it is unknown or revoked."""


class StoreFailed(RolegateError):
    """The run could not be written, so it is not acknowledged."""


class UpstreamError(RolegateError):
    """A model or retrieval endpoint did not do its part."""

    def __init__(self, message: str, *, endpoint: str) -> None:
        super().__init__(message)
        self.endpoint = endpoint
        """Its address."""
        self.role: str | None = None
        """The role whose model it is; None for retrieval."""
        self.passed_on = False
        """Whether a part of the output had been passed on by then, so that nobody else can be
        asked.
        """

    def __str__(self) -> str:
        return f"{self.role or 'retrieval'} at {self.endpoint}: {super().__str__()}"


class UpstreamUnavailable(UpstreamError):
    """Not reachable, overloaded or broken for now; worth another try."""

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
        """Whether the same endpoint may be asked again; otherwise another one only."""
        self.throttled = throttled
        """Whether it is well, but was asked too often."""
        self.unspent = unspent
        """Whether the endpoint certainly did not begin: it was not reached, or told to come
        back later.
        """
        self.retry_after_s = retry_after_s
        """How long the endpoint asked to be left alone; None where it did not say."""


class UpstreamRefused(UpstreamError):
    """It understood and will not: wrong model name, wrong key."""

    def __init__(self, message: str, *, endpoint: str, lasting: bool = False) -> None:
        super().__init__(message, endpoint=endpoint)
        self.lasting = lasting
        """Whether it refuses every call, and not this prompt."""


class ContextTooLong(UpstreamRefused):
    """The prompt, with what is to be written, is longer than the model's context."""


class ContentRefused(UpstreamRefused):
    """The model, or a content filter, declines to answer this prompt."""

    def __init__(self, message: str, *, endpoint: str, said: str = "") -> None:
        super().__init__(message, endpoint=endpoint)
        self.said = said
        """The words with which it declines."""


class UpstreamProtocolError(UpstreamError):
    """It answered something that is not its protocol."""


class ToolFailed(UpstreamError):
    """A tool's server is down, died, took too long, or says that the call failed."""

    def __str__(self) -> str:
        return f"{self.endpoint}: {self.args[0]}"


class MalformedOutput(UpstreamError):
    """Its model writes nothing that can be read as a turn of its role, corrected or not."""
