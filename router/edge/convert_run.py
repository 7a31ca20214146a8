"""Stored runs, from values to wire types and back."""

from collections.abc import Iterable

import msgspec
from rolegate.v1 import run_service_pb2 as pb

from router.archive import RunFilter, RunSummary, shortened
from router.call import Call
from router.edge.convert import ANSWER_OUTCOMES
from router.edge.convert_time import duration_to_proto, span_from_proto, timestamp_to_proto
from router.edge.convert_usage import ROLES, usage_to_proto
from router.errors import BadRequest
from router.export_row import output_of, trace_json
from router.feedback import Feedback
from router.run import Run, RunKind, RunStatus
from router.trajectory import AnswerOutcome, Trajectory

_MOST_CHARS = 200_000
"""Of a request and of an output, so that a run with all its feedback fits into the 4 MB that gRPC's clients take; the
trace has all of both.
"""
_KINDS: dict[RunKind, pb.RunKind] = {
    "answer": pb.RUN_KIND_ANSWER,
    "complete": pb.RUN_KIND_COMPLETE,
    "execute": pb.RUN_KIND_EXECUTE,
    "shadow": pb.RUN_KIND_SHADOW,
}
_STATUSES: dict[RunStatus, pb.RunStatus] = {
    "running": pb.RUN_STATUS_RUNNING,
    "finished": pb.RUN_STATUS_FINISHED,
    "failed": pb.RUN_STATUS_FAILED,
    "cancelled": pb.RUN_STATUS_CANCELLED,
    "interrupted": pb.RUN_STATUS_INTERRUPTED,
}
_KIND_NAMES: dict[pb.RunKind, RunKind | None] = {
    pb.RUN_KIND_UNSPECIFIED: None,
    **{number: name for name, number in _KINDS.items()},
}
_STATUS_NAMES: dict[pb.RunStatus, RunStatus | None] = {
    pb.RUN_STATUS_UNSPECIFIED: None,
    **{number: name for name, number in _STATUSES.items()},
}
_VERDICTS: dict[pb.Verdict, bool | None] = {
    pb.VERDICT_UNSPECIFIED: None,
    pb.VERDICT_ACCEPTED: True,
    pb.VERDICT_REJECTED: False,
}
_VERDICT_NUMBERS = {verdict: number for number, verdict in _VERDICTS.items()}


def list_filter_from_proto(request: pb.ListRunsRequest) -> RunFilter:
    """Which runs are to be listed. Raises `BadRequest`."""
    if request.status not in _STATUS_NAMES:
        raise BadRequest(f"status is {request.status}; use RUN_STATUS_RUNNING, RUN_STATUS_FINISHED, ….")
    return RunFilter(
        request.tenant or None, _kind(request.kind), _STATUS_NAMES[request.status], *span_from_proto(request)
    )


def export_filter_from_proto(request: pb.ExportRunsRequest) -> RunFilter:
    """Which runs are to be exported. Raises `BadRequest`."""
    start, end = span_from_proto(request)
    return RunFilter(request.tenant or None, _kind(request.kind), None, start, end, request.for_training)


def _kind(number: pb.RunKind) -> RunKind | None:
    if number not in _KIND_NAMES:
        raise BadRequest(
            f"kind is {number}; use RUN_KIND_ANSWER, RUN_KIND_COMPLETE, RUN_KIND_EXECUTE or RUN_KIND_SHADOW."
        )
    return _KIND_NAMES[number]


def feedback_from_proto(request: pb.SubmitFeedbackRequest) -> Feedback:
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


def run_to_proto(run: Run | RunSummary) -> pb.Run:
    """A run, without what was said in it."""
    outcome = run.outcome if isinstance(run, RunSummary) else _outcome(run)
    return pb.Run(
        run_id=run.id,
        tenant=run.tenant,
        kind=_KINDS[run.kind],
        status=_STATUSES[run.status],
        request=run.request,
        request_id=run.request_id,
        outcome=None if outcome is None else ANSWER_OUTCOMES[outcome],
        start_time=timestamp_to_proto(run.started_at),
        duration=None if run.status == "running" else duration_to_proto(run.duration_s),
    )


def feedback_to_proto(feedback: Feedback) -> pb.Feedback:
    """Feedback, as it was given."""
    return pb.Feedback(
        verdict=_VERDICT_NUMBERS[feedback.accepted],
        score=feedback.score,
        gold_answer=feedback.gold_answer,
        comment=feedback.comment,
    )


def whole_run_to_proto(run: Run, feedback: Iterable[Feedback], *, with_trace: bool) -> pb.GetRunResponse:
    """A run with what it spent, and what was said of it."""
    return pb.GetRunResponse(
        run=run_to_proto(msgspec.structs.replace(run, request=shortened(run.request, _MOST_CHARS))),
        usage=usage_to_proto(run.calls),
        calls=map(_call_to_proto, run.calls),
        error=run.error,
        trace_json=trace_json(run) if with_trace else "",
        output=shortened(output_of(run), _MOST_CHARS),
        feedback=map(feedback_to_proto, feedback),
    )


def _call_to_proto(call: Call) -> pb.UpstreamCall:
    usage = call.usage
    return pb.UpstreamCall(
        call_id=call.request_id,
        role=ROLES[call.role],
        model=call.model,
        deployment=call.deployment,
        executor_version=call.executor_version or "",
        purpose=call.purpose,
        attempt=call.attempt,
        outcome=call.outcome,
        counted=call.counted,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
        reasoning_tokens=usage.reasoning_tokens if usage else None,
        cost_nano_usd=call.nano_usd,
        start_time=timestamp_to_proto(call.started_at),
        time_to_first_token=None if call.first_token_s is None else duration_to_proto(call.first_token_s),
        duration=duration_to_proto(call.duration_s),
    )


def _outcome(run: Run) -> AnswerOutcome | None:
    return run.result.outcome if run.status == "finished" and isinstance(run.result, Trajectory) else None
