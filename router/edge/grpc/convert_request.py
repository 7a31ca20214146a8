"""What is asked for, from wire types to values."""

from typing import Any

from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import budget_pb2
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import execution_service_pb2 as execution_pb

from router.edge.grpc.convert_usage import ROLE_NAMES
from router.edge.status import caller
from router.errors import BadRequest
from router.ledger.budget import Budget
from router.models.model import Message
from router.runs.gateway import CompletionRequest
from router.runs.lifecycle import RequestOptions
from router.trace.call import RoleName
from router.trace.values import TopologyName

_LONGEST_REQUEST_ID = 128
_MOST_BYTES = 1 << 20
"""Of a completion."""
_MOST_STOPS, _LONGEST_STOP = 16, 256
"""OpenAI takes four; a stop's length is in characters."""
_ROLES = {number: name for number, name in ROLE_NAMES.items() if name != "judge"}  # which no request asks
_ROLE_ADVICE = "must be ROLE_DELEGATION, ROLE_EXECUTION or ROLE_ANSWER."
_Completion = completion_pb.CompleteRequest | completion_pb.StreamCompleteRequest
TOPOLOGIES: dict[int, TopologyName] = {
    answer_pb.TOPOLOGY_UNSPECIFIED: "factorized",
    answer_pb.TOPOLOGY_FACTORIZED: "factorized",
    answer_pb.TOPOLOGY_SINGLE_AGENT: "single_agent",
    answer_pb.TOPOLOGY_HOMOGENEOUS: "homogeneous",
    answer_pb.TOPOLOGY_SEARCHER: "searcher",
    answer_pb.TOPOLOGY_NO_RETRIEVAL: "no_retrieval",
}
Request = answer_pb.AnswerRequest | answer_pb.StreamAnswerRequest | execution_pb.ExecuteRequest | _Completion


def options_from_proto(request: Request, context: Any) -> RequestOptions:
    """On which options the call that is being served is made. Raises `BadRequest` for what cannot be used."""
    request_id = request.request_id
    if len(request_id) > _LONGEST_REQUEST_ID:
        raise BadRequest(f"request_id has {len(request_id)} characters; at most {_LONGEST_REQUEST_ID} are allowed.")
    if not request_id.isprintable():
        raise BadRequest(f"request_id is {request_id!r}; use printable characters alone, such as a UUID's.")
    no_cache = not isinstance(request, _Completion) and request.fresh
    return RequestOptions(caller(), context.time_remaining(), request_id, _budget(request.budget), no_cache)


def topology_from_proto(request: answer_pb.AnswerRequest | answer_pb.StreamAnswerRequest) -> TopologyName:
    """Who is to search and to answer. Raises `BadRequest` for what cannot be used."""
    if request.topology not in TOPOLOGIES:
        raise BadRequest(f"topology is {request.topology}; it must be a value of the enum Topology.")
    return TOPOLOGIES[request.topology]


def completion_from_proto(
    request: completion_pb.CompleteRequest | completion_pb.StreamCompleteRequest,
) -> CompletionRequest:
    """A model call. Raises `BadRequest` for what cannot be used."""
    if request.role not in _ROLES:
        raise BadRequest(f"role {_ROLE_ADVICE}")
    if request.max_tokens < 0:
        raise BadRequest("max_tokens is negative; leave it 0 for the role's own limit.")
    if len(request.stop) > _MOST_STOPS:
        raise BadRequest(f"stop has {len(request.stop)} strings; at most {_MOST_STOPS} are allowed.")
    for position, stop in enumerate(request.stop):
        if not stop:
            raise BadRequest(f"stop[{position}] is empty; every output would end at its beginning.")
        if len(stop) > _LONGEST_STOP:
            raise BadRequest(f"stop[{position}] has {len(stop)} characters; at most {_LONGEST_STOP} are allowed.")
    if request.ByteSize() > _MOST_BYTES:
        raise BadRequest(f"The request has {request.ByteSize()} bytes; at most {_MOST_BYTES} are allowed.")
    messages = tuple(_message(position, message) for position, message in enumerate(request.messages))
    return CompletionRequest(_ROLES[request.role], messages, tuple(request.stop), request.max_tokens)


def _budget(budget: budget_pb2.Budget) -> Budget:
    by_role: dict[RoleName, int] = {}
    for position, limit in enumerate(budget.role_budgets):
        field = f"budget.role_budgets[{position}]"
        if limit.role not in _ROLES:
            raise BadRequest(f"{field}.role {_ROLE_ADVICE}")
        if _ROLES[limit.role] in by_role:
            raise BadRequest(f"{field}.role has a limit already; leave one of them out.")
        by_role[_ROLES[limit.role]] = _positive(f"{field}.max_total_tokens", limit.max_total_tokens)
    tokens, cost = "max_total_tokens", "max_cost_nano_usd"
    return Budget(
        _positive(f"budget.{tokens}", budget.max_total_tokens) if budget.HasField(tokens) else None,
        _positive(f"budget.{cost}", budget.max_cost_nano_usd) if budget.HasField(cost) else None,
        by_role,
    )


def _positive(field: str, limit: int) -> int:
    if limit <= 0:
        raise BadRequest(f"{field} is {limit}; it must be at least 1, or be left out for no limit.")
    return limit


def _message(position: int, message: completion_pb.ChatMessage) -> Message:
    match message.role:
        case "system" | "user" | "assistant" as role:
            return Message(role, message.content)
        case other:
            raise BadRequest(f"messages[{position}].role is {other!r}; it must be system, user or assistant.")
