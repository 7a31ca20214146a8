"""Conversion of request messages to the gateway's values (msgspec structs). Every function raises
`BadRequest` for an invalid request.
"""

import re
from functools import cache
from typing import Any, TypeVar, get_args

import msgspec
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message as WireMessage
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import budget_pb2, run_service_pb2, usage_pb2, usage_service_pb2
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import table_service_pb2 as table_pb
from rolegate.v1.retrieval_service_pb2 import SearchRequest

from router.access import caller
from router.edge.grpc.convert import prefix_of
from router.errors import BadRequest
from router.ledger import Budget, UsageQuery
from router.models import Message
from router.protocol.style import AnswerStyle
from router.runs import RequestOptions, RunFilter
from router.runs.gateway import AnswerRequest, CompletionRequest
from router.trace import RoleName
from router.trace.identity import Identity
from router.trace.run import Feedback
from router.trace.scope import NO_FILTER, DocumentFilter

_LONGEST_REQUEST_ID = 128
_MAX_BYTES = 1 << 20
"""Max bytes of a completion request."""
_LARGEST_PAGE = 1000
_LARGEST_FILTER = 4096
"""Max bytes of a filter of documents."""
_MAX_STOPS = 16
_LONGEST_STOP = 256
"""`_MAX_STOPS`: max number of stop strings in a request; OpenAI's API allows four. `_LONGEST_STOP`:
max characters of a stop string.
"""
_VERDICTS = {None: None, "accepted": True, "rejected": False}
Value = TypeVar("Value", bound=msgspec.Struct)
_Answer = answer_pb.AnswerRequest | answer_pb.StreamAnswerRequest
_Table = table_pb.FillTableRequest | table_pb.StreamTableRequest
_Completion = completion_pb.CompleteRequest | completion_pb.StreamCompleteRequest
_Listing = run_service_pb2.ListRunsRequest | run_service_pb2.ExportRunsRequest


def enum_from_proto(enum: EnumDescriptor, number: int, field: str) -> Any:
    """Return the name of an enum value, in lower case and without the prefix of the enum; None for
    the value `…_UNSPECIFIED`. `field`: path of the field in the request, for the error message.
    """
    if number not in enum.values_by_number:
        raise BadRequest(f"{field} is {number}; it must be a value of the enum {enum.name}.")
    if not number:
        return None
    return enum.values_by_number[number].name.removeprefix(prefix_of(enum)).lower()


def enum_field(request: WireMessage, name: str, at: str = "") -> Any:
    """Return the value of the enum field `name` of a message; see `enum_from_proto`. `at`: path of
    the message in the request, with a dot at the end, for the error message.
    """
    enum: Any = request.DESCRIPTOR.fields_by_name[name].enum_type
    return enum_from_proto(enum, getattr(request, name), f"{at}{name}")


def from_proto(
    kind: type[Value],
    request: WireMessage,
    at: str = "",
    **given: Any,
) -> Value:
    """Return a value of type `kind`. An attribute gets its value from the keyword arguments
    `given`, or else from the message's field with the same name. Nested messages are converted,
    too.

    If a field is absent or is an unspecified enum value, its attribute keeps the default. Without a
    default, the attribute becomes None, or if its type is a struct, a struct that is converted from
    an empty message. `at`: see `enum_field`.
    """
    for field in request.DESCRIPTOR.fields:
        name = field.name
        if name in given or name not in kind.__struct_fields__:
            continue
        value = getattr(request, name)
        inner, required = _attributes(kind)[name]
        if field.enum_type is not None:
            value = enum_field(request, name, at)
        elif field.is_repeated:
            value = tuple(
                from_proto(inner, item, f"{at}{name}[{number}].") if inner else item
                for number, item in enumerate(value)
            )
        elif field.has_presence and not request.HasField(name) and not (inner and required):
            value = None
        elif inner:
            value = from_proto(inner, value, f"{at}{name}.")
        if required or value is not None:
            given[name] = value
    return kind(**given)


@cache
def _attributes(kind: type[msgspec.Struct]) -> dict[str, tuple[Any, bool]]:
    """Return two values for each attribute of a struct type, by the attribute's name. The first is
    the attribute's own struct type, or for a tuple the struct type of the items; None if neither is
    a struct. The second is True if the attribute has no default.
    """
    attributes = {}
    for field in msgspec.structs.fields(kind):
        parts = (field.type, *get_args(field.type))
        structs = (part for part in parts if hasattr(part, "__struct_fields__"))
        attributes[field.name] = next(structs, None), field.required
    return attributes


