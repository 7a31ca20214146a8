"""Wire types to values and back."""

import math
from typing import assert_never

import msgspec
from google.protobuf.duration_pb2 import Duration
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import completion_service_pb2 as completion_pb
from rolegate.v1 import evidence_pb2, run_service_pb2, usage_pb2, usage_service_pb2

from router.citation import Citation
from router.errors import BadRequest
from router.events import AnswerWritten, Event, Reported, RoundStarted, SearchDone, SubQueryDispatched
from router.execution import Execution, ExecutionOutcome
from router.feedback import Feedback
from router.gateway import CompletionRequest
from router.ledger import Call, RoleName, RoleTotal, totals
from router.model import Message
from router.run import Run
from router.trajectory import AnswerOutcome, Trajectory
from router.usage_report import UsageReport

_ROLES: dict[RoleName, usage_pb2.Role] = {
    "delegation": usage_pb2.ROLE_DELEGATION,
    "execution": usage_pb2.ROLE_EXECUTION,
    "answer": usage_pb2.ROLE_ANSWER,
}
_VERDICTS: dict[run_service_pb2.Verdict, bool | None] = {
    run_service_pb2.VERDICT_UNSPECIFIED: None,
    run_service_pb2.VERDICT_ACCEPTED: True,
    run_service_pb2.VERDICT_REJECTED: False,
}
_ROLE_NAMES = {number: name for name, number in _ROLES.items()}
_ANSWER_OUTCOMES: dict[AnswerOutcome, answer_pb.AnswerOutcome] = {
    "answered": answer_pb.ANSWER_OUTCOME_ANSWERED,
    "rounds_exhausted": answer_pb.ANSWER_OUTCOME_ROUNDS_EXHAUSTED,
    "no_search": answer_pb.ANSWER_OUTCOME_NO_SEARCH,
    "time_exhausted": answer_pb.ANSWER_OUTCOME_TIME_EXHAUSTED,
    "out_of_scope": answer_pb.ANSWER_OUTCOME_OUT_OF_SCOPE,
    "not_found": answer_pb.ANSWER_OUTCOME_NOT_FOUND,
}
_EXECUTION_OUTCOMES: dict[ExecutionOutcome, evidence_pb2.ExecutionOutcome] = {
    "reported": evidence_pb2.EXECUTION_OUTCOME_REPORTED,
    "no_report": evidence_pb2.EXECUTION_OUTCOME_NO_REPORT,
    "timed_out": evidence_pb2.EXECUTION_OUTCOME_TIMED_OUT,
    "model_failed": evidence_pb2.EXECUTION_OUTCOME_MODEL_FAILED,
    "retrieval_failed": evidence_pb2.EXECUTION_OUTCOME_RETRIEVAL_FAILED,
}


def usage_to_proto(calls: tuple[Call, ...]) -> list[usage_pb2.RoleUsage]:
    """Sums by role and model."""
    return [_total_to_proto(total) for total in totals(calls)]


def usage_report_to_proto(report: UsageReport) -> usage_service_pb2.GetUsageResponse:
    """Sums over many runs."""
    return usage_service_pb2.GetUsageResponse(runs=report.runs, usage=map(_total_to_proto, report.totals))


def _total_to_proto(total: RoleTotal) -> usage_pb2.RoleUsage:
    fields = {**msgspec.structs.asdict(total), "role": _ROLES[total.role]}
    return usage_pb2.RoleUsage(**fields)


def span_from_proto(request: usage_service_pb2.GetUsageRequest) -> tuple[float, float]:
    """From when until when, in Unix time; what is absent has no bound. Raises `BadRequest` for what is no time."""
    try:
        start = request.start_time.ToNanoseconds() / 1e9 if request.HasField("start_time") else -math.inf
        end = request.end_time.ToNanoseconds() / 1e9 if request.HasField("end_time") else math.inf
    except ValueError as error:
        raise BadRequest(f"start_time or end_time: {error}") from None
    return start, end


