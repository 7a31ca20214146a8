"""A run as it is stored, and clients' feedback on it."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from router.trace.call import Call
from router.trace.identity import DEFAULT_TENANT
from router.trace.values import Event, Result, Trajectory

RunKind = Literal["answer", "complete", "execute", "table", "shadow"]
RunStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]


class RoleSetting(msgspec.Struct, frozen=True):
    """A role's settings at the time of a run."""

    model: str
    prompt_sha256: str


class Run(msgspec.Struct, frozen=True):
    """One request with all its messages, searches and calls."""

    id: str
    kind: RunKind
    request: str
    """The question, the sub-query, or the last message."""
    status: RunStatus
    error: str
    """Empty unless `status` is `failed`; for the operator, as it may name addresses."""
    result: Result | None
    """By `kind`; partial for a run that did not finish."""
    settings: dict[str, RoleSetting]
    """By role; managers are `managers.NAME`."""
    calls: tuple[Call, ...]
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    tenant: str = DEFAULT_TENANT
    request_id: str = ""
    """The client's name for the request; empty for none."""
    events: tuple[Event, ...] = ()
    """In order, with numbers from 1."""
    redacted: bool = False
    """True if its texts were left out when it was stored."""
    resumed_from: str = ""
    """The interrupted run that it resumed, which paid for its first turns; empty for none."""

    @property
    def unsupported(self) -> bool:
        """True for an answer with names or numbers that no evidence in a passage supports."""
        return isinstance(self.result, Trajectory) and self.result.unsupported


MAX_CHARS = 5000
"""Max characters of each text of feedback."""
MAX_A_RUN = 50


class Feedback(msgspec.Struct, frozen=True):
    """Feedback on one run; a run may have `MAX_A_RUN`."""

    run_id: str
    accepted: bool | None = None
    """The verdict on the answer: right, or useful; None if not stated."""
    score: float | None = None
    """The quality of the answer, from 0 to 1."""
    right_answer: str = ""
    """The right answer, if the client knows it."""
    comment: str = ""
    tenant: str | None = None
    """The author's tenant; None for the operator."""

    @property
    def good(self) -> bool | None:
        """The verdict: as stated, or else whether the score is at least 0.5; None without
        either.
        """
        if self.accepted is None and self.score is not None:
            return self.score >= 0.5
        return self.accepted

    @property
    def empty(self) -> bool:
        """True if it states nothing."""
        return self == Feedback(self.run_id, tenant=self.tenant)


def right_answers(feedback: Sequence[Feedback]) -> tuple[str, ...]:
    """Return the distinct right answers in feedback: only the operator's if there are any."""
    stating = [item for item in feedback if item.right_answer.strip()]
    trusted = [item for item in stating if item.tenant is None]
    return tuple(dict.fromkeys(item.right_answer for item in trusted or stating))
