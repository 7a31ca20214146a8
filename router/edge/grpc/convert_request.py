"""Conversion of requests to values; every function raises `BadRequest` for invalid ones."""

from typing import Any, TypeVar

import msgspec
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message as WireMessage
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import budget_pb2, run_service_pb2, usage_pb2, usage_service_pb2
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import execution_service_pb2 as execution_pb
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import table_service_pb2 as table_pb

from router.access import caller
from router.edge.grpc.convert import prefix_of
from router.errors import BadRequest
from router.ledger import Budget, UsageQuery
from router.models import Message
from router.runs import RequestOptions, RunFilter
from router.runs.gateway import CompletionRequest
from router.trace import RoleName
from router.trace.identity import Identity
from router.trace.run import Feedback

_LONGEST_REQUEST_ID = 128
_MAX_BYTES = 1 << 20
"""Max size of a completion request."""
_LARGEST_PAGE = 1000
_MAX_STOPS = 16
_LONGEST_STOP = 256
"""Max number of stop strings (OpenAI allows four), and of characters in each."""
_VERDICTS = {None: None, "accepted": True, "rejected": False}
Value = TypeVar("Value", bound=msgspec.Struct)
_Answer = answer_pb.AnswerRequest | answer_pb.StreamAnswerRequest
_Table = table_pb.FillTableRequest | table_pb.StreamTableRequest
_Completion = completion_pb.CompleteRequest | completion_pb.StreamCompleteRequest
_Listing = run_service_pb2.ListRunsRequest | run_service_pb2.ExportRunsRequest


def enum_from_proto(enum: EnumDescriptor, number: int, field: str) -> Any:
    """Return the name of an enum value in lower case without its prefix; None for the unspecified
    one. `field`: its path in the request.
    """
    if number not in enum.values_by_number:
        raise BadRequest(f"{field} is {number}; it must be a value of the enum {enum.name}.")
    if not number:
        return None
    return enum.values_by_number[number].name.removeprefix(prefix_of(enum)).lower()


def enum_field(request: WireMessage, name: str, at: str = "") -> Any:
    """Return the value of a request's enum field, like `enum_from_proto`. `at`: the path of the
    message in the request.
    """
    enum: Any = request.DESCRIPTOR.fields_by_name[name].enum_type
    return enum_from_proto(enum, getattr(request, name), f"{at}{name}")


def from_proto(
    kind: type[Value],
    request: WireMessage,
    at: str = "",
    **given: Any,
) -> Value:
    """Return a value with the fields of a message, by name; `given` fields take precedence. Absent
    fields and unspecified enums have the value's defaults. `at`: like `enum_field`.
    """
    for field in request.DESCRIPTOR.fields:
        name = field.name
        value = getattr(request, name)
        if field.enum_type is not None:
            value = enum_field(request, name, at)
        elif field.is_repeated:
            value = tuple(value)
        absent = value is None or (field.has_presence and not request.HasField(name))
        if name in kind.__struct_fields__ and not absent:
            given.setdefault(name, value)
    return kind(**given)


def options_from_proto(
    request: _Answer | _Table | execution_pb.ExecuteRequest | _Completion, context: Any
) -> RequestOptions:
    """Return the options of the call that is being served."""
    request_id = request.request_id
    if len(request_id) > _LONGEST_REQUEST_ID or not request_id.isprintable():
        raise BadRequest(
            f"request_id must be at most {_LONGEST_REQUEST_ID} printable characters, "
            "such as a UUID."
        )
    return from_proto(
        RequestOptions,
        request,
        identity=caller(),
        time_s=context.time_remaining(),
        budget=_budget(request.budget),
        resume=request.resume_run_id if isinstance(request, _Answer | _Table) else "",
    )


def topology_from_proto(request: _Answer) -> Any:
    """Return the requested topology."""
    return enum_field(request, "topology") or "factorized"


def completion_from_proto(request: _Completion) -> CompletionRequest:
    """Convert a model call."""
    if request.max_tokens < 0:
        raise BadRequest("max_tokens is negative; leave it 0 for the role's own limit.")
    if len(request.stop) > _MAX_STOPS:
        raise BadRequest(f"stop has {len(request.stop)} strings; at most {_MAX_STOPS} are allowed.")
    for position, stop in enumerate(request.stop):
        if not 0 < len(stop) <= _LONGEST_STOP:
            raise BadRequest(
                f"stop[{position}] has {len(stop)} characters; it must have 1 to {_LONGEST_STOP}."
            )
    if request.ByteSize() > _MAX_BYTES:
        raise BadRequest(
            f"The request has {request.ByteSize()} bytes; at most {_MAX_BYTES} are allowed."
        )
    messages = tuple(
        _message(position, message) for position, message in enumerate(request.messages)
    )
    role = _role(request.role, "role")
    return from_proto(CompletionRequest, request, role=role, messages=messages)


