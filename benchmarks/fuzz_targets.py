"""What is fuzzed: readers of everything that models, engines and clients write. A target takes bytes, and raises only
where something is wrong.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
from google.protobuf.message import DecodeError, Message
from rolegate.v1 import (
    answer_service_pb2,
    completion_service_pb2,
    execution_service_pb2,
    executor_version_service_pb2,
    run_service_pb2,
    usage_service_pb2,
)

from router.edge.grpc.convert_request import completion_from_proto, options_from_proto
from router.edge.grpc.convert_run import (
    export_filter_from_proto,
    feedback_from_proto,
    list_filter_from_proto,
    state_from_proto,
)
from router.edge.grpc.convert_usage import usage_query_from_proto
from router.errors import BadRequest
from router.models.openai_wire import EventReader, EventTooLong, read_reply
from router.models.streaming import StreamedReply
from router.protocol.decision import Dispatch, EarlyReader, parse_decision
from router.protocol.scope import Scope
from router.protocol.sub_queries import read_questions
from router.protocol.turns import ReportTurn, Search, parse_answer, parse_turn
from router.trace.identity import LOCAL

_SCOPE = Scope.parse("who wrote the of is city\nborn in what\n\nThe Salt Road\nIlse Varnholt\nSt. Ives-le-Bas\n")
_CALL: Any = SimpleNamespace(time_remaining=lambda: None)


def decision(data: bytes) -> None:
    """A delegator's turn: sub-queries are different, on one line each, and no more than the limit."""
    text = _text(data[1:])
    limit, cut = 1 + data[:1].count(b"a"), data[:1] > b"\x80"
    match parse_decision(text, limit=limit, cut=cut):
        case Dispatch(sub_queries, over_limit):
            asked = sub_queries + over_limit
            assert 0 < len(sub_queries) <= limit
            assert len(set(asked)) == len(asked)
            assert all(question and question == " ".join(question.split()) for question in asked)


def early(data: bytes) -> None:
    """The same as it is written: what is certain only grows."""
    text, size = _text(data[1:]), 1 + data[0] % 16 if data else 1
    told: list[int] = []
    reader = EarlyReader(8, lambda certain: told.append(len(certain)))
    for start in range(0, len(text), size):
        reader.feed(text[start : start + size])
    assert told == sorted(set(told))


def turn(data: bytes) -> None:
    """An executor's turn: a query or a report, neither of them empty."""
    match parse_turn(_text(data[1:]), cut=data[:1] > b"\x80"):
        case Search(query):
            assert query
        case ReportTurn(report):
            assert report.answer
            assert report.evidence


def questions(data: bytes) -> None:
    """The body of a search block."""
    assert all(read_questions(_text(data[1:]), partial=data[:1] > b"\x80"))


def answer(data: bytes) -> None:
    """The answerer's turn."""
    assert "\n" not in parse_answer(_text(data))


def events(data: bytes) -> None:
    """Server-sent events: the same wherever they are split."""
    at = data[0] if data else 0
    with suppress(EventTooLong):
        split, whole = EventReader(), EventReader()
        assert split.feed(data[:at]) + split.feed(data[at:]) == whole.feed(data)


def stream(data: bytes) -> None:
    """The chunks of an engine's reply."""
    reply = StreamedReply(("</search>",))
    for event in EventReader().feed(data):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            reply.take(read_reply(event))
    reply.end()


def scope(data: bytes) -> None:
    """A question that may be outside of a scope: what is outside stands in it."""
    text = _text(data)
    assert all(word in text for word in _SCOPE.outside(text))


def edge(data: bytes) -> None:
    """What clients send: a message that cannot be decoded or is refused, or values."""
    requests = tuple(_edge())
    kind, read = requests[data[0] % len(requests) if data else 0]
    with suppress(DecodeError, BadRequest):
        request = kind()
        request.ParseFromString(data[1:])
        read(request)


def _edge() -> Iterator[tuple[type[Message], Callable[[Any], object]]]:
    completion = completion_service_pb2
    for asking in (
        answer_service_pb2.AnswerRequest,
        answer_service_pb2.StreamAnswerRequest,
        execution_service_pb2.ExecuteRequest,
        completion.CompleteRequest,
        completion.StreamCompleteRequest,
    ):
        yield asking, lambda request: options_from_proto(request, _CALL)
    yield completion.CompleteRequest, completion_from_proto
    yield run_service_pb2.ListRunsRequest, list_filter_from_proto
    yield run_service_pb2.ExportRunsRequest, export_filter_from_proto
    yield run_service_pb2.SubmitFeedbackRequest, feedback_from_proto
    yield usage_service_pb2.GetUsageRequest, lambda request: usage_query_from_proto(request, LOCAL)
    version = executor_version_service_pb2.ExecutorVersion
    yield version, lambda request: state_from_proto(request.state)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (decision, early, turn, questions, answer, events, stream, scope, edge)
}
"""By name."""
WORDS = (
    "<search>|</search>|<stop/>|<stop>|<think>|</think>|<answer>|</answer>|<evidence>|</evidence>|<search_results>|<query>"
    '|["|"]|", "|{"queries": ["|{"query": "|\\\\"|?"|1. |- |```json|“|”|a?|data: '
    '|data: {"choices":[{"delta":{"content":"'
    "|[DONE]|\n\n|\r\n|Ilse Varnholt|The Salt Road"
).split("|")
"""What such texts are made of, for whoever makes more."""
SEEDS = (
    b'a<search>["Who directed Heat?", "When was he born?"]</search>',
    b"a<search>- Who directed Heat?\n- When was he born?</search>",
    b'a<think>Is it <search>?</think><search>{"queries": ["Who directed \\"Heat\\"?"]}',
    b"a<stop/>Enough evidence<stop>",
    b"a<answer>Michael Mann</answer>\n<evidence>- He directed it.\n- It is so.</evidence>",
    b'data: {"choices": [{"index": 0, "delta": {"content": "<search>"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
    b"Who is Ilse Varnholt of The Salt Road, born in St. Ives-le-Bas?",
    *(bytes([kind]) + b"\n\x04Who?\x12\x05key-1\x1a\x06\x08\x01\x12\x02\x08\x01" for kind in range(11)),
)
"""Where to begin."""
