"""The records of executor versions, their trials, and the decisions on them."""

import hashlib
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from router.protocol import exact_match
from router.trace.run import Feedback

VersionState = Literal["registered", "shadow", "canary", "active", "retired", "rolled_back"]
Stage = Literal["shadow", "canary"]


class ExecutorVersion(msgspec.Struct, frozen=True):
    """A version on record."""

    version: str
    """Its name, which is also the name of its model; never reused."""
    state: VersionState
    share: float
    """A canary's share of the runs, 0 to 1."""
    state_at: float
    """When it entered its state; Unix time, seconds."""
    registered_at: float
    manifest: str = ""
    """The parts that it was made of, as JSON; empty for the model that the config names."""


class Traffic(msgspec.Struct, frozen=True):
    """The versions in use, and their shares of the runs."""

    active: str
    candidate: str | None = None
    """The version that is shadow or canary; at most one."""
    stage: Stage | None = None
    """The candidate's stage; None if there is no candidate."""
    share: float = 0.0
    """A canary's share of the runs."""

    def serving(self, run_id: str) -> str:
        """Return the version that serves a run. It is the same on every call, and a canary keeps
        its runs as its share grows.
        """
        if not self.candidate or self.stage != "canary":
            return self.active
        return self.candidate if _place(run_id) < self.share else self.active

    def other(self, run_id: str) -> str | None:
        """Return the version to compare with the one that serves a run; None if the run is not
        compared.

        With a canary, equally many runs are compared that each version serves, in expectation.
        Which of the other version's runs these are depends on nothing in the runs.
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
    """Return the run's fixed position among all runs, 0 to 1."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8]) / 2**64


def traffic_of(versions: "list[ExecutorVersion]") -> Traffic | None:
    """Return the traffic that follows from the versions' states; None while none is active."""
    active = next((version.version for version in versions if version.state == "active"), None)
    if active is None:
        return None
    for version in versions:
        if version.state in ("shadow", "canary"):
            return Traffic(active, version.version, version.state, version.share)
    return Traffic(active)


class Side(msgspec.Struct, frozen=True):
    """The result of a run with one version."""

    answer: str
    failed: bool
    """Whether any of its executors had no report, or the run had no answer."""
    tokens: int
    """Known tokens of its executor calls."""


class Trial(msgspec.Struct, frozen=True):
    """A run with both versions."""

    run_id: str
    """The client's run."""
    candidate: str
    """The version on trial."""
    active: str
    stage: Stage
    candidate_served: bool
    """Whether the client got the candidate's answer; a shadow's answer is never shown."""
    by_candidate: Side
    by_active: Side
    ended_at: float
    """Unix time, seconds."""


Source = Literal["client", "judge", "operator"]
"""The judges of answers, in increasing order of trust."""


class Judgement(msgspec.Struct, frozen=True):
    """The verdict on both answers of a trial."""

    candidate_right: bool
    active_right: bool
    source: Source
    tenant: str = ""
    """The client's tenant; empty for the operator and the judge."""
    judged_at: float = 0.0
    """Unix time, seconds; set by the book."""

    @property
    def sign(self) -> int:
        """1 if only the candidate is right, -1 if only the active version is, else 0, which favours
        neither.
        """
        return self.candidate_right - self.active_right


def judge(trial: Trial, feedback: Feedback) -> Judgement | None:
    """Return the verdict of feedback on both answers, by exact match with its right answer.

    None if it gives no right answer, or contradicts itself: a bare verdict is about one answer
    only. None also for a shadow, as the client has seen only the active version's answer, which may
    be why it gave feedback.
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


class Pair(msgspec.Struct, frozen=True):
    """A trial as the gate sees it."""

    candidate_failed: bool
    active_failed: bool
    candidate_tokens: int
    active_tokens: int
    candidate_served: bool = False
    judgement: Judgement | None = None
    """None while nobody has judged the answers."""


DecidedBy = Literal["gate", "operator", "config"]
"""The config decides on the first version."""


class GateEvidence(msgspec.Struct, frozen=True):
    """The capital of two test martingales on one measure; a value of 1/α rejects the null
    hypothesis at level α.
    """

    measure: str
    """`correctness`, `failures` or `tokens`."""
    in_favour: float
    """Evidence that the candidate is not worse than the active version by more than the margin."""
    against: float
    """Evidence that the candidate is worse."""


class EvidenceSource(msgspec.Struct, frozen=True):
    """A source's part in the evidence on correctness."""

    source: Source
    tenant: str
    """The client's tenant; else empty."""
    decisive: int
    """Pairs in which exactly one version is right, according to this source."""
    counted: int
    """The pairs among them that count as evidence; the others wait until the tenant's share is
    small enough.
    """


class TrialFigures(msgspec.Struct, frozen=True):
    """A candidate's figures in its present state. A canary's cover equally many runs that each
    version served.
    """

    trials: int
    judged: int
    right: int
    active_right: int
    failed: int
    active_failed: int
    tokens: int
    active_tokens: int
    evidence: tuple[GateEvidence, ...] = ()
    sources: tuple[EvidenceSource, ...] = ()
    """The sources of the evidence on correctness."""


class VersionDecision(msgspec.Struct, frozen=True):
    """A change of a version's state, with its reason."""

    version: str
    decision: str
    """`register`, `shadow`, `canary`, `promote`, `roll_back`, `retire`, `stop` or `wait`."""
    from_state: VersionState | None
    """None for a new version."""
    to_state: VersionState
    decided_by: DecidedBy
    decided_at: float
    """Unix time, seconds."""
    reason: str = ""
    figures: TrialFigures | None = None
    number: int = 0
    """From 1, over all versions; 0 until it is stored."""


class VersionBook(Protocol):
    """The store of versions, shared by all gateways of a database. Every method raises
    `StoreFailed`.
    """

    async def versions(self) -> list[ExecutorVersion]:
        """Return all versions, newest first."""

    async def add(self, version: ExecutorVersion, decision: VersionDecision) -> None:
        """Store a version. Raises `BadRequest` if its name is taken."""

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
        """Store that there is no decision yet, replacing the last such note on the version in that
        state.
        """

    async def decisions(
        self,
        version: str | None,
        after: int,
        size: int,
    ) -> list[VersionDecision]:
        """Return at most `size` decisions with numbers above `after`, oldest first."""

    async def add_trial(self, trial: Trial) -> None:
        """Store a trial; do nothing if the run has one."""

    async def trial(self, run_id: str) -> Trial | None:
        """Return the trial of a run."""

    async def judge(self, run_id: str, judgement: Judgement) -> None:
        """Store a judgement on a trial. The first one of the most trusted source counts."""

    async def pairs(
        self,
        version: str,
        stage: Stage,
        since: float,
    ) -> list[Pair]:
        """Return a candidate's trials in the state that it entered at `since`, in the order of
        their ends, without runs that must not be used for training.
        """
