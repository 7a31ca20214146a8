"""What can be written of a run.

Each operation can be repeated without harm, as nobody may have heard that its commit came through.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from router.amount import NOTHING, Amount
from router.ledger.journal import Began, Earlier, RunStart
from router.store.rows import trace_of
from router.store.unit_of_work import Books, KnownRun, Scope
from router.trace.call import Call, OpenedCall
from router.trace.redaction import redacted
from router.trace.run import Run
from router.trace.values import AnswerWritten, Trajectory

_REQUEST_ID_S = 86400


class Operation(Protocol):
    """One entry."""

    @property
    def scope(self) -> Scope:
        """What it is about."""

    def apply(self, books: Books) -> object:
        """Change the books; what whoever asked is to hear. Raises a `RolegateError`; then nothing has changed."""

    @property
    def otherwise(self) -> "Operation | None":
        """What is to be written, as soon as that is possible, where this could not be, though it was waited for."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A run begins."""

    start: RunStart

    @property
    def scope(self) -> Scope:
        """Its tenant's quotas, and an earlier run of that name."""
        start = self.start
        return Scope(start.tenant, start.id, start.request_id, (start.started_at,))

    @property
    def otherwise(self) -> "Forget":
        """There is no such run."""
        return Forget(self.start.tenant, self.start.id)

    def apply(self, books: Books) -> Began | Earlier:
        """Begin, or name the earlier run. Raises `BudgetExhausted`."""
        start, tenant = self.start, books.tenant(self.start.tenant)
        began = Began(tenant.limited, tenant.redact, tenant.training)
        if books.run(start.id) is not None:
            return began
        earlier = books.named(start.tenant, start.request_id) if start.request_id else None
        if earlier is not None and self._stands(earlier):
            return Earlier(earlier.run_id, earlier.status, earlier.fingerprint == start.fingerprint)
        books.spending.check(tenant, start.started_at, start.hold)
        books.spending.count_request(tenant, start.started_at, books.in_flight(tenant.name))
        if earlier is not None:
            books.let_go(earlier)
        books.begin(start, redact=tenant.redact)
        return began

    def _stands(self, earlier: KnownRun) -> bool:
        recent = self.start.started_at - earlier.started_at < _REQUEST_ID_S
        return recent and earlier.status in ("running", "finished")


@dataclass(frozen=True, slots=True)
class Open:
    """A call is about to be made."""

    call: OpenedCall

    @property
    def scope(self) -> Scope:
        """Its run, and its tenant's quotas."""
        return Scope(self.call.tenant, self.call.run_id, spends_at=(self.call.started_at,), open_calls=True)

    @property
    def otherwise(self) -> "Discard":
        """There is no such call."""
        return Discard(self.call)

    def apply(self, books: Books) -> None:
        """Reserve, and release for it what is held for the answer. Raises `BudgetExhausted` and `StoreFailed`."""
        call, run = self.call, books.running(self.call.run_id)
        if call.number in books.open_calls(call.run_id):
            return
        freed = run.held if call.role == "answer" else NOTHING
        _check(books, run, freed, call.started_at, call.reserved)
        if freed != NOTHING:
            books.hold(run, NOTHING)
        books.open(call)


@dataclass(frozen=True, slots=True)
class Hold:
    """Something is kept for the answer of a run."""

    tenant: str
    run_id: str
    amount: Amount
    at: float
    """When its run began, in Unix time."""

    @property
    def scope(self) -> Scope:
        """The run, and its tenant's quotas."""
        return Scope(self.tenant, self.run_id, spends_at=(self.at,))

    @property
    def otherwise(self) -> None:
        """Whatever is held is released when the run ends."""

    def apply(self, books: Books) -> None:
        """Exchange it for what was held before. Raises `BudgetExhausted` and `StoreFailed`."""
        run = books.running(self.run_id)
        _check(books, run, run.held, run.started_at, self.amount)
        books.hold(run, self.amount)


