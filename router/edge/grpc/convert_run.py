"""Stored runs, from values to wire types and back."""

import re
from collections.abc import Iterable

import msgspec
from google.rpc import code_pb2, status_pb2
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import run_service_pb2 as pb

from router.edge.grpc.convert import ANSWER_OUTCOMES
from router.edge.grpc.convert_usage import (
    duration_to_proto,
    span_from_proto,
    timestamp_to_proto,
    usage_to_proto,
    wire_fields,
)
from router.edge.status import COME_BACK_S, STATUS, new_status
from router.errors import BadRequest
from router.runs.archive import RunFilter, RunSummary, shortened
from router.trace.export import output_of, trace_json
from router.trace.identity import Identity
from router.trace.run import Feedback, Run, RunKind, RunStatus
from router.trace.values import AnswerOutcome, Trajectory
from router.versions.book import Decision, ExecutorVersion, TrialFigures, VersionState

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
        calls=[pb.UpstreamCall(**wire_fields(pb.UpstreamCall, call)) for call in run.calls],
        error=run.error,
        trace_json=trace_json(run) if with_trace else "",
        output=shortened(output_of(run), _MOST_CHARS),
        feedback=map(feedback_to_proto, feedback),
    )


def _outcome(run: Run) -> AnswerOutcome | None:
    return run.result.outcome if run.status == "finished" and isinstance(run.result, Trajectory) else None


_STATES: dict[VersionState, version_pb.ExecutorVersionState] = {
    "registered": version_pb.EXECUTOR_VERSION_STATE_REGISTERED,
    "shadow": version_pb.EXECUTOR_VERSION_STATE_SHADOW,
    "canary": version_pb.EXECUTOR_VERSION_STATE_CANARY,
    "active": version_pb.EXECUTOR_VERSION_STATE_ACTIVE,
    "retired": version_pb.EXECUTOR_VERSION_STATE_RETIRED,
    "rolled_back": version_pb.EXECUTOR_VERSION_STATE_ROLLED_BACK,
}
_STATE_NAMES = {number: name for name, number in _STATES.items()}


def state_from_proto(number: version_pb.ExecutorVersionState) -> VersionState:
    """A state. Raises `BadRequest` for one that there is not."""
    if number not in _STATE_NAMES:
        raise BadRequest(f"state is {number}; use EXECUTOR_VERSION_STATE_REGISTERED, _SHADOW or _CANARY.")
    return _STATE_NAMES[number]


def version_to_proto(version: ExecutorVersion, figures: TrialFigures | None = None) -> version_pb.ExecutorVersion:
    """A version with what it has shown in its trial."""
    return version_pb.ExecutorVersion(
        version=version.version,
        state=_STATES[version.state],
        canary_share=version.share,
        state_time=timestamp_to_proto(version.state_at),
        register_time=timestamp_to_proto(version.registered_at),
        manifest_json=version.manifest,
        figures=_figures_to_proto(figures),
    )


def decision_to_proto(decision: Decision) -> version_pb.ExecutorVersionDecision:
    """A decision with what it rests on."""
    return version_pb.ExecutorVersionDecision(
        number=decision.number,
        version=decision.version,
        decision=decision.decision,
        from_state=None if decision.from_state is None else _STATES[decision.from_state],
        to_state=_STATES[decision.to_state],
        decided_by=decision.decided_by,
        time=timestamp_to_proto(decision.decided_at),
        reason=decision.reason,
        figures=_figures_to_proto(decision.figures),
    )


def _figures_to_proto(figures: TrialFigures | None) -> version_pb.TrialFigures | None:
    if figures is None:
        return None
    evidence = [version_pb.Evidence(**msgspec.structs.asdict(each)) for each in figures.evidence]
    return version_pb.TrialFigures(**{**msgspec.structs.asdict(figures), "evidence": evidence})


_ROWS = {kind.__name__: row for kind, row in STATUS.items()}


def as_seen_by(run: Run, identity: Identity) -> Run:
    """`run` without what is the operator's alone: addresses, and errors that may name them."""
    if identity.tenant is None:
        return run
    calls = tuple(msgspec.structs.replace(call, deployment="") for call in run.calls)
    return msgspec.structs.replace(run, calls=calls, error=_plain(run.error) if run.error else "")


def failure_of(run: Run, identity: Identity) -> status_pb2.Status:
    """The status with which a run that did not finish ends for those who watch it."""
    if run.status == "cancelled":
        return new_status(code_pb2.CANCELLED, f"Run {run.id} was cancelled.", "RUN_CANCELLED")
    if run.status == "interrupted":
        text = f"Run {run.id} was interrupted, because its gateway was killed; ask again."
        return new_status(code_pb2.UNAVAILABLE, text, "RUN_INTERRUPTED")
    code, reason = _ROWS.get(_name(run.error), (code_pb2.INTERNAL, "INTERNAL"))
    wait_s = COME_BACK_S if code == code_pb2.UNAVAILABLE else None
    return new_status(code, f"Run {run.id} failed: {as_seen_by(run, identity).error}", reason, wait_s=wait_s)


def _plain(error: str) -> str:
    """The class of a stored error in words: `upstream unavailable`."""
    name = _name(error)
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower() if name in _ROWS else "internal error"


def _name(error: str) -> str:
    return error.partition(":")[0]
