"""The journal: records runs as they happen, each call before it is made and again at its end.

The worst case of a call is reserved before it is made, and replaced by its cost afterwards. So a
tenant never exceeds its quota, and after a crash the calls that were in flight are known.
"""

from typing import Any, Protocol

import msgspec
from msgspec.structs import asdict

from router.amount import NOTHING, Amount
from router.ledger.budget import UNLIMITED, Budget
from router.models import Completion, Message
from router.trace import Call, Run
from router.trace.call import OpenedCall
from router.trace.run import RunKind, RunStatus
from router.trace.turns import AgentId, Asked, Decided, Searched, Turns


class RunStart(msgspec.Struct, frozen=True):
    """A run that is about to begin."""

    id: str
    kind: RunKind
    tenant: str
    key_id: str
    request_id: str
    """The client's name for the request; empty for none."""
    request: str
    fingerprint: str
    """Hash of the request; equal for repeated requests, different if a name is used twice."""
    started_at: float
    """Unix time, seconds."""
    hold: Amount = NOTHING
    """Amount reserved for the answer from the beginning."""
    topology: str = ""
    budget: Budget = UNLIMITED
    no_cache: bool = False
    conditions: dict[str, str] = {}
    """Everything that its turns depend on, by name: models and prompts, the index, the release."""
    resumes: str = ""
    """The interrupted run that it resumes; empty for none."""
    content: str = ""
    """The whole request of an answer or a table, as JSON; empty for other kinds."""

    def ended(self, **known: Any) -> Run:
        """Return the ended run. `known`: the other fields of `Run`."""
        fields = {
            name: value for name, value in asdict(self).items() if name in Run.__struct_fields__
        }
        return Run(**fields, resumed_from=self.resumes, **known)


class Admitted(msgspec.Struct, frozen=True):
    """The run is recorded as `running`."""

    limited: bool = False
    """True if the tenant has quotas, so that every call must be reserved."""
    redact: bool = False
    training: bool = True
    """True if the tenant's runs may train an executor."""
    resumed: "Resumed | None" = None


class Resumed(msgspec.Struct, frozen=True):
    """An interrupted run that is resumed."""

    start: RunStart
    turns: tuple[Turns, ...]
    """Turns of the run, and of the runs that it has resumed itself."""
    calls: tuple[Call, ...]
    """All calls of these runs; calls in flight are charged their worst case."""


class EarlierRun(msgspec.Struct, frozen=True):
    """The tenant has used the `request_id` within the last day, for a run that is running or has
    finished.
    """

    run_id: str
    status: RunStatus
    same: bool
    """True if it was the same request."""


class Journal(Protocol):
    """Records runs, in the order of the calls. An awaited record is written when it returns."""

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Record a run and count it against its tenant's quotas. Return an `EarlierRun` if its
        `request_id` is taken by a run that is running or has finished; an interrupted one is
        resumed, if possible.

        Raises `BudgetExhausted`, `StoreFailed` and, if the run cannot resume what it `resumes`,
        `BadRequest`; then there is no such run.
        """

    def unfinished(self, run_id: str) -> RunStart | None:
        """Return the start of an interrupted run that can be resumed here; None for others."""

    async def open(self, call: OpenedCall) -> None:
        """Record a call and reserve its worst case. For a call of the answer role, that replaces
        the reserve for the answer.

        Raises `BudgetExhausted` and `StoreFailed`; then there is no such call.
        """

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        """Reserve `amount` for the run's answer, in place of the earlier reserve. Raises
        `BudgetExhausted` and `StoreFailed`; then the earlier reserve stays.
        """

    def settle(self, call: Call) -> None:
        """Record the end of a call. It is written before the next awaited record."""

    def turn(
        self,
        run_id: str,
        agent: AgentId,
        messages: tuple[Message, ...],
        output: Completion,
    ) -> None:
        """Record a completed turn. `messages`: the whole prompt."""

    def note(self, run_id: str, record: Searched | Decided | Asked) -> None:
        """Record a search, a decision about early work, or the number of an ask."""

    def forget(self, run_id: str) -> None:
        """Undo a run that never began, even if it was not recorded."""

    async def finish(self, run: Run) -> None:
        """Record the end of a run, with its trace and calls. Raises `StoreFailed`; then the answer
        must be withheld. The run is stored as failed, or as it ended if only the confirmation was
        lost.
        """


class NoJournal:
    """Admits every run and stores nothing."""

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Admit the run."""
        return Admitted()

    async def finish(self, *_args: Any, **_named: Any) -> None:
        """Store nothing; every call may be made, and every amount reserved."""

    def settle(self, *_args: Any, **_named: Any) -> None:
        """Store nothing."""

    open = reserve_for_answer = finish
    unfinished = turn = note = forget = settle
