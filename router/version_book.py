"""Where versions of the executor, their trials and what was decided on them are written down."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from router.executor_version import ExecutorVersion, Stage, VersionState
from router.trial import Judgement, Pair, Trial

DecidedBy = Literal["gate", "operator", "config"]
"""The config names the version to begin with."""


class Evidence(msgspec.Struct, frozen=True):
    """The values of two test martingales on one measure; 1/α and more rejects the contrary at the level α."""

    measure: str
    """`correctness`, `failures` or `tokens`."""
    in_favour: float
    """That the candidate is not worse than the active one, by more than the margin."""
    against: float
    """That it is worse."""


class TrialFigures(msgspec.Struct, frozen=True):
    """What a candidate has shown in its present state."""

    trials: int
    judged: int
    right: int
    active_right: int
    failed: int
    active_failed: int
    tokens: int
    active_tokens: int
    evidence: tuple[Evidence, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """What became of a version, and why."""

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

    async def add(self, version: ExecutorVersion, decision: Decision) -> None:
        """Put a version on record. Raises `BadRequest` where there is one of that name."""

    async def change(
        self, expected: Sequence[ExecutorVersion], changed: Sequence[ExecutorVersion], decisions: Sequence[Decision]
    ) -> bool:
        """Replace versions, all or none, and write down why. False where another process has changed any of
        `expected` since it was read; then nothing has changed.
        """

    async def wait(self, decision: Decision) -> None:
        """Write down that there is no decision yet, in place of the last such note on the version in that state."""

    async def decisions(self, version: str | None, after: int, size: int) -> list[Decision]:
        """With numbers greater than `after`, oldest first."""

    async def add_trial(self, trial: Trial) -> None:
        """Write down a trial; of no effect where there is one of that run."""

    async def trial(self, run_id: str) -> Trial | None:
        """The trial of a run."""

    async def judge(self, run_id: str, judgement: Judgement) -> None:
        """Note which answers of a trial were right; the first judgement stands."""

    async def pairs(self, version: str, stage: Stage, since: float) -> list[Pair]:
        """A candidate's trials in a state into which it came at `since`: judged ones in the order in which they were
        judged, then the others in the order in which they ended.
        """
