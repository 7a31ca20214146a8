"""Translation of errors to the status codes, reasons and messages that clients get.

The table `STATUS` has the status code and the reason of every error class; `HTTP_STATUS` has the
HTTP status of each status code.
"""

import re
import traceback
from operator import is_not
from typing import TypeVar

import structlog
from google.rpc import code_pb2
from msgspec.structs import replace

from router import errors
from router.access import caller
from router.errors import RolegateError, UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.frozen import Frozen
from router.trace import Run
from router.trace.identity import LOCAL, Identity
from router.trace.values import (
    Execution,
    Reported,
    Reranking,
    SearchRecord,
    TableRun,
    ToolCall,
    Trajectory,
)

_log = structlog.get_logger("edge")
DEFAULT_RETRY_S = 5.0
"""Seconds after which clients may retry if a model or the retrieval failed and its endpoint sent no
Retry-After header.
"""
Value = TypeVar("Value")

_CODES: dict[int, tuple[type[RolegateError], ...]] = {
    code_pb2.INVALID_ARGUMENT: (errors.BadRequest,),
    code_pb2.FAILED_PRECONDITION: (
        errors.BadConfig,
        errors.StoreInUse,
        errors.BadIndex,
        errors.BadCorpus,
        errors.DuplicateId,
        errors.NoText,
        errors.BadDocument,
        errors.DocumentTooLarge,
        errors.BadVersion,
        errors.PriceUnknown,
        errors.UpstreamRefused,
        errors.ContextTooLong,
        errors.ContentRefused,
        errors.MalformedOutput,
    ),
    code_pb2.NOT_FOUND: (
        errors.NotFound,
        errors.KeyNotFound,
        errors.TenantNotFound,
        errors.IndexNotFound,
        errors.DocumentNotFound,
    ),
    code_pb2.ALREADY_EXISTS: (errors.RequestIdTaken,),
    code_pb2.CANCELLED: (errors.RunCancelled,),
    code_pb2.DEADLINE_EXCEEDED: (errors.OutOfTime,),
    code_pb2.RESOURCE_EXHAUSTED: (
        errors.BudgetExhausted,
        errors.QuotaExhausted,
        errors.Overloaded,
        errors.UploadsFull,
    ),
    code_pb2.ABORTED: (errors.SlowReader,),
    code_pb2.PERMISSION_DENIED: (errors.AccessDenied,),
    code_pb2.UNAUTHENTICATED: (errors.NoKey,),
    code_pb2.UNAVAILABLE: (
        errors.RunInterrupted,
        errors.Starting,
        errors.StoreFailed,
        UpstreamUnavailable,
        UpstreamProtocolError,
        errors.ToolFailed,
    ),
}
_REASONS: dict[type[RolegateError], str] = {errors.NotFound: "RUN_NOT_FOUND"}
"""Reasons that are not derived from the name of the error class."""


def _words(name: str) -> str:
    """Return the name of a class as separate words: `Upstream Unavailable`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name)


STATUS: dict[type[RolegateError], tuple[int, str]] = {
    kind: (code, _REASONS.get(kind) or _words(kind.__name__).replace(" ", "_").upper())
    for code, kinds in _CODES.items()
    for kind in kinds
}
"""Status code and reason of every error class. A test checks that no class is missing."""

HTTP_STATUS = {
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.FAILED_PRECONDITION: 400,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.NOT_FOUND: 404,
    code_pb2.ALREADY_EXISTS: 409,
    code_pb2.ABORTED: 409,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.CANCELLED: 499,
    code_pb2.INTERNAL: 500,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DEADLINE_EXCEEDED: 504,
}
"""HTTP status of each gRPC status code, according to `google/rpc/code.proto`."""
_FOR_TENANTS: dict[type[RolegateError], str] = {
    errors.BadConfig: "The gateway is not configured for this request; tell its operator.",
    errors.StoreInUse: "The gateway is not configured for this request; tell its operator.",
    errors.BadIndex: "The gateway's index cannot be used; tell its operator.",
    errors.BadVersion: "The gateway is not configured for this request; tell its operator.",
    errors.PriceUnknown: (
        "Your quota is in dollars, but a model's price is unknown; tell the gateway's operator."
    ),
    UpstreamUnavailable: "{who} is not available at present; try again later.",
    errors.UpstreamRefused: "{who} refused the gateway's request; tell the gateway's operator.",
    errors.ContextTooLong: (
        "{who} does not accept a prompt of this length; send a shorter request."
    ),
    errors.ContentRefused: "{who} declines this request; rephrase it: {words}",
    UpstreamProtocolError: (
        "{who} sent an invalid reply; try again, or tell the gateway's operator."
    ),
    errors.ToolFailed: "A tool of the gateway failed; try again, or tell its operator.",
    errors.MalformedOutput: (
        "{who} wrote an output that the gateway cannot read; tell the gateway's operator."
    ),
}
"""Messages that tenants get for these errors. The errors' own messages may contain addresses, file
names or the output of engines. `{who}` is replaced by the model or the retrieval.
"""


class Failure(Frozen):
    """The failure of a request, as it is sent to the client."""

    code: int
    """Status code, a number of `google.rpc.Code`."""
    message: str
    reason: str
    """Reason of the error, such as `BAD_REQUEST`; one for each error class."""
    role: str | None = None
    """Role whose model failed; None if no model failed."""
    retry_after_s: float | None = None
    """Seconds after which the client may retry; None if unknown."""


def failure_of(error: BaseException, identity: Identity = LOCAL) -> Failure:
    """Return the failure to send for `error` to the caller `identity`. Tenants do not get messages
    that may contain addresses, file names or output of engines.

    An exception that is not a `RolegateError` is sent as INTERNAL, without its own message.
    """
    error = _innermost(error)
    if not isinstance(error, RolegateError):
        return Failure(
            code_pb2.INTERNAL, "Internal error of the gateway; its log has the details.", "INTERNAL"
        )
    code, reason = STATUS[type(error)]
    role = error.role if isinstance(error, UpstreamError) else None
    message = str(error)
    if identity.tenant is not None and type(error) in _FOR_TENANTS:
        who = f"The model for {role}" if role else "Retrieval"
        message = _FOR_TENANTS[type(error)].format(who=who, words=getattr(error, "words", ""))
    return Failure(
        code,
        message,
        reason,
        role,
        _retry_after_s(error),
    )


def _retry_after_s(error: BaseException) -> float | None:
    """Return the seconds after which the client may retry: the delay that the error states, or else
    `DEFAULT_RETRY_S` if an endpoint was unavailable or sent an invalid reply. Return None for other
    errors.
    """
    wait_s: float | None = getattr(error, "retry_after_s", None)
    if wait_s is None and isinstance(error, UpstreamUnavailable | UpstreamProtocolError):
        return DEFAULT_RETRY_S
    return wait_s


def logged_failure(error: BaseException) -> Failure:
    """Log an error, and return the failure to send to the current caller.

    An unexpected exception is logged with its traceback, but without the values of variables, as
    these may contain keys.
    """
    error = _innermost(error)
    failure = failure_of(error, caller())
    if not isinstance(error, RolegateError):
        _log.error(
            "edge.failed", error=str(error), exception="".join(traceback.format_exception(error))
        )
    else:
        _log.warning("edge.refused", code=code_pb2.Code.Name(failure.code), error=str(error))
    return failure


def _innermost(error: BaseException) -> BaseException:
    """Return the first exception of an exception group, or of a group in it. Other exceptions are
    returned unchanged.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_ROWS = {kind.__name__: row for kind, row in STATUS.items()}