def options_from_proto(
    request: _Answer | _Table | execution_pb.ExecuteRequest | _Completion, context: Any
) -> RequestOptions:
    """Return the options that requests of several RPCs share, such as the caller, the deadline and
    the budget. `context`: gRPC's context of the call.
    """
    request_id = request.request_id
    if len(request_id) > _LONGEST_REQUEST_ID or not request_id.isprintable():
        raise BadRequest(
            f"request_id {request_id[:40]!r} must have at most {_LONGEST_REQUEST_ID} characters, "
            f"all printable, got {len(request_id)}; use a UUID."
        )
    return from_proto(
        RequestOptions,
        request,
        identity=caller(),
        time_s=context.time_remaining(),
        budget=_budget(request.budget),
        filter=NO_FILTER if isinstance(request, _Completion) else documents_from_proto(request),
        resume=request.resume_run_id if isinstance(request, _Answer | _Table) else "",
    )


def answer_from_proto(request: _Answer) -> AnswerRequest:
    """Return the question of a request, with its history, topology and style."""
    history = tuple(
        _message(f"history[{position}]", message)
        for position, message in enumerate(request.history)
    )
    style = from_proto(AnswerStyle, request)
    return from_proto(AnswerRequest, request, history=history, style=style)


def documents_from_proto(
    request: _Answer | _Table | execution_pb.ExecuteRequest | SearchRequest,
) -> DocumentFilter:
    """Return the filter of documents in a request. Raises `BadRequest` if it is invalid."""
    return checked_documents(from_proto(DocumentFilter, request.filter), request.filter.ByteSize())


def checked_documents(documents: DocumentFilter, size: int) -> DocumentFilter:
    """Return the filter `documents` unchanged. Raises `BadRequest` if it is invalid. `size`: size
    of the filter in the request, in bytes.
    """
    if size > _LARGEST_FILTER:
        raise BadRequest(
            f"filter has {size} bytes; the limit is {_LARGEST_FILTER}; shorten its texts."
        )
    for name in ("from_date", "to_date"):
        date = getattr(documents, name)
        if date and not re.fullmatch(r"\d{4}(-\d\d(-\d\d)?)?", date, re.ASCII):
            raise BadRequest(
                f"filter.{name} must be a date such as 2026, 2026-11 or 2026-11-21, got {date!r}."
            )
    return documents


def completion_from_proto(request: _Completion) -> CompletionRequest:
    """Return the role, the messages and the limits of a request to continue a conversation."""
    if request.max_tokens < 0:
        raise BadRequest(
            f"max_tokens is {request.max_tokens}; it must be at least 1, or 0 for the role's limit."
        )
    if len(request.stop) > _MAX_STOPS:
        raise BadRequest(
            f"stop has {len(request.stop)} strings; at most {_MAX_STOPS} are allowed; omit some."
        )
    for position, stop in enumerate(request.stop):
        if not 0 < len(stop) <= _LONGEST_STOP:
            raise BadRequest(
                f"stop[{position}] has {len(stop)} characters; it must have 1 to {_LONGEST_STOP}."
            )
    if request.ByteSize() > _MAX_BYTES:
        raise BadRequest(
            f"The request has {request.ByteSize()} bytes; the limit is {_MAX_BYTES}; shorten it."
        )
    messages = tuple(
        _message(f"messages[{position}]", message)
        for position, message in enumerate(request.messages)
    )
    role = _role(request.role, "role")
    return from_proto(CompletionRequest, request, role=role, messages=messages)


def state_from_proto(request: version_pb.SetExecutorVersionTrafficRequest) -> Any:
    """Return the state that a request sets for a version of the executor, such as `canary`."""
    if state := enum_field(request, "state"):
        return state
    raise BadRequest("state is missing; use EXECUTOR_VERSION_STATE_REGISTERED, _SHADOW or _CANARY.")


def filter_from_proto(request: _Listing) -> RunFilter:
    """Return the filter of runs in a request to list or export runs."""
    start, end = _span(request)
    training = isinstance(request, run_service_pb2.ExportRunsRequest) and request.for_training
    return from_proto(
        RunFilter,
        request,
        tenant=request.tenant or None,
        start=start,
        end=end,
        training=training,
    )


