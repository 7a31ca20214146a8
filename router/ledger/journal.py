"""The journal: records runs while they happen. Each call is recorded before it is made, and again
when it ends.

The worst case of a call, that is its max cost, is reserved before the call, and replaced by its
actual cost afterwards. So a tenant never exceeds its quota, and after a crash the calls that were
in flight are known.
"""

from typing import Any, Protocol

from msgspec.structs import asdict

from router.amount import NOTHING, Amount
from router.frozen import Frozen
from router.ledger.budget import UNLIMITED, Budget
from router.models import Completion, Message
from router.trace import Call, Run
from router.trace.call import OpenedCall
from router.trace.run import RunKind, RunStatus
from router.trace.scope import DEFAULT_SCOPE, Scope
from router.trace.turns import AgentId, Asked, Decided, Searched, Turns


class RunStart(Frozen):
    """The values of a run that are known when it begins."""

    id: str
    kind: RunKind
    tenant: str
    key_id: str
    request_id: str
    """The idempotency key that the client chose; empty for none."""
    request: str
    """The question, sub-query or last message of the request."""
    fingerprint: str
    """Hash of the complete request. It shows whether a repeated `request_id` belongs to the same
    request.
    """
    started_at: float
    """Unix time, seconds."""
    hold: Amount = NOTHING
    """Amount reserved for the answer from the beginning."""
    topology: str = ""
    budget: Budget = UNLIMITED
    no_cache: bool = False
    conditions: dict[str, str] = {}
    """Everything on which the turns of the run depend, by name: models and prompts, the index, the
    release. An interrupted run can only be resumed if all values are unchanged.
    """
    resumes: str = ""
    """Identifier of the interrupted run that this run resumes; empty for none."""
    scope: Scope = DEFAULT_SCOPE
    content: str = ""
    """The complete request for an answer or a table, as JSON; empty for runs of other kinds."""

    def ended(self, **known: Any) -> Run:
        """Return the run after its end. `known`: the fields of `Run` that are only known at the
        end.
        """
        fields = {
            name: value for name, value in asdict(self).items() if name in Run.__struct_fields__
        }
        return Run(**fields, resumed_from=self.resumes, **known)


class Admitted(Frozen):
    """Result of `Journal.begin` for a run that has begun, with the settings of its tenant."""

    limited: bool = False
    """True if the tenant has quotas, so that the worst case of every call must be reserved."""
    redact: bool = False
    """True if the texts of the tenant's runs must not be stored."""
    training: bool = True
    """True if the tenant's runs may train an executor."""
    resumed: "Resumed | None" = None
    """The interrupted run that the new run resumes; None if it resumes none."""


class Resumed(Frozen):
    """An interrupted run that a new run resumes."""

    start: RunStart
    """Start of the interrupted run."""
    turns: tuple[Turns, ...]
    """Recorded turns of the interrupted run, of the earlier run that it had itself resumed, and so
    on.
    """
    calls: tuple[Call, ...]
    """All calls of these runs. Calls that were in flight at the interruption are charged their max
    cost.
    """


class EarlierRun(Frozen):
    """Result of `Journal.begin` if no run has begun, because the tenant has used the `request_id`
    within the last day for a run that is running or has finished.
    """

    run_id: str
    """Identifier of the earlier run."""
    status: RunStatus
    """Status of the earlier run."""
    same: bool
    """True if the earlier run was for the same request."""


class Journal(Protocol):
    """Protocol of a journal. Records are written in the order in which the methods are called. When
    an `async` method returns, its record is written.
    """

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Begin a run: record it, and count it against the quotas of its tenant.

        If another run that is running or has finished has the same `request_id`, nothing is
        recorded, and an `EarlierRun` is returned. If an interrupted run has the same `request_id`,
        the new run resumes it, if possible.

        Raises `BudgetExhausted`, `StoreFailed`, and `BadRequest` if the run cannot resume the run
        `start.resumes`. Then nothing is recorded.
        """

    def unfinished(self, run_id: str) -> RunStart | None:
        """Return the start of an interrupted run that this gateway can resume; None for any other
        run.
        """

    async def open(self, call: OpenedCall) -> None:
        """Record a call before it is made, and reserve its worst case (max cost). For a call of the
        answerer, this reservation replaces the amount that was reserved for the answer.

        Raises `BudgetExhausted` and `StoreFailed`; then nothing is recorded.
        """

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        """Reserve `amount` for the run's answer, in place of the amount reserved for it before.
        Raises `BudgetExhausted` and `StoreFailed`; then the earlier reservation stays.
        """

    def settle(self, call: Call) -> None:
        """Record the end of a call. The record is written together with the next record of an
        `async` method, or shortly afterwards if there is none.
        """

    def turn(
        self,
        run_id: str,
        agent: AgentId,
        messages: tuple[Message, ...],
        output: Completion,
    ) -> None:
        """Record a completed turn of an agent. `messages`: the whole prompt. `output`: the model's
        output.
        """

    def note(self, run_id: str, record: Searched | Decided | Asked) -> None:
        """Record one of three things: a search; the sub-query number of an ask (a piece of work on
        a table); or the decision on early work, that is whether to use the reports of executors
        that began before the delegator had finished its turn.
        """

    def forget(self, run_id: str) -> None:
        """Undo `begin` for a run that has done nothing, because `begin` was cancelled. No effect if
        the run was not recorded.
        """

    async def finish(self, run: Run) -> None:
        """Record the end of a run, with its trace and calls.

        Raises `StoreFailed`; then the caller must not deliver the answer. The run is then stored as
        failed. But if the write succeeded and only its confirmation failed, `run` may be stored.
        """


class NoJournal:
    """A journal that admits every run and stores nothing."""

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Admit the run."""
        return Admitted()

    async def finish(self, *_args: Any, **_named: Any) -> None:
        """Do nothing. `open` and `reserve_for_answer` do the same: they refuse nothing."""

    def settle(self, *_args: Any, **_named: Any) -> None:
        """Do nothing. The other methods that are not `async` do the same; `unfinished` returns
        None.
        """

    open = reserve_for_answer = finish
    unfinished = turn = note = forget = settle
