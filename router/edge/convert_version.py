"""Versions of the executor and decisions on them, from values to wire types and back."""

import msgspec
from rolegate.v1 import executor_version_service_pb2 as pb

from router.edge.convert_time import timestamp_to_proto
from router.errors import BadRequest
from router.executor_version import ExecutorVersion, VersionState
from router.version_book import Decision, TrialFigures

_STATES: dict[VersionState, pb.ExecutorVersionState] = {
    "registered": pb.EXECUTOR_VERSION_STATE_REGISTERED,
    "shadow": pb.EXECUTOR_VERSION_STATE_SHADOW,
    "canary": pb.EXECUTOR_VERSION_STATE_CANARY,
    "active": pb.EXECUTOR_VERSION_STATE_ACTIVE,
    "retired": pb.EXECUTOR_VERSION_STATE_RETIRED,
    "rolled_back": pb.EXECUTOR_VERSION_STATE_ROLLED_BACK,
}
_STATE_NAMES = {number: name for name, number in _STATES.items()}


def state_from_proto(number: pb.ExecutorVersionState) -> VersionState:
    """A state. Raises `BadRequest` for one that there is not."""
    if number not in _STATE_NAMES:
        raise BadRequest(f"state is {number}; use EXECUTOR_VERSION_STATE_REGISTERED, _SHADOW or _CANARY.")
    return _STATE_NAMES[number]


def version_to_proto(version: ExecutorVersion, figures: TrialFigures | None = None) -> pb.ExecutorVersion:
    """A version with what it has shown in its trial."""
    return pb.ExecutorVersion(
        version=version.version,
        state=_STATES[version.state],
        canary_share=version.share,
        state_time=timestamp_to_proto(version.state_at),
        register_time=timestamp_to_proto(version.registered_at),
        manifest_json=version.manifest,
        figures=_figures_to_proto(figures),
    )


def decision_to_proto(decision: Decision) -> pb.ExecutorVersionDecision:
    """A decision with what it rests on."""
    return pb.ExecutorVersionDecision(
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


def _figures_to_proto(figures: TrialFigures | None) -> pb.TrialFigures | None:
    if figures is None:
        return None
    evidence = [pb.Evidence(**msgspec.structs.asdict(each)) for each in figures.evidence]
    return pb.TrialFigures(**{**msgspec.structs.asdict(figures), "evidence": evidence})
