"""Values for versions of the executor, their trials and the decisions on them, and the protocol of
the store that keeps these values.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal, Protocol

from router.frozen import Frozen
from router.protocol import exact_match
from router.trace.run import Feedback

VersionState = Literal["registered", "shadow", "canary", "active", "retired", "rolled_back"]
Stage = Literal["shadow", "canary"]


class ExecutorVersion(Frozen):
    """A registered version of the executor, with its current state."""

    version: str
    """Name of the version, never reused. It is also the version's model name at the engine."""
    state: VersionState
    share: float
    """Share of the runs that a canary serves, 0 to 1; 0 in other states."""
    state_at: float
    """Unix time in seconds at which the version entered its current state."""
    registered_at: float
    """Unix time, seconds."""
    manifest: str = ""
    """Manifest of the published version as JSON; empty for a model that the config names and that
    is not a published version.
    """


class Traffic(Frozen):
    """The versions in use: the active version, and at most one candidate. A candidate is a version
    on trial as a shadow (clients never see its answers) or as a canary (it serves a share of the
    runs).
    """

    active: str
    candidate: str | None = None
    """The version on trial; None if there is none."""
    stage: Stage | None = None
    """The stage of the candidate's trial; None if there is no candidate."""
    share: float = 0.0
    """Share of the runs that a canary serves, 0 to 1."""

    def serving(self, run_id: str) -> str:
        """Return the version that serves a run. The choice depends on the run's identifier alone,
        so it is the same on every call. If a canary's share grows, the canary serves all runs that
        it would have served with the smaller share, and further runs.
        """
        if not self.candidate or self.stage != "canary":
            return self.active
        return self.candidate if _place(run_id) < self.share else self.active

    def other(self, run_id: str) -> str | None:
        """Return the version to compare with the version that serves the run; None if the run is
        not compared.

        In the canary stage, on average equally many runs of both versions are compared. These runs
        are chosen by their identifiers alone, not by their contents.
        """
        if self.stage == "shadow":
            return self.candidate
        if self.stage != "canary":
            return None
        place = _place(run_id)
        of_each = min(self.share, 1 - self.share)
        if place < of_each:
            return self.active
        return self.candidate if self.share <= place < self.share + of_each else None


def _place(run_id: str) -> float:
    """Return a number from 0 to 1 that is fixed for a run, and uniform over all runs."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8]) / 2**64


def traffic_of(versions: "list[ExecutorVersion]") -> Traffic | None:
    """Return the versions in use, according to their states; None if no version is active."""
    active = next((version.version for version in versions if version.state == "active"), None)
    if active is None:
        return None
    for version in versions:
        if version.state in ("shadow", "canary"):
            return Traffic(active, version.version, version.state, version.share)
    return Traffic(active)


class Side(Frozen):
    """Result of one of the two versions in a trial."""

    answer: str
    failed: bool
    """True if any executor had no report, or there was no answer."""
    tokens: int
    """Tokens of the version's executor calls, as far as they are known."""


class Trial(Frozen):
    """A comparison of two versions on one question of a client: one version served the client's
    run, and the other version worked on the same question afterwards.
    """

    run_id: str
    """Identifier of the client's run."""
    candidate: str
    """Name of the version on trial."""
    active: str
    """Name of the active version."""
    stage: Stage
    candidate_served: bool
    """True if the client got the candidate's answer. A shadow's answer is never shown."""
    by_candidate: Side
    """Result of the candidate."""
    by_active: Side
    """Result of the active version."""
    ended_at: float
    """Unix time, seconds."""


Source = Literal["client", "judge", "operator"]
"""Sources of judgements on answers, the least trusted first."""


class Judgement(Frozen):
    """A judgement on the two answers of a trial. Both, one or none of them may be right."""

    candidate_right: bool
    active_right: bool
    source: Source
    tenant: str = ""
    """The client's tenant; empty for the operator and the judge."""
    judged_at: float = 0.0
    """Unix time, seconds; set when the judgement is stored."""

    @property
    def sign(self) -> int:
        """1 if only the candidate is right, -1 if only the active version is right, 0 if both are
        right or both are wrong.
        """
        return self.candidate_right - self.active_right


def judge(trial: Trial, feedback: Feedback) -> Judgement | None:
    """Return a judgement on both answers of a trial, based on the right answer in `feedback`. An
    answer of the trial is right if it matches that answer exactly.

    Return None if the feedback contains no right answer, because a verdict alone is about only one
    of the two answers. Also return None if the verdict contradicts the right answer, and in the
    shadow stage: there, clients only see the active version's answers, so their feedback may be
    biased.
    """
    if trial.stage == "shadow" or not feedback.right_answer.strip():
        return None
    golds = [feedback.right_answer]
    candidate = exact_match(trial.by_candidate.answer, golds)
    active = exact_match(trial.by_active.answer, golds)
    if feedback.good not in (None, candidate if trial.candidate_served else active):
        return None
    return Judgement(
        candidate,
        active,
        "operator" if feedback.tenant is None else "client",
        feedback.tenant or "",
    )


