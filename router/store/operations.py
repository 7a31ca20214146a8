"""Operations: what can be written of a run.

Each can be repeated without harm, as the news that its commit came through may be lost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import structlog
from sqlalchemy import select

from router.amount import NOTHING, Amount
from router.ledger import RunStart
from router.ledger.journal import Admitted, EarlierRun
from router.store.rows import call_of, run_of, trace_of
from router.store.schema import CALLS, RUNS
from router.store.unit_of_work import KnownRun, Reads, UnitOfWork
from router.trace import Call, Run, Trajectory
from router.trace.call import OpenedCall
from router.trace.redaction import redacted
from router.trace.values import AnswerWritten

_log = structlog.get_logger("store")
_REQUEST_ID_S = 86400
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Operation(Generic[Outcome]):
    """One operation of a unit of work."""

    reads: Reads
    apply: Callable[[UnitOfWork], Outcome]
    """Makes the change and returns its outcome. Raises a `RolegateError`; then nothing has changed."""


def begin(start: RunStart) -> Operation[Admitted | EarlierRun]:
    """Begin a run, or name the earlier one of its `request_id`. Raises `BudgetExhausted`."""

    def apply(work: UnitOfWork) -> Admitted | EarlierRun:
        tenant = work.tenant(start.tenant)
        began = Admitted(tenant.limited, tenant.redact, tenant.training)
        if work.run(start.id) is not None:
            return began
        earlier = work.run_of_request(start.tenant, start.request_id) if start.request_id else None
        if earlier is not None and _holds_its_request_id(earlier, start.started_at):
            return EarlierRun(earlier.run_id, earlier.status, earlier.fingerprint == start.fingerprint)
        work.spending.check(tenant, start.started_at, start.hold)
        work.spending.count_request(tenant, start.started_at, work.in_flight[tenant.name])
        if earlier is not None:
            work.release_request_id(earlier)
        work.begin(start)
        return began

    return Operation(Reads(start.tenant, start.id, start.request_id, (start.started_at,)), apply)


def _holds_its_request_id(run: KnownRun, now: float) -> bool:
    return now - run.started_at < _REQUEST_ID_S and run.status in ("running", "finished")


def open_call(call: OpenedCall) -> Operation[None]:
    """Reserve what a call may cost; one of the answer role takes what is held for it. Raises `BudgetExhausted` and
    `StoreFailed`.
    """

    def apply(work: UnitOfWork) -> None:
        run = work.running(call.run_id)
        if call.number in work.open_calls(call.run_id):
            return
        freed = run.held if call.role == "answer" else NOTHING
        _check(work, run, freed, call.started_at, call.reserved)
        if freed != NOTHING:
            work.reserve_for_answer(run, NOTHING)
        work.open(call)

    return Operation(Reads(call.tenant, call.run_id, spends_at=(call.started_at,), open_calls=True), apply)


def reserve_for_answer(start: RunStart, amount: Amount) -> Operation[None]:
    """Keep `amount` for a run's answer, instead of what was kept before. Raises `BudgetExhausted` and `StoreFailed`."""

    def apply(work: UnitOfWork) -> None:
        run = work.running(start.id)
        _check(work, run, run.held, run.started_at, amount)
        work.reserve_for_answer(run, amount)

    return Operation(Reads(start.tenant, start.id, spends_at=(start.started_at,)), apply)


def settle(call: Call) -> Operation[None]:
    """Book what an ended call has spent."""
    return Operation(Reads(call.tenant, call.run_id, open_calls=True), lambda work: work.settle(call))


def discard(call: OpenedCall) -> Operation[None]:
    """Take back a call that was never made."""
    return Operation(
        Reads(call.tenant, call.run_id, open_calls=True), lambda work: work.discard(call.run_id, call.number)
    )


