"""Where versions of the executor, their trials and what was decided on them are written down."""

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
    """Its name, which is also that of its model; never used for another one."""
    state: VersionState
    share: float
    """Of a canary: the share of runs that it works for, 0 to 1."""
    state_at: float
    """When it came into its state; Unix time, seconds."""
    registered_at: float
    manifest: str = ""
    """What it was made of, as JSON; empty for the model that the config names."""


class Traffic(msgspec.Struct, frozen=True):
    """The versions that work, and in which share of the runs."""

    active: str
    candidate: str | None = None
    """The version that is shadow or canary; there is at most one."""
    stage: Stage | None = None
    """What the candidate is; None where there is none."""
    share: float = 0.0
    """Of a canary."""

    def serving(self, run_id: str) -> str:
        """The version that works in a run: the same one for the same run, and a canary keeps its
        runs as its share grows.
        """
        if not self.candidate or self.stage != "canary":
            return self.active
        return self.candidate if _place(run_id) < self.share else self.active

    def other(self, run_id: str) -> str | None:
        """The version to compare with whoever serves a run; None where nothing is to be compared.

        Of a canary's traffic as many runs are compared that the candidate serves as runs that the
        active version serves, by expectation, and which of the others these are does not depend on
        anything in them.
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
    """The place of a run among all, 0 to 1."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8]) / 2**64


def traffic_of(versions: "list[ExecutorVersion]") -> Traffic | None:
    """The traffic that the states of all versions amount to; None while none is active."""
    active = next((version.version for version in versions if version.state == "active"), None)
    if active is None:
        return None
    for version in versions:
        if version.state in ("shadow", "canary"):
            return Traffic(active, version.version, version.state, version.share)
    return Traffic(active)


class Side(msgspec.Struct, frozen=True):
    """Outcome of a run with one version."""

    answer: str
    failed: bool
    """Whether any of its executors came to no report, or the run to no answer."""
    tokens: int
    """Of its executor calls; those that are known."""


class Trial(msgspec.Struct, frozen=True):
    """A run with both."""

    run_id: str
    """The run that a client asked for."""
    candidate: str
    """The version that is tried."""
    active: str
    stage: Stage
    candidate_served: bool
    """Whether the client got the candidate's answer; a shadow's is never shown."""
    by_candidate: Side
    by_active: Side
    ended_at: float
    """Unix time, seconds."""


Source = Literal["client", "judge", "operator"]
"""Who says which answers are right; in the order of their names, each is trusted more than
those before it.
"""


class Judgement(msgspec.Struct, frozen=True):
    """Verdict on which of a trial's two answers are right."""

    candidate_right: bool
    active_right: bool
    source: Source
    tenant: str = ""
    """Of a client; empty for the operator and the judge."""
    judged_at: float = 0.0
    """Unix time, seconds; set by the book."""

    @property
    def sign(self) -> int:
        """1 where only the candidate is right, -1 where only the active version is, else 0: of
        neither it says more than of the other.
        """
        return self.candidate_right - self.active_right


def judge(trial: Trial, feedback: Feedback) -> Judgement | None:
    """Verdict of feedback on both answers, by exact match with the right answer that it tells; None
    where it tells none, or contradicts itself: a verdict alone speaks of one answer only. None,
    too, for a shadow: whoever gives feedback has seen the active version's answer, and may have
    spoken because of it.
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
    """None while it is not known which answers are right."""


DecidedBy = Literal["gate", "operator", "config"]
"""The config names the version to begin with."""


class GateEvidence(msgspec.Struct, frozen=True):
    """The values of two test martingales on one measure; 1/α and more rejects the contrary at
    the level α.
    """

    measure: str
    """`correctness`, `failures` or `tokens`."""
    in_favour: float
    """That the candidate is not worse than the active one, by more than the margin."""
    against: float
    """That it is worse."""


class EvidenceSource(msgspec.Struct, frozen=True):
    """The part of somebody's in what is known of correctness."""

    source: Source
    tenant: str
    """Of clients; else empty."""
    decisive: int
    """Pairs in which exactly one version is right, by this source."""
    counted: int
    """Those of them that are evidence; the others wait until their tenant's share is small
    enough.
    """


class TrialFigures(msgspec.Struct, frozen=True):
    """Figures that a candidate has shown in its present state; of a canary, over as many trials
    that it served as the active version did.
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
    """Whose evidence on correctness that is."""


class VersionDecision(msgspec.Struct, frozen=True):
    """A change of a version's state, and why."""

    version: str
    decision: str
    """`register`, `shadow`, `canary`, `promote`, `roll_back`, `retire`, `stop` or `wait`."""
    from_state: VersionState | None
    """None for a version that is new."""
    to_state: VersionState
    decided_by: DecidedBy
    decided_at: float
    """Unix time, seconds."""
    reason: str = ""
    figures: TrialFigures | None = None
    number: int = 0
    """From 1, over all versions; 0 until it is written down."""


class VersionBook(Protocol):
    """Read and written by every gateway of a store. Every method raises `StoreFailed`."""

    async def versions(self) -> list[ExecutorVersion]:
        """All of them, newest first."""

    async def add(self, version: ExecutorVersion, decision: VersionDecision) -> None:
        """Put a version on record. Raises `BadRequest` where there is one of that name."""

    async def change(
        self,
        expected: Sequence[ExecutorVersion],
        changed: Sequence[ExecutorVersion],
        decisions: Sequence[VersionDecision],
    ) -> bool:
        """Replace versions, all or none, and write down why. False where another process has
        changed any of `expected` since it was read; then nothing has changed.
        """

    async def wait(self, decision: VersionDecision) -> None:
        """Write down that there is no decision yet, in place of the last such note on the
        version in that state.
        """

    async def decisions(self, version: str | None, after: int, size: int) -> list[VersionDecision]:
        """With numbers greater than `after`, oldest first."""

    async def add_trial(self, trial: Trial) -> None:
        """Write down a trial; of no effect where there is one of that run."""

    async def trial(self, run_id: str) -> Trial | None:
        """The trial of a run."""

    async def judge(self, run_id: str, judgement: Judgement) -> None:
        """Note which answers of a trial are right; the first judgement of the most trusted
        source stands.
        """

    async def pairs(self, version: str, stage: Stage, since: float) -> list[Pair]:
        """A candidate's trials in a state into which it came at `since`, in the order in which they
        ended; none on runs of tenants whose runs must not train.
        """