class Pair(Frozen):
    """Values of one trial, on which the gate bases its decisions."""

    candidate_failed: bool
    active_failed: bool
    candidate_tokens: int
    active_tokens: int
    candidate_served: bool = False
    judgement: Judgement | None = None
    """None if the answers have not been judged."""


DecidedBy = Literal["gate", "operator", "config"]
"""Origin of a decision. `config`: no version was active, so the version that the config names was
registered or became the active one.
"""


class GateEvidence(Frozen):
    """Evidence on one measure, for and against the candidate. Each number starts at 1, and grows
    with the pairs that support its statement. If the statement is false, the number ever reaches
    1/α with a probability of at most α, so a large number is strong evidence (`gate.py` says why).
    """

    measure: str
    """`correctness`, `failures` or `tokens`."""
    in_favour: float
    """Evidence that the candidate is not worse than the active version, or worse by less than the
    margin.
    """
    against: float
    """Evidence that the candidate is worse."""


class EvidenceSource(Frozen):
    """Contribution of one source of judgements to the evidence on correctness."""

    source: Source
    tenant: str
    """The tenant, if the source is a client; else empty."""
    decisive: int
    """Number of pairs in which exactly one version is right, according to this source."""
    counted: int
    """Number of the decisive pairs that count as evidence now. The other pairs count later, when
    the tenant's share of all decisive pairs is small enough (see `gate.MAX_OF_ONE`).
    """


class TrialFigures(Frozen):
    """Sums over the trials of a candidate in its current stage. For a canary, they cover equally
    many runs served by the candidate and by the active version.

    Fields with the prefix `active_` are about the active version, the others about the candidate.
    """

    trials: int
    judged: int
    """Number of trials whose answers have been judged."""
    right: int
    active_right: int
    failed: int
    active_failed: int
    tokens: int
    active_tokens: int
    evidence: tuple[GateEvidence, ...] = ()
    sources: tuple[EvidenceSource, ...] = ()
    """The sources of the evidence on correctness."""


class VersionDecision(Frozen):
    """A stored decision on a version, with the reason: to change the version's state, or to wait
    for more trials.
    """

    version: str
    decision: str
    """`register`, `shadow`, `canary`, `promote`, `roll_back`, `retire`, `stop` or `wait`."""
    from_state: VersionState | None
    """State before the decision; None for a new version."""
    to_state: VersionState
    decided_by: DecidedBy
    decided_at: float
    """Unix time, seconds."""
    reason: str = ""
    figures: TrialFigures | None = None
    number: int = 0
    """Number of the decision, counted from 1 over all versions; 0 until it is stored."""


class VersionBook(Protocol):
    """Protocol of the store of versions, which all gateways of a database share. Every method
    raises `StoreFailed` if the database fails.
    """

    async def versions(self) -> list[ExecutorVersion]:
        """Return all versions, newest first."""

    async def add(self, version: ExecutorVersion, decision: VersionDecision) -> None:
        """Store a new version, and the decision to register it. Raises `BadRequest` if its name is
        taken.
        """

    async def change(
        self,
        expected: Sequence[ExecutorVersion],
        changed: Sequence[ExecutorVersion],
        decisions: Sequence[VersionDecision],
    ) -> bool:
        """Replace versions, all or none, and store the decisions. Return False, without any change,
        if another process has changed any of `expected` since it was read.
        """

    async def wait(self, decision: VersionDecision) -> None:
        """Store a decision `wait`, which says that the gate has not decided on the version yet. If
        the version's latest decision is a `wait` too, it is replaced.
        """

    async def decisions(
        self,
        version: str | None,
        after: int,
        size: int,
    ) -> list[VersionDecision]:
        """Return at most `size` decisions with numbers above `after`, oldest first. `version`: only
        decisions on this version; None for all versions.
        """

    async def add_trial(self, trial: Trial) -> None:
        """Store a trial; do nothing if its run already has a trial."""

    async def trial(self, run_id: str) -> Trial | None:
        """Return the trial of a run; None if it has none."""

    async def judge(self, run_id: str, judgement: Judgement) -> None:
        """Store a judgement on the trial of a run, unless the trial has a judgement by a source
        that is at least as trusted.
        """

    async def pairs(
        self,
        version: str,
        stage: Stage,
        since: float,
    ) -> list[Pair]:
        """Return the trials of a candidate in the stage `stage` that ended at the Unix time `since`
        or later, oldest first. Leaves out trials against an earlier active version, and trials of
        runs that must not be used for training.
        """