def forget(tenant: str, run_id: str) -> Operation[None]:
    """Take back a run that never began."""

    def apply(work: UnitOfWork) -> None:
        run = work.run(run_id)
        if run is not None and run.status == "running":
            work.forget(run)

    return Operation(Reads(tenant, run_id, open_calls=True), apply)


def finish(run: Run, start: RunStart | None = None, *, withheld: bool = False) -> Operation[None]:
    """Bring a run's calls to what the run says, and write how it ended. Raises `StoreFailed`.

    It began, and its calls were opened, without waiting for the disk: whatever a crash of the database took of that is
    put on record again. `start`: as it was put on record; None where that is not known. `withheld`: the client was told
    that the run is lost.
    """

    def apply(work: UnitOfWork) -> None:
        known = work.run(run.id)
        if known is None and start is not None:
            known = _begin_again(work, start)
        if known is not None and known.status == run.status:
            return
        if withheld and (known is None or known.status != "running"):
            return
        known = work.running(run.id)
        work.restore(run.calls)
        for call in run.calls:
            work.settle(call)
        for number in work.open_calls(run.id):
            work.discard(run.id, number)
        _end(work, known, run)

    request_id = start.request_id if start else ""
    return Operation(Reads(run.tenant, run.id, request_id, open_calls=True, all_calls=True), apply)


def withhold(run: Run, start: RunStart | None) -> Operation[None]:
    """Put a run on record as failed, because it could not be written as it ended."""
    events = tuple(event for event in run.events if not isinstance(event, AnswerWritten))
    lost = msgspec.structs.replace(run, status="failed", error="StoreFailed", result=None, events=events)
    return finish(lost, start, withheld=True)


def _begin_again(work: UnitOfWork, start: RunStart) -> KnownRun | None:
    if work.run_of_request(start.tenant, start.request_id):  # the client has asked again
        start = msgspec.structs.replace(start, request_id="")
    work.spending.add_requests(start.tenant, start.started_at, 1)
    work.begin(start)
    return work.run(start.id)


def interrupt(tenant: str, run_id: str) -> Operation[None]:
    """End a run that has lost its process; its open calls are charged with what they may have cost."""

    def apply(work: UnitOfWork) -> None:
        known = work.run(run_id)
        if known is None or known.status != "running":
            return
        row = work.connection.execute(select(RUNS).where(RUNS.c.run_id == run_id)).one()
        wanted = select(CALLS).where(CALLS.c.run_id == run_id).order_by(CALLS.c.number)
        calls = tuple(map(call_of, work.connection.execute(wanted).mappings()))
        in_flight = [f"{run_id}-{number}" for number in work.open_calls(run_id)]
        for call in calls:
            work.settle(call)
        ended_at = max((call.started_at + call.duration_s for call in calls), default=known.started_at)
        duration_s = max(0.0, ended_at - known.started_at)
        _end(work, known, msgspec.structs.replace(run_of(row, calls), status="interrupted", duration_s=duration_s))
        _log.warning("store.run_interrupted", run_id=run_id, tenant=tenant, calls_in_flight=in_flight)

    return Operation(Reads(tenant, run_id, open_calls=True), apply)


def _end(work: UnitOfWork, known: KnownRun, run: Run) -> None:
    outcome = run.result.outcome if isinstance(run.result, Trajectory) else ""
    trace = trace_of(redacted(run) if work.tenant(run.tenant).redact else run)
    work.end(known, run.status, outcome, run.duration_s, trace)


def _check(work: UnitOfWork, run: KnownRun, freed: Amount, at: float, wanted: Amount) -> None:
    """Raise what `Spending.check` raises where `wanted` is too much even if what is held, `freed`, is free again."""
    tenant = work.tenant(run.tenant)
    if not tenant.limited:
        return
    work.spending.release(run.tenant, run.started_at, freed)
    try:
        work.spending.check(tenant, at, wanted, NOTHING if freed == run.held else run.held)
    finally:
        work.spending.reserve(run.tenant, run.started_at, freed)
