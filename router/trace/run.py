"""A run as it is stored, and what clients think of it."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from router.trace.call import Call
from router.trace.identity import DEFAULT_TENANT
from router.trace.values import Event, Result, Trajectory

RunKind = Literal["answer", "complete", "execute", "table", "shadow"]
RunStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]


class RoleSetting(msgspec.Struct, frozen=True):
    """A role at the time of a run."""

    model: str
    prompt_sha256: str


class Run(msgspec.Struct, frozen=True):
    """One request with everything it said, found and spent."""

    id: str
    kind: RunKind
    request: str
    """The question, the sub-query, or the last message."""
    status: RunStatus
    error: str
    """Empty unless `status` is `failed`; for the operator, as it may name addresses."""
    result: Result | None
    """By `kind`; of a run that did not finish, what there was by then."""
    settings: dict[str, RoleSetting]
    """By role, and those of managers as `managers.NAME`."""
    calls: tuple[Call, ...]
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    tenant: str = DEFAULT_TENANT
    request_id: str = ""
    """The client's name for it; empty for none."""
    events: tuple[Event, ...] = ()
    """Events in order; their numbers count from 1."""
    redacted: bool = False
    """True where its texts were left out when it was stored."""
    resumed_from: str = ""
    """The interrupted run that it went on with, where its first turns were paid for; empty for
    none.
    """

    @property
    def unsupported(self) -> bool:
        """True for an answer whose names or numbers stand in no evidence that a passage holds."""
        return isinstance(self.result, Trajectory) and self.result.unsupported


MAX_CHARS = 5000
"""The longest that each of its texts may be."""
MAX_A_RUN = 50


class Feedback(msgspec.Struct, frozen=True):
    """Feedback on one run; a run may have `MAX_A_RUN`."""

    run_id: str
    accepted: bool | None = None
    """The verdict on the answer: right, or of use; None where that is not stated."""
    score: float | None = None
    """The quality of the answer, from 0 to 1."""
    right_answer: str = ""
    """The right answer, where the client knows it."""
    comment: str = ""
    tenant: str | None = None
    """The tenant that gave it; None for the operator."""

    @property
    def good(self) -> bool | None:
        """The verdict: as stated, or else by a score of 0.5 or more; None where it does not
        tell.
        """
        return (
            self.score >= 0.5 if self.accepted is None and self.score is not None else self.accepted
        )

    @property
    def empty(self) -> bool:
        """True where it says nothing."""
        return self == Feedback(self.run_id, tenant=self.tenant)


def right_answers(feedback: Sequence[Feedback]) -> tuple[str, ...]:
    """The right answers that were told, each once: the operator's alone where there are any."""
    told = [said for said in feedback if said.right_answer.strip()]
    trusted = [said for said in told if said.tenant is None]
    return tuple(dict.fromkeys(said.right_answer for said in trusted or told))
