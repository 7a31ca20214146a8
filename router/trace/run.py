"""A run as it is stored, and clients' feedback on it."""

from collections.abc import Sequence
from typing import Literal

from router.frozen import Frozen
from router.trace.call import Call
from router.trace.identity import DEFAULT_TENANT
from router.trace.scope import DEFAULT_SCOPE, Scope
from router.trace.values import Event, Result, Trajectory

RunKind = Literal["answer", "complete", "execute", "table", "shadow"]
"""Kind of a run. `answer`: answers a question. `complete`: one completion by a role's model.
`execute`: one execution of a sub-query. `table`: fills a table. `shadow`: repeats the work of a
finished run with another executor version.
"""
RunStatus = Literal["running", "finished", "failed", "cancelled", "interrupted"]
"""Status of a run. `running`: under way. `finished`: ended with a result. `failed`: ended with an
error. `cancelled`: on request, or because the client disconnected. `interrupted`: the gateway
stopped, or was killed.
"""


class RoleSetting(Frozen):
    """A role's model, and the SHA-256 of the role's system prompt, at the time of a run."""

    model: str
    prompt_sha256: str


class Run(Frozen):
    """One request as it is stored, with all its messages, searches and calls."""

    id: str
    kind: RunKind
    request: str
    """The text of the request: a question, a sub-query, or the last message of a conversation."""
    status: RunStatus
    error: str
    """Message of the error if `status` is `failed`, or if the run was cancelled on request; else
    empty. It is meant for the operator, as it may contain addresses.
    """
    result: Result | None
    """The result. Its type depends on `kind`. It is partial for a run that did not finish, and None
    if there is no result.
    """
    settings: dict[str, RoleSetting]
    """Models, and hashes of the system prompts, of the run's roles, by role. The key of a manager
    is `managers.NAME`.
    """
    calls: tuple[Call, ...]
    started_at: float
    """Unix time, seconds."""
    duration_s: float
    tenant: str = DEFAULT_TENANT
    request_id: str = ""
    """The idempotency key that the client chose; empty for none."""
    events: tuple[Event, ...] = ()
    """Events, in the order in which they occurred. Clients see them numbered from 1."""
    redacted: bool = False
    """True if the run was stored without its texts."""
    resumed_from: str = ""
    """Id of the interrupted run that this run resumed; empty for none. The calls of reused turns
    are recorded only in the interrupted run.
    """
    scope: Scope = DEFAULT_SCOPE
    """The indexes and documents that the run could search."""
    key_id: str = ""
    """Public part of the API key of the request; empty if it had none."""

    @property
    def question(self) -> str:
        """The question as it was searched. If the request had a conversation, this is the question
        rewritten so that it can be understood without the conversation; else the request itself.
        """
        condensing = self.result.condensing if isinstance(self.result, Trajectory) else None
        return condensing.question if condensing else self.request

    @property
    def unsupported(self) -> bool:
        """True if the answer contains names or numbers that no evidence from a passage supports."""
        return isinstance(self.result, Trajectory) and self.result.unsupported


MAX_CHARS = 5000
"""Max characters of each text in an entry of feedback."""
MAX_A_RUN = 50
"""Max entries of feedback on one run."""


class Feedback(Frozen):
    """One entry of feedback on a run. A run may have up to `MAX_A_RUN` entries."""

    run_id: str
    accepted: bool | None = None
    """True if the answer is right or useful, False if not; None if not stated."""
    score: float | None = None
    """The quality of the answer, from 0 to 1; None if not stated."""
    right_answer: str = ""
    """The right answer; empty if the client does not state it."""
    comment: str = ""
    tenant: str | None = None
    """The author's tenant; None for the operator."""

    @property
    def good(self) -> bool | None:
        """True if the answer is good: the value of `accepted` if it is stated, otherwise True if
        `score` is at least 0.5. None if neither is stated.
        """
        if self.accepted is None and self.score is not None:
            return self.score >= 0.5
        return self.accepted

    @property
    def empty(self) -> bool:
        """True if no field except `run_id` and `tenant` is set."""
        return self == Feedback(self.run_id, tenant=self.tenant)


def right_answers(feedback: Sequence[Feedback]) -> tuple[str, ...]:
    """Return the distinct right answers in `feedback`. If any of them are from the operator, return
    only these.
    """
    stating = [item for item in feedback if item.right_answer.strip()]
    trusted = [item for item in stating if item.tenant is None]
    return tuple(dict.fromkeys(item.right_answer for item in trusted or stating))