def feedback_from_proto(
    message: run_service_pb2.SubmitFeedbackRequest | run_service_pb2.Feedback, **given: str
) -> Feedback:
    """Convert a message to feedback on a run. `given`: attributes that the message lacks."""
    verdict = _VERDICTS[enum_field(message, "verdict")]
    return from_proto(Feedback, message, accepted=verdict, **given)


def usage_query_from_proto(
    request: usage_service_pb2.GetUsageRequest, identity: Identity
) -> UsageQuery:
    """Return the query in a request for usage. If the caller's key belongs to a tenant, the query
    is limited to the calls of that tenant.
    """
    dimensions = usage_service_pb2.UsageDimension.DESCRIPTOR
    by = [
        enum_from_proto(dimensions, number, f"group_by[{at}]")
        for at, number in enumerate(request.group_by)
    ]
    if None in by:
        raise BadRequest(
            f"group_by[{by.index(None)}] is unspecified; use USAGE_DIMENSION_TENANT, "
            "USAGE_DIMENSION_ROLE or another dimension."
        )
    bucket = enum_field(request, "bucket")
    groups = tuple(dict.fromkeys(by)) or UsageQuery().by
    return UsageQuery(*_span(request), identity.tenant or request.tenant or None, groups, bucket)


def _span(
    request: _Listing | usage_service_pb2.GetUsageRequest,
) -> tuple[float | None, float | None]:
    """Return the start and the end of the period in a request, as Unix times. Each is None if the
    request does not contain it. Raises `BadRequest` if the start is not before the end.
    """
    start, end = (time_field(request, field) for field in ("start_time", "end_time"))
    if start is not None and end is not None and start >= end:
        raise BadRequest("start_time must be before end_time; swap them, or leave one of them out.")
    return start, end


def time_field(request: Any, field: str) -> float | None:
    """Return a field of a message: a timestamp as Unix time, or a duration in seconds. Return None
    if the field is absent.
    """
    try:
        return getattr(request, field).ToNanoseconds() / 1e9 if request.HasField(field) else None
    except ValueError as error:
        raise BadRequest(
            f"{field}: is not a valid timestamp or duration ({error}); correct it."
        ) from None


def _role(number: usage_pb2.Role, field: str) -> Any:
    role = enum_from_proto(usage_pb2.Role.DESCRIPTOR, number, field)
    if role in (None, "judge"):  # no request calls the judge
        raise BadRequest(
            f"{field} must be ROLE_DELEGATION, ROLE_EXECUTION or ROLE_ANSWER, got {number}."
        )
    return role


def _budget(budget: budget_pb2.Budget) -> Budget:
    by_role = dict[RoleName, int]()
    for position, limit in enumerate(budget.role_budgets):
        field = f"budget.role_budgets[{position}]"
        role = _role(limit.role, f"{field}.role")
        if role in by_role:
            raise BadRequest(
                f"{field}.role: another entry has a limit for this role; leave one of them out."
            )
        by_role[role] = _positive(f"{field}.max_total_tokens", limit.max_total_tokens)
    max_tokens, max_nano_usd = (
        _positive(f"budget.{name}", getattr(budget, name)) if budget.HasField(name) else None
        for name in ("max_total_tokens", "max_cost_nano_usd")
    )
    return Budget(max_tokens, max_nano_usd, by_role)


def _positive(field: str, limit: int) -> int:
    if limit <= 0:
        raise BadRequest(f"{field} is {limit}; it must be at least 1, or be left out for no limit.")
    return limit


def page_size(requested: int, default: int) -> int:
    """Return the max number of entries on a page: `requested`, but at most 1,000; `default` if
    `requested` is 0.
    """
    if requested < 0:
        raise BadRequest(
            f"page_size is {requested}; it must not be negative, and 0 means {default}."
        )
    return min(requested or default, _LARGEST_PAGE)


def _message(field: str, message: completion_pb.ChatMessage) -> Message:
    match message.role:
        case "system" | "user" | "assistant" as role:
            return Message(role, message.content)
        case other:
            raise BadRequest(f"{field}.role is {other!r}; it must be system, user or assistant.")
