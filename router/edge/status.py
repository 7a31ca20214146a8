"""What callers are told of errors: one table, one translator."""

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
COME_BACK_S = 5.0
"""Pause after an upstream failure that does not say when to come back."""
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
"""Reasons that are not the class's name."""


def _words(name: str) -> str:
    """The name of a class in words: `Upstream Unavailable`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name)


STATUS: dict[type[RolegateError], tuple[int, str]] = {
    kind: (code, _REASONS.get(kind) or _words(kind.__name__).replace(" ", "_").upper())
    for code, kinds in _CODES.items()
    for kind in kinds
}
"""Every error class that is raised (the test walks the tree), its status code and its reason."""

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
    errors.ContentRefused: "{who} declines this: {said}",
    UpstreamProtocolError: (
        "{who} answered something that cannot be used; try again, or tell the gateway's operator."
    ),
    errors.ToolFailed: "A tool of the gateway's failed; try again, or tell its operator.",
    errors.MalformedOutput: (
        "{who} does not follow the gateway's protocol, so it cannot do its work; tell the operator."
    ),
}
"""Public messages for tenants, instead of texts that name addresses, files, or what engines
said.
"""


class Failure(msgspec.Struct, frozen=True):
    """The reason why a request came to nothing, for whoever asked."""

    code: int
    """As of `google.rpc.Code`."""
    message: str
    reason: str
    """Such as `BAD_REQUEST`."""
    role: str | None = None
    """Whose model failed."""
    retry_after_s: float | None = None
    """When to come back, in seconds."""


def failure_of(error: BaseException, identity: Identity = LOCAL) -> Failure:
    """The failure as `identity` is told of it; what is not ours becomes INTERNAL without a word
    of its text.
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
        message = _FOR_TENANTS[type(error)].format(who=who, said=getattr(error, "said", ""))
    return Failure(code, message, reason, role, _retry_after_s(error))


def _retry_after_s(error: BaseException) -> float | None:
    """The pause before coming back, in seconds, where the error says it or coming back may help."""
    said: float | None = getattr(error, "retry_after_s", None)
    return (
        COME_BACK_S
        if said is None and isinstance(error, UpstreamUnavailable | UpstreamProtocolError)
        else said
    )


def logged_failure(error: BaseException) -> Failure:
    """The failure as the caller is told of an error that ends a request. Its whole text is logged,
    and of what is not ours the traceback, without the values of variables: there may be keys among
    them.
    """
    error, failure = _innermost(error), failure_of(error, caller())
    if not isinstance(error, RolegateError):
        _log.error(
            "edge.failed", error=str(error), exception="".join(traceback.format_exception(error))
        )
    else:
        _log.warning("edge.refused", code=code_pb2.Code.Name(failure.code), error=str(error))
    return failure


def _innermost(error: BaseException) -> BaseException:
    """The first error inside of what a TaskGroup raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_ROWS = {kind.__name__: row for kind, row in STATUS.items()}


def message_of(error: str) -> str:
    """Return a run's error without the name of its class: `OutOfTime: …` is not for people."""
    name, _, message = error.partition(": ")
    return message if name in _ROWS and message else error


def as_seen_by(run: Run, identity: Identity) -> Run:
    """`run` without what is the operator's alone: addresses, and errors that may name them,
    those of tools included.
    """
    if identity.tenant is None:
        return run
    name = run.error.partition(":")[0]
    words = _words(name).lower() if name in _ROWS else "internal error"
    calls = tuple(msgspec.structs.replace(call, deployment="") for call in run.calls)
    result, events = map(_without_tools_errors, (run.result, run.events))
    return msgspec.structs.replace(
        run, calls=calls, error=words if run.error else "", result=result, events=events
    )


def _without_tools_errors(value: Value) -> Value:
    """The same without the texts of tools' failures, which may be a server's last words, or name
    paths; the very same where there is none, so that it is known again.
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
    """The failure with which a run that did not finish ends for those who watch it."""
    if run.status == "cancelled":
        return Failure(code_pb2.CANCELLED, f"Run {run.id} was cancelled.", "RUN_CANCELLED")
    if run.status == "interrupted":
        text = f"Run {run.id} was interrupted, because its gateway was killed; ask again."
        return Failure(code_pb2.UNAVAILABLE, text, "RUN_INTERRUPTED")
    code, reason = _ROWS.get(run.error.partition(":")[0], (code_pb2.INTERNAL, "INTERNAL"))
    wait_s = COME_BACK_S if code == code_pb2.UNAVAILABLE else None
    return Failure(
        code,
        f"Run {run.id} failed: {as_seen_by(run, identity).error}",
        reason,
        retry_after_s=wait_s,
    )
