"""The journal: runs are written as they happen, each call before it is made and again when it has
ended.

What a call may cost at most is reserved before anything is spent, and what it did cost replaces it.
So a tenant's spending never exceeds its quota, and a crash leaves behind what was under way.
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
from router.trace.turns import Agent, Asked, Decided, Searched, Turns


class RunStart(msgspec.Struct, frozen=True):
    """A run that is about to begin."""

    id: str
    kind: RunKind
    tenant: str
    key_id: str
    request_id: str
    """The client's; empty for none."""
    request: str
    fingerprint: str
    """Equal for two requests that ask the same: it tells a repeated request from a name used
    twice.
    """
    started_at: float
    """Unix time, seconds."""
    hold: Amount = NOTHING
    """The amount that is kept for its answer from the beginning."""
    topology: str = ""
    budget: Budget = UNLIMITED
    no_cache: bool = False
    conditions: dict[str, str] = {}
    """All that its turns depend on, by name: models with their prompts, the index, the release."""
    resumes: str = ""
    """The interrupted run that it goes on with; empty where it begins anew."""
    content: str = ""
    """The whole request of an answer or a table, as JSON; empty for other kinds."""

    def ended(self, **known: Any) -> Run:
        """The run that has come of it. `known`: the fields that tell how."""
        fields = {
            name: value for name, value in asdict(self).items() if name in Run.__struct_fields__
        }
        return Run(**fields, resumed_from=self.resumes, **known)


class Admitted(msgspec.Struct, frozen=True):
    """The run is on record, as `running`."""

    limited: bool = False
    """True where the tenant has quotas, so that every call must be reserved."""
    redact: bool = False
    training: bool = True
    """True where the tenant's runs may train an executor."""
    resumed: "Resumed | None" = None


class Resumed(msgspec.Struct, frozen=True):
    """An interrupted run that is gone on with."""

    start: RunStart
    turns: tuple[Turns, ...]
    """Its own, and those of the runs that it goes on with itself."""
    calls: tuple[Call, ...]
    """All that it has spent, calls in flight with their worst case."""


class EarlierRun(msgspec.Struct, frozen=True):
    """The tenant has used this `request_id` within the last day, for a run that is running or
    has finished.
    """

    run_id: str
    status: RunStatus
    same: bool
    """True where that was the same request."""


class Journal(Protocol):
    """Writes in the order of the calls. What is awaited is on record when it returns."""

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Put a run on record and count it against its tenant's quotas. An `EarlierRun` that did
        not finish lets its `request_id` go; one that was interrupted is gone on with, if it can be.
        Raises `BudgetExhausted`, `StoreFailed` and, where it cannot go on with what it `resumes`,
        `BadRequest`; then there is no such run.
        """

    def unfinished(self, run_id: str) -> RunStart | None:
        """The beginning of an interrupted run that can be gone on with here; None where there
        is no such run.
        """

    async def open(self, call: OpenedCall) -> None:
        """Put a call on record and reserve its worst case; a call of the answer role takes what
        `hold` keeps instead.

        Raises `BudgetExhausted` and `StoreFailed`; then there is no such call.
        """

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        """Keep `amount` for the run's answer, instead of what was kept before. Raises
        `BudgetExhausted`; then what was kept before is still kept. And `StoreFailed`.
        """

    def settle(self, call: Call) -> None:
        """Replace an opened call by how it ended. Written before whatever is awaited next."""

    def turn(
        self, run_id: str, agent: Agent, messages: tuple[Message, ...], output: Completion
    ) -> None:
        """Keep a completed turn. `messages`: all that the agent was shown."""

    def note(self, run_id: str, record: Searched | Decided | Asked) -> None:
        """Keep a search, what became of early work, or the number of an ask."""

    def forget(self, run_id: str) -> None:
        """Take back a run that never began, whether or not it was on record by then."""

    async def finish(self, run: Run) -> None:
        """Write how the run ended, its trace and all its calls. Raises `StoreFailed`; then the
        answer must be withheld, and the run will be on record as failed, unless it was written and
        only word of that was lost.
        """


class NoJournal:
    """Agrees to everything, and keeps nothing."""

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        """Any run may begin."""
        return Admitted()

    async def finish(self, *_args: Any, **_named: Any) -> None:
        """Keep nothing; any call may be made, and any amount be reserved."""

    def settle(self, *_args: Any, **_named: Any) -> None:
        """Keep nothing."""

    open = reserve_for_answer = finish
    unfinished = turn = note = forget = settle
