"""Translation of errors for callers: one table, one translator."""

import re
import traceback
from operator import is_not
from typing import TypeVar

import msgspec
import structlog
from google.rpc import code_pb2

from router import errors
from router.access import caller
from router.errors import RolegateError, UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from router.trace import Run
from router.trace.identity import LOCAL, Identity
from router.trace.values import Execution, Reported, SearchRecord, TableRun, ToolCall, Trajectory

_log = structlog.get_logger("edge")
DEFAULT_RETRY_S = 5.0
"""Retry delay after an upstream failure that names none, in seconds."""
Value = TypeVar("Value")

_CODES: dict[int, tuple[type[RolegateError], ...]] = {
    code_pb2.INVALID_ARGUMENT: (errors.BadRequest,),
    code_pb2.FAILED_PRECONDITION: (
        errors.BadConfig,
        errors.StoreInUse,
        errors.BadIndex,
        errors.BadCorpus,
        errors.DuplicateId,
        errors.BadDocument,
        errors.DocumentTooLarge,
        errors.BadVersion,
        errors.PriceUnknown,
        errors.UpstreamRefused,
        errors.ContextTooLong,
        errors.ContentRefused,
        errors.MalformedOutput,
    ),
    code_pb2.NOT_FOUND: (errors.NotFound,),
    code_pb2.ALREADY_EXISTS: (errors.RequestIdTaken,),
    code_pb2.CANCELLED: (errors.RunCancelled,),
    code_pb2.DEADLINE_EXCEEDED: (errors.OutOfTime,),
    code_pb2.RESOURCE_EXHAUSTED: (errors.BudgetExhausted, errors.QuotaExhausted, errors.Overloaded),
    code_pb2.ABORTED: (errors.SlowReader,),
    code_pb2.PERMISSION_DENIED: (errors.AccessDenied,),
    code_pb2.UNAUTHENTICATED: (errors.NoKey,),
    code_pb2.UNAVAILABLE: (
        errors.StoreFailed,
        UpstreamUnavailable,
        UpstreamProtocolError,
        errors.ToolFailed,
    ),
}
_REASONS: dict[type[RolegateError], str] = {errors.NotFound: "RUN_NOT_FOUND"}
"""Reasons that differ from the name of the class."""


def _words(name: str) -> str:
    """Return the name of a class in words: `Upstream Unavailable`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name)


STATUS: dict[type[RolegateError], tuple[int, str]] = {
    kind: (code, _REASONS.get(kind) or _words(kind.__name__).replace(" ", "_").upper())
    for code, kinds in _CODES.items()
    for kind in kinds
}
"""Status code and reason of every error class (a test checks that none is missing)."""

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
"""HTTP statuses, as `google/rpc/code.proto` maps them."""
_FOR_TENANTS: dict[type[RolegateError], str] = {
    errors.BadConfig: "The gateway is not set up for this; tell its operator.",
    errors.StoreInUse: "The gateway is not set up for this; tell its operator.",
    errors.BadIndex: "The gateway's index cannot be used; tell its operator.",
    errors.BadVersion: "The gateway is not set up for this; tell its operator.",
    errors.PriceUnknown: (
        "Your limit is in dollars, and what a model costs is not known; tell the gateway's "
        "operator."
    ),
    UpstreamUnavailable: "{who} is not available for now; try again later.",
    errors.UpstreamRefused: "{who} refuses what it is asked; tell the gateway's operator.",
    errors.ContextTooLong: "{who} takes no prompt as long as this one; ask for something shorter.",
    errors.ContentRefused: "{who} declines this: {words}",
    UpstreamProtocolError: (
        "{who} answered something that cannot be used; try again, or tell the gateway's operator."
    ),
    errors.ToolFailed: "A tool of the gateway's failed; try again, or tell its operator.",
    errors.MalformedOutput: (
        "{who} does not follow the gateway's protocol, so it cannot do its work; tell the operator."
    ),
}
"""Messages for tenants that replace texts with addresses, files or output of engines."""


class Failure(msgspec.Struct, frozen=True):
    """Failure of a request, as its caller sees it."""

    code: int
    """A `google.rpc.Code`."""
    message: str
    reason: str
    """Reason, such as `BAD_REQUEST`."""
    role: str | None = None
    """Role whose model failed."""
    retry_after_s: float | None = None
    """Seconds to wait before a retry; None if unknown."""


def failure_of(error: BaseException, identity: Identity = LOCAL) -> Failure:
    """Return the failure as `identity` may see it. An error that is not a `RolegateError` becomes
    INTERNAL, without its text.
    """
    error = _innermost(error)
    if not isinstance(error, RolegateError):
        return Failure(
            code_pb2.INTERNAL, "An internal error; the gateway's log has the details.", "INTERNAL"
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
    """Return the error's retry delay in seconds, or a default if a retry may help."""
    wait_s: float | None = getattr(error, "retry_after_s", None)
    if wait_s is None and isinstance(error, UpstreamUnavailable | UpstreamProtocolError):
        return DEFAULT_RETRY_S
    return wait_s