def feedback_from_proto(request: run_service_pb2.SubmitFeedbackRequest) -> Feedback:
    """Feedback. Raises `BadRequest` for a verdict that there is not."""
    if request.verdict not in _VERDICTS:
        raise BadRequest("verdict must be VERDICT_ACCEPTED or VERDICT_REJECTED, or left out.")
    return Feedback(
        request.run_id,
        _VERDICTS[request.verdict],
        request.score if request.HasField("score") else None,
        request.gold_answer,
        request.comment,
    )


def execution_to_proto(execution: Execution) -> evidence_pb2.SubQueryResult:
    """A sub-query with its report and where its evidence stands."""
    return evidence_pb2.SubQueryResult(
        sub_query=execution.sub_query,
        answer=execution.report.answer,
        evidence=[
            evidence_pb2.EvidencePoint(
                text=point,
                citations=map(_citation_to_proto, execution.citations(point)),
            )
            for point in execution.report.evidence
        ],
        outcome=_EXECUTION_OUTCOMES[execution.outcome],
        search_queries=[search.query for search in execution.searches],
    )


def answer_to_proto(run: Run, trajectory: Trajectory) -> answer_pb.AnswerResponse:
    """The answer to a question."""
    duration = Duration()
    duration.FromMicroseconds(round(run.duration_s * 1e6))
    return answer_pb.AnswerResponse(
        run_id=run.id,
        answer=trajectory.answer,
        outcome=_ANSWER_OUTCOMES[trajectory.outcome],
        results=[execution_to_proto(execution) for execution in trajectory.executions],
        usage=usage_to_proto(run.calls),
        duration=duration,
        citations=map(_citation_to_proto, trajectory.citations),
    )


def _citation_to_proto(citation: Citation) -> evidence_pb2.Citation:
    return evidence_pb2.Citation(**msgspec.structs.asdict(citation))


def event_to_proto(number: int, event: Event) -> answer_pb.StreamAnswerResponse:
    """One numbered event."""
    response = answer_pb.StreamAnswerResponse(event_number=number)
    match event:
        case RoundStarted():
            response.round_started.round = event.round
        case SubQueryDispatched():
            response.sub_query_dispatched.index = event.index
            response.sub_query_dispatched.round = event.round
            response.sub_query_dispatched.sub_query = event.sub_query
        case SearchDone():
            response.search_done.index = event.index
            response.search_done.query = event.query
            response.search_done.titles.extend(event.titles)
        case Reported():
            response.reported.index = event.index
            response.reported.result.CopyFrom(execution_to_proto(event.execution))
        case AnswerWritten():
            response.answer_written.answer = event.answer
        case _:
            assert_never(event)
    return response


def completion_from_proto(
    request: completion_pb.CompleteRequest | completion_pb.StreamCompleteRequest,
) -> CompletionRequest:
    """A model call. Raises `BadRequest` for what cannot be used."""
    if request.role not in _ROLE_NAMES:
        raise BadRequest("role must be ROLE_DELEGATION, ROLE_EXECUTION or ROLE_ANSWER.")
    if request.max_tokens < 0:
        raise BadRequest("max_tokens is negative; leave it 0 for the role's own limit.")
    if "" in request.stop:
        raise BadRequest(f"stop[{list(request.stop).index('')}] is empty; every output would end at its beginning.")
    messages = tuple(_message(position, message) for position, message in enumerate(request.messages))
    return CompletionRequest(_ROLE_NAMES[request.role], messages, tuple(request.stop), request.max_tokens)


def _message(position: int, message: completion_pb.ChatMessage) -> Message:
    match message.role:
        case "system" | "user" | "assistant" as role:
            return Message(role, message.content)
        case other:
            raise BadRequest(f"messages[{position}].role is {other!r}; it must be system, user or assistant.")