def message_of(error: str) -> str:
    """Return the message of a stored run's error, such as `OutOfTime: …`, without the name of the
    error class.
    """
    name, _, message = error.partition(": ")
    return message if name in _ROWS and message else error


def reason_of(error: str) -> str:
    """Return the reason of a stored run's error, such as `OUT_OF_TIME`; empty for no error."""
    return _row_of(error)[1] if error else ""


def _row_of(error: str) -> tuple[int, str]:
    """Return the status code and the reason of a stored run's error."""
    return _ROWS.get(error.partition(":")[0], (code_pb2.INTERNAL, "INTERNAL"))


def error_as_seen_by(error: str, identity: Identity) -> str:
    """Return a stored run's error without the texts that the caller `identity` must not see.
    Tenants get only the class of the error, such as `OutOfTime: out of time`, without its message.
    """
    if identity.tenant is None or not error:
        return error
    name = error.partition(":")[0]
    return f"{name}: {_words(name).lower()}" if name in _ROWS else "internal error"


def as_seen_by(run: Run, identity: Identity) -> Run:
    """Return a run without the texts that the caller `identity` must not see. Operators get the run
    unchanged. For tenants, addresses of engines and the error messages of models and tools are
    removed.
    """
    if identity.tenant is None:
        return run
    calls = tuple(replace(call, deployment="") for call in run.calls)
    result, events = map(_without_server_errors, (run.result, run.events))
    return replace(
        run,
        calls=calls,
        error=error_as_seen_by(run.error, identity),
        result=result,
        events=events,
    )


def _without_server_errors(value: Value) -> Value:
    """Return a value without the error messages of tools and of the reranker. Such messages may
    contain paths, addresses or the output of a server. If the value has none, return the same
    object, so that caches with the object's `id` as the key still find it.
    """
    if isinstance(value, tuple):
        parts = [*map(_without_server_errors, value)]
        return type(value)(parts) if any(map(is_not, parts, value)) else value
    if isinstance(value, ToolCall | Reranking):
        return replace(value, error="failed") if value.error else value
    if not isinstance(value, Trajectory | TableRun | Execution | SearchRecord | Reported):
        return value
    fields = {
        name: _without_server_errors(getattr(value, name)) for name in value.__struct_fields__
    }
    changed = any(part is not getattr(value, name) for name, part in fields.items())
    return replace(value, **fields) if changed else value


def failure_of_run(run: Run, identity: Identity) -> Failure:
    """Return the failure to send to a client that watches a run which did not finish. `run`: a run
    that failed, was cancelled or was interrupted.
    """
    if run.status == "cancelled":
        return Failure(
            code_pb2.CANCELLED, f"Run {run.id} was cancelled; send a new request.", "RUN_CANCELLED"
        )
    if run.status == "interrupted":
        return failure_of(errors.RunInterrupted.of(run.id))
    code, reason = _row_of(run.error)
    wait_s = DEFAULT_RETRY_S if code == code_pb2.UNAVAILABLE else None
    return Failure(
        code,
        f"Run {run.id} failed: {message_of(as_seen_by(run, identity).error)}",
        reason,
        retry_after_s=wait_s,
    )