def state_from_proto(request: version_pb.SetExecutorVersionTrafficRequest) -> Any:
    """Return the requested state of an executor version."""
    if state := enum_field(request, "state"):
        return state
    raise BadRequest("state is absent; use EXECUTOR_VERSION_STATE_REGISTERED, _SHADOW or _CANARY.")


def filter_from_proto(request: _Listing) -> RunFilter:
    """Convert the filter of listed or exported runs."""
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


def feedback_from_proto(request: run_service_pb2.SubmitFeedbackRequest) -> Feedback:
    """Convert feedback."""
    return from_proto(Feedback, request, accepted=_VERDICTS[enum_field(request, "verdict")])


def usage_query_from_proto(
    request: usage_service_pb2.GetUsageRequest, identity: Identity
) -> UsageQuery:
    """Return the calls to sum; a tenant sees only its own."""
    dimensions = usage_service_pb2.UsageDimension.DESCRIPTOR
    by = [
        enum_from_proto(dimensions, number, f"group_by[{at}]")
        for at, number in enumerate(request.group_by)
    ]
    if None in by:
        raise BadRequest(
            f"group_by[{by.index(None)}] is unspecified; use USAGE_DIMENSION_TENANT, "
            "_ROLE, _MODEL, …."
        )
    bucket = enum_field(request, "bucket")
    groups = tuple(dict.fromkeys(by)) or UsageQuery().by
    return UsageQuery(*_span(request), identity.tenant or request.tenant or None, groups, bucket)


def _span(
    request: _Listing | usage_service_pb2.GetUsageRequest,
) -> tuple[float | None, float | None]:
    """Return start and end as Unix times; None for no bound."""
    start, end = (_time(request, field) for field in ("start_time", "end_time"))
    if start is not None and end is not None and start >= end:
        raise BadRequest(
            "start_time is not before end_time; leave one of them out, or exchange them."
        )
    return start, end


def _time(request: Any, field: str) -> float | None:
    try:
        return getattr(request, field).ToNanoseconds() / 1e9 if request.HasField(field) else None
    except ValueError as error:
        raise BadRequest(f"{field}: {error}") from None


def _role(number: usage_pb2.Role, field: str) -> Any:
    role = enum_from_proto(usage_pb2.Role.DESCRIPTOR, number, field)
    if role in (None, "judge"):  # no request calls the judge
        raise BadRequest(f"{field} must be ROLE_DELEGATION, ROLE_EXECUTION or ROLE_ANSWER.")
    return role


def _budget(budget: budget_pb2.Budget) -> Budget:
    by_role: dict[RoleName, int] = {}
    for position, limit in enumerate(budget.role_budgets):
        field = f"budget.role_budgets[{position}]"
        role = _role(limit.role, f"{field}.role")
        if role in by_role:
            raise BadRequest(f"{field}.role has a limit already; leave one of them out.")
        by_role[role] = _positive(f"{field}.max_total_tokens", limit.max_total_tokens)
    tokens = "max_total_tokens"
    cost = "max_cost_nano_usd"
    return Budget(
        _positive(f"budget.{tokens}", budget.max_total_tokens) if budget.HasField(tokens) else None,
        _positive(f"budget.{cost}", budget.max_cost_nano_usd) if budget.HasField(cost) else None,
        by_role,
    )


def _positive(field: str, limit: int) -> int:
    if limit <= 0:
        raise BadRequest(f"{field} is {limit}; it must be at least 1, or be left out for no limit.")
    return limit


def page_size(requested: int, default: int) -> int:
    """Return the size of a page: the requested one, `default` for 0, and 1,000 at most."""
    if requested < 0:
        raise BadRequest(f"page_size is {requested}; leave it 0 for {default}.")
    return min(requested or default, _LARGEST_PAGE)


def _message(position: int, message: completion_pb.ChatMessage) -> Message:
    match message.role:
        case "system" | "user" | "assistant" as role:
            return Message(role, message.content)
        case other:
            raise BadRequest(
                f"messages[{position}].role is {other!r}; it must be system, user or assistant."
            )