def logged_failure(error: BaseException) -> Failure:
    """Return the failure for the caller and log the whole error.

    The log has the traceback of unexpected errors, without the values of variables, as these may
    include keys.
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
    """Return the first error of an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_ROWS = {kind.__name__: row for kind, row in STATUS.items()}


def message_of(error: str) -> str:
    """Return a run's error without the name of its class: `OutOfTime: …` is not for people."""
    name, _, message = error.partition(": ")
    return message if name in _ROWS and message else error


def reason_of(error: str) -> str:
    """Return the reason of a run's error, such as `OUT_OF_TIME`; empty without an error."""
    return _row_of(error)[1] if error else ""


def _row_of(error: str) -> tuple[int, str]:
    return _ROWS.get(error.partition(":")[0], (code_pb2.INTERNAL, "INTERNAL"))


def as_seen_by(run: Run, identity: Identity) -> Run:
    """Return the run without what only operators may see: addresses, and error texts of models and
    tools.
    """
    if identity.tenant is None:
        return run
    name = run.error.partition(":")[0]
    words = f"{name}: {_words(name).lower()}" if name in _ROWS else "internal error"
    calls = tuple(msgspec.structs.replace(call, deployment="") for call in run.calls)
    result, events = map(_without_tools_errors, (run.result, run.events))
    return msgspec.structs.replace(
        run,
        calls=calls,
        error=words if run.error else "",
        result=result,
        events=events,
    )


def _without_tools_errors(value: Value) -> Value:
    """Remove the error texts of tools, which may contain a server's output or paths.

    Returns the same object if there are none, so that caches recognize it.
    """
    if isinstance(value, tuple):
        parts = [*map(_without_tools_errors, value)]
        return type(value)(parts) if any(map(is_not, parts, value)) else value
    if isinstance(value, ToolCall):
        return msgspec.structs.replace(value, error="failed") if value.error else value
    if not isinstance(value, Trajectory | TableRun | Execution | SearchRecord | Reported):
        return value
    fields = {name: _without_tools_errors(getattr(value, name)) for name in value.__struct_fields__}
    changed = any(part is not getattr(value, name) for name, part in fields.items())
    return msgspec.structs.replace(value, **fields) if changed else value


def failure_of_run(run: Run, identity: Identity) -> Failure:
    """Return the failure of a run that did not finish, for clients that watch it."""
    if run.status == "cancelled":
        return Failure(code_pb2.CANCELLED, f"Run {run.id} was cancelled.", "RUN_CANCELLED")
    if run.status == "interrupted":
        text = f"Run {run.id} was interrupted, because its gateway was killed; ask again."
        return Failure(code_pb2.UNAVAILABLE, text, "RUN_INTERRUPTED")
    code, reason = _row_of(run.error)
    wait_s = DEFAULT_RETRY_S if code == code_pb2.UNAVAILABLE else None
    return Failure(
        code,
        f"Run {run.id} failed: {message_of(as_seen_by(run, identity).error)}",
        reason,
        retry_after_s=wait_s,
    )