@dataclass(frozen=True, slots=True)
class Settle:
    """A call has ended."""

    call: Call

    @property
    def scope(self) -> Scope:
        """The call."""
        return Scope(self.call.tenant, self.call.run_id, open_calls=True)

    @property
    def otherwise(self) -> None:
        """Nobody waits for it."""

    def apply(self, books: Books) -> None:
        """Book what it spent."""
        books.settle(self.call)


@dataclass(frozen=True, slots=True)
class Discard:
    """A call was never made."""

    call: OpenedCall

    @property
    def scope(self) -> Scope:
        """The call."""
        return Scope(self.call.tenant, self.call.run_id, open_calls=True)

    @property
    def otherwise(self) -> None:
        """Nobody waits for it."""

    def apply(self, books: Books) -> None:
        """Take it back."""
        books.discard(self.call.run_id, self.call.number)


@dataclass(frozen=True, slots=True)
class Forget:
    """A run never began."""

    tenant: str
    run_id: str

    @property
    def scope(self) -> Scope:
        """The run."""
        return Scope(self.tenant, self.run_id, open_calls=True)

    @property
    def otherwise(self) -> None:
        """Nobody waits for it."""

    def apply(self, books: Books) -> None:
        """Take it back."""
        run = books.run(self.run_id)
        if run is not None and run.status == "running":
            books.forget(run)


@dataclass(frozen=True, slots=True)
class Finish:
    """A run has ended."""

    run: Run
    start: RunStart | None = None
    """With which it was put on record; None where that is not known."""
    withheld: bool = False
    """Whether the client was told that the run is lost."""

    @property
    def scope(self) -> Scope:
        """The run, with the calls whose ends could not be written before."""
        request_id = self.start.request_id if self.start else ""
        return Scope(self.run.tenant, self.run.id, request_id, open_calls=True, promised=True)

    @property
    def otherwise(self) -> "Finish":
        """The run failed."""
        events = tuple(event for event in self.run.events if not isinstance(event, AnswerWritten))
        lost = msgspec.structs.replace(self.run, status="failed", error="StoreFailed", result=None, events=events)
        return Finish(lost, self.start, withheld=True)

    def apply(self, books: Books) -> None:
        """Bring its calls to what the run says, and write how it ended. Raises `StoreFailed`.

        It began, and its calls were opened, without waiting for the disk: whatever a crash of the database took of that
        is put on record again.
        """
        known, run = books.run(self.run.id), self.run
        if known is None and self.start is not None:
            known = self._begin_again(books, self.start)
        if known is not None and known.status == run.status:
            return
        if self.withheld and (known is None or known.status != "running"):
            return
        known = books.running(run.id)
        books.restore(run.calls)
        if books.open_calls(run.id):
            for call in run.calls:
                books.settle(call)
        for number in books.open_calls(run.id):
            books.discard(run.id, number)
        if books.tenant(run.tenant).redact:
            run = redacted(run)
        outcome = run.result.outcome if isinstance(run.result, Trajectory) else ""
        books.end(known, run.status, outcome, run.duration_s, trace_of(run))

    @staticmethod
    def _begin_again(books: Books, start: RunStart) -> KnownRun | None:
        if books.named(start.tenant, start.request_id):  # whoever asked has asked again
            start = msgspec.structs.replace(start, request_id="")
        books.spending.add_requests(start.tenant, start.started_at, 1)
        books.begin(start, redact=books.tenant(start.tenant).redact)
        return books.run(start.id)


def _check(books: Books, run: KnownRun, freed: Amount, at: float, wanted: Amount) -> None:
    """Raise what `Spending.check` raises where `wanted` is too much even if what is held, `freed`, is free again."""
    tenant = books.tenant(run.tenant)
    if not tenant.limited:
        return
    books.spending.release(run.tenant, run.started_at, freed)
    try:
        books.spending.check(tenant, at, wanted, NOTHING if freed == run.held else run.held)
    finally:
        books.spending.reserve(run.tenant, run.started_at, freed)
